"""Leasing: grants, tokens, heartbeats, expiry."""

from __future__ import annotations

import msgspec
import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.options import MIB, QueueOptions
from omnirelay.core.payload import Caller, OwnershipToken
from tests.builders import Kernel, new_item

SECOND = 1_000


def leased(options: QueueOptions | None = None, **item: object) -> tuple[Kernel, OwnershipToken]:
    kernel = Kernel(options)
    kernel.enqueue(new_item(**item))  # type: ignore[arg-type]
    return kernel, kernel.lease_one().token


def last_error(kernel: Kernel) -> tuple[str, str | None]:
    trail = kernel.item(1).trail
    assert trail is not None
    assert trail.last_error is not None
    return trail.last_error.message, trail.last_error.code


# -- grants --------------------------------------------------------------------------------------


def test_a_call_gets_no_further_item_behind_six_mebibytes_and_at_least_one() -> None:
    kernel = Kernel(QueueOptions(body_limit=4 * MIB))
    for size in (1 * MIB, 5 * MIB // 2, 5 * MIB // 2, 1, 1, 4 * MIB, 4 * MIB, 4 * MIB):
        kernel.enqueue(new_item(body=b"x" * size))
    assert [each.token.sequence_id for each in kernel.lease(8)] == [1, 2, 3, 4]
    assert [each.token.sequence_id for each in kernel.lease(8)] == [5, 6, 7]
    assert [each.token.sequence_id for each in kernel.lease(8)] == [8]
    assert kernel.lease(8) == []


def test_a_grant_says_whose_it_is_and_for_how_long() -> None:
    kernel = Kernel()
    kernel.enqueue()
    granted = kernel.lease_one(Caller(principal="alice", peer_id="worker-7"))
    assert granted.owner == "worker-7"
    assert (granted.expires_at, granted.remaining_ms) == (kernel.now_ms + 30 * SECOND, 30 * SECOND)
    assert granted.heartbeat_after_ms == 5 * SECOND
    assert granted.token.fence == kernel.events[-1].sequence_number


def test_an_item_is_leased_to_one_peer_at_a_time() -> None:
    kernel = Kernel()
    kernel.enqueue()
    assert len(kernel.lease(5, Caller(peer_id="a"))) == 1
    assert kernel.lease(5, Caller(peer_id="b")) == []


def test_nothing_ready_is_an_empty_answer_and_no_event() -> None:
    kernel = Kernel()
    assert kernel.lease(3) == []
    assert kernel.events == []


def test_a_lease_may_be_shorter_or_longer_than_usual() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), new_item("b"))
    short = kernel.lease_one(lease_duration_ms=900)
    assert (short.remaining_ms, short.heartbeat_after_ms) == (900, 300)
    assert kernel.lease_one(lease_duration_ms=3_600 * SECOND).remaining_ms == 3_600 * SECOND


def test_fences_rise_with_every_grant() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item(str(n)) for n in range(3)])
    fences = []
    for _ in range(4):
        for granted in kernel.lease(3):
            fences.append(granted.fence)
            kernel.release(granted.token)
    assert fences == sorted(set(fences))
    assert len(fences) == 12


def test_a_repeated_lease_call_gets_the_leases_it_still_holds_and_nothing_new() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item(str(n)) for n in range(4)])
    first = kernel.lease(3, request_id="call-1")
    kernel.complete(first[1].token)
    kernel.pass_time(SECOND)
    again = kernel.lease(3, request_id="call-1")
    assert [granted.token for granted in again] == [first[0].token, first[2].token]
    assert again[0].remaining_ms == 29 * SECOND


def test_a_lease_call_whose_leases_are_all_over_gets_new_ones() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), new_item("b"))
    first = kernel.lease_one(request_id="call-1")
    kernel.complete(first.token)
    assert kernel.lease_one(request_id="call-1").sequence_id != first.sequence_id


def test_request_ids_of_lease_calls_belong_to_who_asks() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), new_item("b"), new_item("c"))
    mine = kernel.lease_one(Caller(peer_id="a"), request_id="call-1")
    assert kernel.lease_one(Caller(peer_id="b"), request_id="call-1").token != mine.token
    assert kernel.lease_one(Caller(principal="p", peer_id="x"), request_id="call-1").token != mine.token


def test_a_peer_that_calls_itself_like_a_principal_does_not_get_its_leases() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), new_item("b"))
    mine = kernel.lease_one(Caller(principal="alice"), request_id="call-1")
    other = kernel.lease(1, Caller(peer_id="alice"), request_id="call-1")
    assert mine.token not in [granted.token for granted in other]


# -- heartbeats ----------------------------------------------------------------------------------


def test_a_heartbeat_in_time_extends_the_lease() -> None:
    kernel, token = leased()
    kernel.pass_time(5 * SECOND)
    answer = kernel.heartbeat(token)
    assert (answer.extended, answer.expires_at) == (True, kernel.now_ms + 30 * SECOND)
    assert (answer.remaining_ms, answer.heartbeat_after_ms) == (30 * SECOND, 5 * SECOND)


def test_a_heartbeat_sooner_than_the_interval_says_the_unchanged_deadline() -> None:
    kernel, token = leased()
    deadline = kernel.now_ms + 30 * SECOND
    kernel.pass_time(4_999)
    answer = kernel.heartbeat(token)
    assert (answer.extended, answer.expires_at, answer.remaining_ms) == (False, deadline, 25_001)


def test_only_the_first_early_heartbeat_is_written_down() -> None:
    kernel, token = leased()
    kernel.heartbeat(token)
    written = len(kernel.events)
    kernel.heartbeat(token)
    assert len(kernel.events) == written


@pytest.mark.parametrize("every_ms", [1 * SECOND, 4 * SECOND, 5 * SECOND, 9 * SECOND])
@pytest.mark.parametrize("progress", [None, cmd.Progress(message="going on")])
def test_a_worker_that_goes_on_heartbeating_keeps_its_lease(every_ms: int, progress: cmd.Progress | None) -> None:
    kernel, token = leased()
    for _ in range(200 * SECOND // every_ms):
        kernel.pass_time(every_ms)
        kernel.heartbeat(token, progress=progress)
    kernel.complete(token)


def test_progress_reaches_the_next_attempt() -> None:
    kernel, token = leased()
    kernel.heartbeat(token, progress=cmd.Progress(fraction=0.5, message="half", data={"row": 7}))
    kernel.fail(token)
    granted = kernel.lease_one()
    assert granted.progress is not None
    assert msgspec.json.decode(granted.progress) == {"fraction": 0.5, "message": "half", "data": {"row": 7}}


def test_a_heartbeat_brings_the_wish_to_cancel() -> None:
    kernel, token = leased()
    assert not kernel.heartbeat(token).cancel_requested
    kernel.do(cmd.CancelItem(1))
    assert kernel.heartbeat(token).cancel_requested


def test_lease_ids_are_read_in_any_case() -> None:
    kernel, token = leased()
    kernel.heartbeat(msgspec.structs.replace(token, lease_id=token.lease_id.upper()))
    kernel.complete(msgspec.structs.replace(token, lease_id=token.lease_id.upper(), fence=None))


# -- expiry --------------------------------------------------------------------------------------


def test_a_lease_that_runs_out_gives_the_item_to_another() -> None:
    kernel, token = leased()
    kernel.heartbeat(token)
    kernel.pass_time(30 * SECOND)
    granted = kernel.lease_one(Caller(peer_id="worker-2"))
    assert (granted.sequence_id, granted.attempt) == (1, 2)
    assert granted.last_error is not None
    assert granted.last_error.code == "error.taskqueue.lease_expired"
    assert granted.fence > (token.fence or 0)


def test_an_acknowledgement_that_arrived_before_the_deadline_counts() -> None:
    kernel, token = leased()
    arrived_ms = kernel.now_ms + 29_999
    kernel.pass_time(40 * SECOND, upkeep=False)
    kernel.do(cmd.CompleteItem(token), arrived_ms=arrived_ms)
    assert kernel.state_of(1) == "completed"


def test_an_expiry_without_any_sign_of_life_burns_no_attempt() -> None:
    kernel, _ = leased(QueueOptions(max_delivery_attempts=1, max_undelivered=2))
    for _ in range(2):
        kernel.pass_time(30 * SECOND)
        assert kernel.lease_one().attempt == 1
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(1) == "dead"
    assert last_error(kernel) == ("3 leases ran out without any sign of life", "error.resourcelease.undelivered")


@pytest.mark.parametrize("word", ["heartbeat", "fail", "release"])
def test_leases_that_got_lost_are_counted_in_a_row(word: str) -> None:
    kernel, token = leased(QueueOptions(max_delivery_attempts=100, max_undelivered=1))
    for _ in range(3):
        kernel.pass_time(30 * SECOND)
        assert kernel.state_of(1) == "ready"
        token = kernel.lease_one().token
        getattr(kernel, word)(token)
        if word == "heartbeat":
            kernel.release(token)
        kernel.lease_one()
    kernel.pass_time(30 * SECOND)
    kernel.lease_one()
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(1) == "dead"


def test_a_grant_that_goes_back_unseen_is_no_sign_of_life() -> None:
    kernel, _ = leased(QueueOptions(max_undelivered=1))
    kernel.pass_time(30 * SECOND)
    kernel.do(cmd.ReturnUndelivered([kernel.lease_one().token]))
    kernel.lease_one()
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(1) == "dead"


def test_a_lease_that_ran_out_after_a_heartbeat_starts_the_count_over() -> None:
    kernel, _ = leased(QueueOptions(max_delivery_attempts=100, max_undelivered=1))
    kernel.pass_time(30 * SECOND)
    kernel.heartbeat(kernel.lease_one().token)
    kernel.pass_time(30 * SECOND)
    kernel.lease_one()
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(1) == "ready"


def test_an_expiry_after_a_sign_of_life_uses_attempts_up() -> None:
    kernel, token = leased(QueueOptions(max_delivery_attempts=2, max_undelivered=0))
    kernel.heartbeat(token)
    kernel.pass_time(30 * SECOND)
    kernel.heartbeat(kernel.lease_one().token)
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(1) == "dead"
    assert kernel.kinds(2) == ["Expired", "DeadLettered"]
    why = ("failed 2 of 2 times, the last by expiry", "error.resourcelease.attempts_exhausted")
    assert last_error(kernel) == why
    found = kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(error_code=why[1])))
    assert found.count == 1


def test_undelivered_grants_go_back_at_once_and_burn_nothing() -> None:
    kernel = Kernel(QueueOptions(max_undelivered=0))
    kernel.enqueue(new_item("a"), new_item("b"))
    granted = kernel.lease(2)
    kernel.complete(granted[1].token)
    kernel.do(cmd.ReturnUndelivered([each.token for each in granted]))
    again = kernel.lease(2)
    assert [(each.sequence_id, each.attempt) for each in again] == [(1, 1)]


def test_a_grant_returned_twice_in_one_call_goes_back_once() -> None:
    kernel, token = leased()
    kernel.do(cmd.ReturnUndelivered([token, token]))
    assert kernel.state.ready.live == 1
    assert kernel.kinds(1) == ["Released"]


def test_an_undelivered_grant_of_a_cancelled_item_ends_it() -> None:
    kernel, token = leased()
    kernel.do(cmd.CancelItem(1))
    kernel.do(cmd.ReturnUndelivered([token]))
    assert kernel.state_of(1) == "cancelled"


def test_expiries_come_in_the_order_of_their_deadlines_and_ids() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item(str(n)) for n in range(4)])
    tokens = [granted.token for granted in kernel.lease(4)]
    kernel.pass_time(5 * SECOND)
    for token in (tokens[2], tokens[0]):
        kernel.heartbeat(token)
    kernel.pass_time(60 * SECOND, upkeep=False)
    kernel.do(cmd.ExpireLeases(3))
    expired = [event.ownership.sequence_id for event in kernel.events[-3:]]  # type: ignore[union-attr]
    assert expired == [2, 4, 1]
