"""How leases end: complete, fail, release, and asking again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core import commands as cmd
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import OwnershipToken
from omnirelay.core.rules.acknowledge import retry_delay
from omnirelay.errors import ResourceExhausted
from tests.builders import WORKER, Kernel, new_item

SECOND = 1_000


def leased(options: QueueOptions | None = None, **fields: object) -> tuple[Kernel, OwnershipToken]:
    kernel = Kernel(options)
    kernel.enqueue(new_item(**fields))  # type: ignore[arg-type]
    return kernel, kernel.lease_one().token


# -- complete ------------------------------------------------------------------------------------


def test_a_completed_item_is_never_leased_again() -> None:
    kernel, token = leased()
    kernel.complete(token)
    assert kernel.state_of(1) == "completed"
    kernel.pass_time(3_000 * SECOND)
    assert kernel.lease(1) == []


def test_a_result_is_kept_for_its_time() -> None:
    kernel, token = leased(QueueOptions(result_retention_ms=1_000))
    kernel.complete(token, result=b"42", result_encoding="text/plain")
    trail = kernel.item(1).trail
    assert trail is not None
    assert (trail.result, trail.result_encoding) == (b"42", "text/plain")
    kernel.pass_time(999)
    assert kernel.state_of(1) == "completed"
    kernel.pass_time(1)
    assert kernel.state_of(1) == "unknown"


def test_follow_ups_come_in_with_the_completion() -> None:
    kernel, token = leased()
    answer = kernel.complete(token, follow_ups=[new_item("b"), new_item("c", delay_ms=5)])
    assert answer.follow_up_ids == [2, 3]
    assert kernel.kinds(3) == ["Completed", "Enqueue", "Enqueue"]
    for sequence_id in (2, 3):
        trail = kernel.item(sequence_id).trail
        assert trail is not None
        assert trail.parent == 1
    assert (kernel.state_of(2), kernel.state_of(3)) == ("ready", "delayed")


def test_a_completion_needs_no_room_when_the_shard_is_full() -> None:
    kernel = Kernel(QueueOptions(capacity=1, reserve=1))
    kernel.enqueue()
    answer = kernel.complete(kernel.lease_one().token, follow_ups=[new_item("b"), new_item("c")])
    assert answer.follow_up_ids == [2, 3]
    assert kernel.state.live_count == 2


def test_follow_ups_beyond_the_reserve_refuse_the_completion_and_the_lease_lives() -> None:
    kernel = Kernel(QueueOptions(capacity=1, reserve=1))
    kernel.enqueue()
    token = kernel.lease_one().token
    error = kernel.refusal(cmd.CompleteItem(token, follow_ups=[new_item(str(n)) for n in range(3)]))
    assert isinstance(error, ResourceExhausted)
    kernel.complete(token)


def test_follow_ups_count_against_the_bytes_of_the_reserve() -> None:
    kernel = Kernel(QueueOptions(capacity_bytes=10, reserve_bytes=5))
    kernel.enqueue(new_item(body=b"x" * 10))
    token = kernel.lease_one().token
    kernel.refusal(cmd.CompleteItem(token, follow_ups=[new_item("b", body=b"y" * 16)]))
    kernel.complete(token, follow_ups=[new_item("b", body=b"y" * 15)])
    assert kernel.state.live_bytes == 15


def test_a_completion_after_a_wish_to_cancel_completes() -> None:
    kernel, token = leased()
    kernel.do(cmd.CancelItem(1))
    kernel.complete(token)
    assert kernel.state_of(1) == "completed"


# -- fail and release ----------------------------------------------------------------------------


def test_a_failure_is_tried_again_until_the_attempts_are_used_up() -> None:
    kernel = Kernel(QueueOptions(max_delivery_attempts=3))
    kernel.enqueue()
    for attempt in (1, 2, 3):
        granted = kernel.lease_one()
        assert granted.attempt == attempt
        assert kernel.state_of(1) == "leased"
        kernel.fail(granted.token, reason="boom", error_code="app.boom")
    assert kernel.state_of(1) == "dead"
    assert kernel.kinds(2) == ["Failed", "DeadLettered"]
    trail = kernel.item(1).trail
    assert trail is not None
    assert trail.last_error is not None
    assert (trail.last_error.message, trail.last_error.code) == ("boom", "app.boom")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({}, ("failed 1 of 1 times", "error.resourcelease.attempts_exhausted")),
        ({"reason": "boom"}, ("boom", "error.resourcelease.failed")),
        ({"error_code": "app.boom"}, ("lease failed", "app.boom")),
        ({"mode": "dead"}, ("lease failed", "error.resourcelease.failed")),
    ],
)
def test_a_dead_letter_bears_what_its_owner_said_and_else_why_it_died(
    said: dict[str, Any], kept: tuple[str, str]
) -> None:
    kernel = Kernel(QueueOptions(max_delivery_attempts=1))
    kernel.enqueue()
    kernel.fail(kernel.lease_one().token, **said)
    trail = kernel.item(1).trail
    assert trail is not None
    assert trail.last_error is not None
    assert (trail.last_error.message, trail.last_error.code) == kept


def test_an_item_may_bring_its_own_number_of_attempts() -> None:
    kernel, token = leased(max_attempts=1)
    assert kernel.fail(token).state == "dead"


def test_mode_dead_ends_an_item_at_once() -> None:
    kernel, token = leased()
    assert kernel.fail(token, mode="dead").state == "dead"


@pytest.mark.parametrize("by_fail", [True, False])
def test_a_release_burns_no_attempt(by_fail: bool) -> None:
    kernel = Kernel(QueueOptions(max_delivery_attempts=1))
    kernel.enqueue()
    for _ in range(3):
        granted = kernel.lease_one()
        assert granted.attempt == 1
        answer = kernel.fail(granted.token, mode="release") if by_fail else kernel.release(granted.token)
        assert answer.state == "ready"


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_an_owner_may_say_when_the_item_comes_back(verb: str) -> None:
    kernel, token = leased()
    answer = getattr(kernel, verb)(token, delay_ms=2_000)
    assert (answer.state, answer.not_before) == ("delayed", kernel.now_ms + 2_000)
    kernel.pass_time(1_999)
    assert kernel.lease(1) == []
    kernel.pass_time(1)
    assert len(kernel.lease(1)) == 1


def test_a_delay_of_zero_overrides_the_retry_delay() -> None:
    kernel, token = leased(QueueOptions(requeue_delay_ms=10_000))
    assert kernel.fail(token, delay_ms=0).state == "ready"


def test_the_last_error_reaches_the_next_attempt() -> None:
    kernel, token = leased()
    kernel.fail(token)
    error = kernel.lease_one().last_error
    assert error is not None
    assert (error.message, error.code) == ("lease failed", "error.resourcelease.failed")


# -- asking again --------------------------------------------------------------------------------


def test_the_same_acknowledgement_again_gets_the_first_answer() -> None:
    kernel = Kernel(QueueOptions(requeue_delay_ms=1_000))
    kernel.enqueue(*[new_item(str(n)) for n in range(4)])
    tokens = [granted.token for granted in kernel.lease(4)]
    commands: list[cmd.Command] = [
        cmd.CompleteItem(tokens[0], WORKER, follow_ups=[new_item("next")]),
        cmd.FailItem(tokens[1], WORKER, mode="retry"),
        cmd.FailItem(tokens[2], WORKER, mode="dead"),
        cmd.ReleaseItem(tokens[3], WORKER, delay_ms=700),
    ]
    first = [kernel.do(command) for command in commands]
    kernel.pass_time(5_000)
    for granted in kernel.lease(5):
        kernel.complete(granted.token)
    written = len(kernel.events)
    assert [kernel.do(command) for command in commands] == first
    assert len(kernel.events) == written


def test_a_repeated_failure_gets_the_first_answer_though_the_item_was_cancelled_since() -> None:
    kernel, token = leased()
    first = kernel.fail(token)
    kernel.do(cmd.CancelItem(1))
    assert kernel.fail(token) == first


def test_a_repeated_release_gets_the_first_answer_though_the_item_was_cancelled_since() -> None:
    kernel, token = leased()
    first = kernel.release(token, delay_ms=500)
    kernel.do(cmd.CancelItem(1))
    assert kernel.release(token, delay_ms=500) == first


def test_another_verb_on_an_ended_lease_is_too_late() -> None:
    kernel, token = leased()
    kernel.complete(token)
    for verb in (cmd.FailItem, cmd.ReleaseItem, cmd.ExtendLease):
        assert kernel.refusal(verb(token)).code == "error.taskqueue.lease_inactive"


def test_a_late_worker_cannot_complete_an_item_leased_to_another() -> None:
    kernel, token = leased()
    kernel.pass_time(30 * SECOND)
    other = kernel.lease_one()
    assert kernel.refusal(cmd.CompleteItem(token)).code == "error.taskqueue.lease_inactive"
    kernel.complete(other.token)


def test_ended_leases_are_remembered_for_their_time() -> None:
    kernel, token = leased(QueueOptions(ended_lease_retention_ms=1_000))
    kernel.complete(token)
    kernel.pass_time(999)
    kernel.complete(token)
    kernel.pass_time(1)
    assert kernel.refusal(cmd.CompleteItem(token)).code == "error.resourcelease.unknown_token"


def test_only_so_many_ended_leases_are_remembered() -> None:
    kernel = Kernel(QueueOptions(ended_lease_max=2))
    kernel.enqueue(*[new_item(str(n)) for n in range(3)])
    tokens = [granted.token for granted in kernel.lease(3)]
    for token in tokens:
        kernel.complete(token)
    assert kernel.refusal(cmd.CompleteItem(tokens[0])).code == "error.resourcelease.unknown_token"
    kernel.complete(tokens[1])
    kernel.do(cmd.ChangeOptions(QueueOptions(ended_lease_max=0)))
    assert kernel.refusal(cmd.CompleteItem(tokens[2])).code == "error.resourcelease.unknown_token"


def test_with_no_memory_of_leases_everything_else_still_works() -> None:
    kernel, token = leased(QueueOptions(ended_lease_max=0, max_delivery_attempts=1))
    assert kernel.fail(token).state == "dead"
    assert kernel.refusal(cmd.FailItem(token)).code == "error.resourcelease.unknown_token"
    kernel.restart()
    assert kernel.state_of(1) == "dead"


# -- retry delays --------------------------------------------------------------------------------


@given(
    sequence_id=st.integers(1, 1 << 53),
    attempt=st.integers(1, 1_000_000),
    first_ms=st.integers(0, 24 * 3_600 * SECOND),
    max_ms=st.integers(0, 365 * 24 * 3_600 * SECOND),
)
def test_a_retry_delay_doubles_up_to_its_cap_within_a_tenth(
    sequence_id: int, attempt: int, first_ms: int, max_ms: int
) -> None:
    options = QueueOptions(requeue_delay_ms=first_ms, retry_delay_max_ms=max_ms)
    plain = min(first_ms * 2 ** min(attempt - 1, 40), max_ms)
    delay = retry_delay(options, sequence_id, attempt)
    assert plain * 9 // 10 <= delay <= plain * 11 // 10 + 1
    assert delay == retry_delay(options, sequence_id, attempt)


def test_jitter_spreads_retries_over_the_whole_tenth_either_way() -> None:
    options = QueueOptions(requeue_delay_ms=100_000)
    delays = [retry_delay(options, sequence_id, 1) for sequence_id in range(1, 2_001)]
    assert min(delays) < 91_000
    assert max(delays) > 109_000
    assert 99_000 < sum(delays) / len(delays) < 101_000
    for low in range(90_000, 110_000, 2_000):
        assert 100 < sum(low <= delay < low + 2_000 for delay in delays) < 300


def test_a_retry_waits_longer_each_time_and_a_redrive_starts_anew() -> None:
    kernel = Kernel(QueueOptions(requeue_delay_ms=1_000, max_delivery_attempts=4))
    kernel.enqueue()
    for plain in (1_000, 2_000, 4_000):
        answer = kernel.fail(kernel.lease_one().token)
        assert answer.not_before is not None
        assert plain * 0.9 <= answer.not_before - kernel.now_ms <= plain * 1.1
        kernel.pass_time(plain * 11 // 10)
    assert kernel.fail(kernel.lease_one().token).state == "dead"
    kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(everything=True)))
    answer = kernel.fail(kernel.lease_one().token)
    assert answer.not_before is not None
    assert 900 <= answer.not_before - kernel.now_ms <= 1_100


def test_an_expiry_waits_like_a_failure_and_an_undelivered_one_does_not() -> None:
    kernel, token = leased(QueueOptions(requeue_delay_ms=1_000))
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(1) == "ready"
    kernel.heartbeat(kernel.lease_one().token)
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(1) == "delayed"
    assert kernel.refusal(cmd.CompleteItem(token)).code == "error.taskqueue.lease_inactive"
