"""Drained items come in elsewhere: nothing is lost because its number or its request id is taken there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import Renumbered, RestoreAnswer
from omnirelay.core.events import RestoredItem, RestoreSnapshot
from omnirelay.core.evolve import evolve
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import OwnershipToken
from omnirelay.core.snapshot import digest
from omnirelay.errors import FailedPrecondition, ResourceExhausted
from omnirelay.log.base import FRAME_BYTES_MAX
from tests.builders import START_MS, Kernel, new_item, payload


def drained(kernel: Kernel, count: int = 10_000) -> list[RestoredItem]:
    """A page as it leaves the process."""
    items = kernel.do(cmd.DrainItems(count)).items
    return msgspec.json.decode(msgspec.json.encode(items), type=list[RestoredItem])


def shard(*names: str, start_ms: int = START_MS, options: QueueOptions | None = None, **fields: Any) -> Kernel:
    kernel = Kernel(options, start_ms=start_ms)
    for name in names:
        kernel.enqueue(new_item(name, **fields))
    return kernel


def restore(kernel: Kernel, items: list[RestoredItem]) -> RestoreAnswer:
    answer: RestoreAnswer = kernel.do(cmd.RestoreItems(items))
    assert digest(kernel.replayed()) == kernel.digest()
    return answer


def pending(kernel: Kernel) -> list[tuple[int, str]]:
    return [(item.sequence_id, item.payload.resource_id) for item in kernel.state.ready]


def test_an_item_whose_number_is_anothers_comes_in_under_a_new_one() -> None:
    there = shard("b1", "b2", "b3")
    for granted in there.lease(2):
        there.complete(granted.token)
    page = drained(shard("a1", "a2", "a3", "a4", "a5", start_ms=START_MS - 1_000))
    answer = restore(there, page)
    assert (answer.restored_count, answer.duplicate_count) == (5, 0)
    assert answer.renumbered == [Renumbered(1, 6), Renumbered(2, 7), Renumbered(3, 8)]
    assert sorted(pending(there)) == [(3, "b3"), (4, "a4"), (5, "a5"), (6, "a1"), (7, "a2"), (8, "a3")]
    assert there.enqueue() == [9]


@pytest.mark.parametrize("end", ["complete", "dead", "leased", "cancel"])
def test_an_item_that_is_known_here_is_a_duplicate_whatever_became_of_it(end: str) -> None:
    kernel = shard("a")
    page = drained(kernel)
    restore(kernel, page)
    if end == "cancel":
        kernel.do(cmd.CancelItem(1))
    else:
        token = kernel.lease_one().token
        if end == "complete":
            kernel.complete(token)
        elif end == "dead":
            kernel.fail(token, mode="dead")
    assert restore(kernel, page) == RestoreAnswer(0, 1)


@pytest.mark.parametrize("request_id", [None, "r1"])
def test_a_call_made_twice_brings_a_renumbered_item_in_once(request_id: str | None) -> None:
    page = drained(shard("a", start_ms=START_MS - 1_000, request_id=request_id))
    there = shard("b")
    assert restore(there, page).renumbered == [Renumbered(1, 2)]
    assert restore(there, page) == RestoreAnswer(0, 1)
    there.complete(there.lease_one().token)
    there.complete(there.lease_one().token)
    assert restore(there, page) == RestoreAnswer(0, 1)
    assert there.state.pending_count == 0


def test_a_renumbered_item_is_known_although_its_old_number_has_become_free() -> None:
    page = drained(shard("a", start_ms=START_MS - 1_000))
    there = shard("b", options=QueueOptions(result_retention_ms=1_000))
    there.complete(there.lease_one().token)
    restore(there, page)
    there.pass_time(2_000)
    assert 1 not in there.state.items
    assert restore(there, page) == RestoreAnswer(0, 1)


def test_one_number_twice_in_a_call_is_two_items_when_they_differ() -> None:
    first = drained(shard("a", start_ms=START_MS - 1_000))
    second = drained(shard("b", start_ms=START_MS - 2_000))
    kernel = Kernel()
    answer = restore(kernel, [*first, *second, *first])
    assert answer == RestoreAnswer(2, 1, [Renumbered(1, 2)])
    assert pending(kernel) == [(1, "a"), (2, "b")]


def test_a_new_number_is_beyond_all_that_come_in_with_it() -> None:
    there = shard("b")
    foreign = [RestoredItem(sequence_id=number, payload=payload(f"a{number}")) for number in (1, 2, 900)]
    assert restore(there, foreign).renumbered == [Renumbered(1, 901)]
    assert there.enqueue() == [902]


def test_an_item_comes_home_under_the_number_it_got_elsewhere() -> None:
    """Its request id is remembered here for the number it left with, and must not make it a duplicate."""
    home = shard("a", start_ms=START_MS - 1_000, request_id="r1")
    away = shard("b", "c")
    restore(away, drained(home))
    [item] = [each for each in drained(away) if each.payload.resource_id == "a"]
    assert item.sequence_id == 3
    assert restore(home, [item]) == RestoreAnswer(1, 0)
    assert home.enqueue(new_item("a", request_id="r1")) == [3]
    assert restore(home, [item]) == RestoreAnswer(0, 1)


def test_a_request_id_that_stands_for_another_payload_here_goes_on_doing_so() -> None:
    page = drained(shard("a", start_ms=START_MS - 1_000, request_id="r1"))
    there = Kernel()
    there.enqueue(new_item("filler"), new_item("b", request_id="r1"))
    there.complete(there.lease_one().token)
    assert restore(there, page).restored_count == 1
    assert sorted(pending(there)) == [(2, "b"), (3, "a")]
    assert there.enqueue(new_item("b", request_id="r1")) == [2]
    assert restore(there, page) == RestoreAnswer(0, 1)


def test_an_item_keeps_its_number_where_only_its_request_id_is_anothers() -> None:
    there = Kernel()
    there.enqueue(new_item("b", request_id="r1"))
    foreign = [RestoredItem(sequence_id=77, payload=payload("a", request_id="r1"), enqueued_at=5)]
    assert restore(there, foreign) == RestoreAnswer(1, 0)
    assert restore(there, foreign) == RestoreAnswer(0, 1)
    assert pending(there) == [(1, "b"), (77, "a")]


def test_renumbered_items_bring_their_history_along() -> None:
    away = shard("a", start_ms=START_MS - 1_000, priority=7, weight=3, max_attempts=4)
    token = away.lease_one().token
    away.heartbeat(token, progress=cmd.Progress(fraction=0.5))
    away.fail(token, reason="boom", error_code="disk.full")
    there = shard("b")
    restore(there, drained(away))
    item = there.item(2)
    assert (item.attempt, item.priority, item.weight, item.max_attempts) == (2, 7, 3, 4)
    assert item.enqueued_at == START_MS - 1_000
    trail = item.trail
    assert trail is not None
    assert trail.last_error is not None
    assert trail.last_error.code == "disk.full"
    assert (trail.last_token, trail.progress) == (token, b'{"fraction":0.5}')


def test_a_queue_keeps_its_order_when_some_of_it_needs_new_numbers() -> None:
    fifo = QueueOptions(ordering="fifo", result_retention_ms=1_000)
    away = Kernel(fifo, start_ms=START_MS - 1_000)
    away.enqueue(*[new_item("q", body=b"%d" % number) for number in range(1, 6)])
    there = Kernel(fifo)
    for wait_ms in (1_500, 0, 0):
        there.enqueue(new_item("other"))
        there.complete(there.lease_one().token)
        there.pass_time(wait_ms)
    assert sorted(there.state.items) == [2, 3]
    answer = restore(there, list(reversed(drained(away))))
    assert answer.renumbered == [Renumbered(2, 4), Renumbered(3, 5), Renumbered(4, 6), Renumbered(5, 7)]
    order = []
    for _ in range(5):
        granted = there.lease_one()
        order.append(granted.payload.body)
        there.complete(granted.token)
    assert order == [b"1", b"2", b"3", b"4", b"5"]


def test_fences_are_passed_for_renumbered_items_too() -> None:
    there = shard("b")
    token = OwnershipToken(1, 1, "elsewhere", 1_000)
    restore(there, [RestoredItem(sequence_id=1, payload=payload("a"), attempt=2, last_ownership_token=token)])
    assert there.kinds(2) == ["GenerationStarted", "RestoreSnapshot"]
    assert there.lease(2)[0].fence > 1_000 + (1 << 32)


def test_what_cannot_be_remembered_is_refused_rather_than_brought_in_twice() -> None:
    there = shard("b", options=QueueOptions(request_id_max=1), request_id="r1")
    page = drained(shard("a", start_ms=START_MS - 1_000))
    assert isinstance(there.refusal(cmd.RestoreItems(page)), ResourceExhausted)


def test_what_was_handed_in_stays_as_it_was() -> None:
    page = drained(shard("a", start_ms=START_MS - 1_000))
    there = shard("b")
    restore(there, page)
    assert (page[0].sequence_id, page[0].request_key) == (1, None)
    [event] = [event for event in there.events if isinstance(event, RestoreSnapshot)]
    assert event.items[0].sequence_id == 2


def test_a_shard_that_remembers_no_request_ids_takes_items_under_new_numbers_all_the_same() -> None:
    there = shard("b", options=QueueOptions(request_id_max=0))
    page = drained(shard("a", start_ms=START_MS - 1_000))
    assert restore(there, page) == RestoreAnswer(1, 0, [Renumbered(1, 2)])
    assert not there.state.requests


# -- logs that hold what older versions took in unchecked ------------------------------------------


def with_unchecked_item(options: QueueOptions, **fields: Any) -> Kernel:
    kernel = Kernel(options)
    item = RestoredItem(sequence_id=7, payload=payload("a"), **fields)
    event = RestoreSnapshot(sequence_number=kernel.state.sequence + 1, timestamp=kernel.now_ms, items=[item])
    kernel.events.append(event)
    evolve(kernel.state, event)
    return kernel


@pytest.mark.parametrize("floor", [1, 5, (1 << 64) - 1, -10, -(1 << 63)])
@pytest.mark.parametrize("alive", [True, False])
def test_an_item_with_impossible_attempts_retries_like_any_other(floor: int, alive: bool) -> None:
    kernel = with_unchecked_item(QueueOptions(requeue_delay_ms=1_000), attempt=1, attempt_floor=floor)
    if alive:
        kernel.heartbeat(kernel.lease_one().token)
    else:
        kernel.fail(kernel.lease_one().token)
    for _ in range(2):  # The lease runs out, and then the delay does.
        kernel.pass_time(60_000)
    assert kernel.lease_one().attempt == 2
    assert digest(kernel.replayed()) == kernel.digest()


@pytest.mark.parametrize("undelivered", [(1 << 64) - 1, 1 << 62, -(1 << 63)])
def test_an_impossible_count_of_lost_leases_spoils_no_snapshot(undelivered: int) -> None:
    kernel = with_unchecked_item(QueueOptions(), undelivered=undelivered)
    kernel.lease_one()
    kernel.pass_time(40_000)
    assert kernel.state_of(7) == ("ready" if undelivered < 0 else "dead")
    assert digest(kernel.replayed()) == kernel.digest()


@pytest.mark.parametrize("fields", [{"attempt_floor": 5}, {"attempt_floor": -5}, {"undelivered": 1 << 60}])
def test_an_item_with_impossible_counts_leaves_with_possible_ones(fields: dict[str, int]) -> None:
    page = drained(with_unchecked_item(QueueOptions(), **fields))
    assert restore(Kernel(), page).restored_count == 1


# -- what was drained comes in --------------------------------------------------------------------


def test_an_id_that_numbering_must_not_jump_to_is_replaced() -> None:
    there = shard("b")
    far = [RestoredItem(sequence_id=number, payload=payload(str(number))) for number in (1 << 52, (1 << 52) + 5)]
    assert restore(there, far).renumbered == [Renumbered((1 << 52) + 5, (1 << 52) + 1)]
    # This shard numbers from there itself by now.
    assert there.enqueue() == [(1 << 52) + 2]
    page = drained(there)
    assert restore(there, page) == RestoreAnswer(4, 0)
    assert restore(Kernel(), page).restored_count == 4


def test_attempts_beyond_those_that_can_be_asked_for_come_back() -> None:
    kernel = Kernel()
    item = RestoredItem(
        sequence_id=1, payload=payload("a"), attempt=1_000_000, attempt_floor=999_999, max_attempts=1_000_000
    )
    restore(kernel, [item])
    kernel.fail(kernel.lease_one().token)
    assert restore(kernel, drained(kernel)).restored_count == 1
    assert kernel.lease_one().attempt == 1_000_001


def test_fences_of_a_log_that_was_restored_far_above_come_in_anywhere() -> None:
    kernel = Kernel()
    kernel.do(cmd.StartGeneration("restored", 1 << 53))
    kernel.enqueue(new_item("a"))
    token = kernel.lease_one().token
    kernel.release(token)
    page = drained(kernel)
    assert restore(kernel, page).restored_count == 1
    there = shard("b")
    restore(there, page)
    assert min(granted.fence for granted in there.lease(2)) > (token.fence or 0) > 1 << 53


@pytest.mark.parametrize("letter", ["x", "\U0001f4a5"])
def test_the_largest_item_with_all_that_it_can_gather_comes_back(letter: str) -> None:
    kernel = Kernel(QueueOptions(body_limit=4 << 20))
    attributes = {f"{n}{letter * 100}": letter * 4_000 for n in range(40)}
    kernel.enqueue(new_item("a", body=b"x" * (4 << 20), attributes=attributes, request_id=letter * 1_000))
    kernel.enqueue(new_item("b"))
    token = kernel.lease_one().token
    kernel.heartbeat(token, progress=cmd.Progress(data=letter * (60_000 // len(letter.encode()))))
    kernel.fail(token, reason=letter * 16_384, error_code=letter * 1_024)
    pages = [drained(kernel), drained(kernel)]
    assert sorted(len(page) for page in pages) == [1, 1]
    for page in pages:
        there = Kernel()
        assert restore(there, page).restored_count == 1
        assert len(msgspec.json.encode(there.events)) < FRAME_BYTES_MAX - 16_384


def test_a_dead_letter_that_was_edited_to_the_limit_comes_back() -> None:
    kernel = Kernel(QueueOptions(body_limit=4 << 20))
    dead = kernel.dead_item("a")
    large = payload("a", body=b"x" * (4 << 20), attributes={f"{n}": "x" * 4_096 for n in range(64)})
    kernel.do(cmd.EditDeadLetter(dead, large))
    kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(everything=True)))
    assert restore(kernel, drained(kernel)).restored_count == 1


def test_an_item_that_no_shard_would_take_stays_and_is_named() -> None:
    kernel = Kernel()
    restore(kernel, [RestoredItem(sequence_id=7, payload=payload("a"), attempt=1 << 62, attempt_floor=(1 << 62) - 1)])
    kernel.fail(kernel.lease_one().token)
    kernel.enqueue(new_item("b"))
    assert [item.payload.resource_id for item in drained(kernel)] == ["b"]
    error = kernel.refusal(cmd.DrainItems())
    assert (type(error), error.details["sequenceId"]) == (FailedPrecondition, 7)
    assert kernel.lease_one().sequence_id == 7


def test_an_item_is_not_taken_for_its_twin_that_got_its_number() -> None:
    """Items of one moment for one resource are alike but for their numbers."""
    source, target = Kernel(), Kernel(start_ms=START_MS - 1)
    for _ in range(3):
        source.enqueue()
    target.enqueue()
    restored = [target.do(cmd.RestoreItems(source.do(cmd.DrainItems(1)).items)) for _ in range(3)]
    assert [(answer.restored_count, answer.duplicate_count) for answer in restored] == [(1, 0)] * 3
    assert len(target.state.items) == 4
