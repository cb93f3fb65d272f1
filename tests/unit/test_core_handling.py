"""What operators do: cancel, drain, restore, dead letters."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from omnirelay.core import commands as cmd
from omnirelay.core import views
from omnirelay.core.events import RestoredItem
from omnirelay.core.intake import TIME_MAX_MS
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import OwnershipToken
from omnirelay.core.snapshot import digest
from omnirelay.errors import InvalidArgument, NotFound, ResourceExhausted
from tests.builders import WORKER, Kernel, new_item, payload

ALL = cmd.DeadLetterSelection(everything=True)


def named(*ids: int) -> cmd.DeadLetterSelection:
    return cmd.DeadLetterSelection(sequence_ids=list(ids))


# -- cancel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [None, 5_000])
def test_a_pending_item_is_cancelled_at_once(delay_ms: int | None) -> None:
    kernel = Kernel()
    kernel.enqueue(new_item(delay_ms=delay_ms))
    answer = kernel.do(cmd.CancelItem(1, reason="not wanted"))
    assert (answer.success, answer.state, answer.cancel_requested) == (True, "cancelled", False)
    kernel.pass_time(10_000)
    assert kernel.lease(1) == []


def test_a_leased_item_stays_with_its_owner_until_the_owner_answers() -> None:
    kernel = Kernel()
    kernel.enqueue()
    granted = kernel.lease_one()
    answer = kernel.do(cmd.CancelItem(1))
    assert (answer.success, answer.state, answer.cancel_requested) == (True, "leased", True)
    assert kernel.do(cmd.CancelItem(1)) == answer
    assert kernel.kinds(1) == ["CancelRequested"]
    assert kernel.fail(granted.token).state == "cancelled"
    assert kernel.state_of(1) == "cancelled"


@pytest.mark.parametrize("verb", ["fail", "release", "expiry"])
def test_a_wish_to_cancel_is_granted_when_the_lease_ends(verb: str) -> None:
    kernel = Kernel()
    kernel.enqueue()
    granted = kernel.lease_one()
    kernel.do(cmd.CancelItem(1, reason="not wanted"))
    if verb == "expiry":
        kernel.pass_time(30_000)
    else:
        first = getattr(kernel, verb)(granted.token)
        assert first.state == "cancelled"
        assert getattr(kernel, verb)(granted.token) == first
    assert kernel.state_of(1) == "cancelled"
    trail = kernel.item(1).trail
    assert trail is not None
    assert trail.cancel_reason == "not wanted"


def test_force_takes_the_lease_away() -> None:
    kernel = Kernel()
    kernel.enqueue()
    granted = kernel.lease_one()
    assert kernel.do(cmd.CancelItem(1, force=True)).state == "cancelled"
    assert kernel.refusal(cmd.CompleteItem(granted.token)).code == "error.taskqueue.lease_inactive"


def test_an_item_that_has_ended_cannot_be_cancelled_and_says_how_it_ended() -> None:
    kernel = Kernel()
    kernel.enqueue()
    kernel.complete(kernel.lease_one().token)
    answer = kernel.do(cmd.CancelItem(1))
    assert (answer.success, answer.state) == (False, "completed")


@pytest.mark.parametrize("unknown", [999, 0, -1, "1", None, True, []])
def test_an_unknown_item_is_not_found(unknown: Any) -> None:
    error = Kernel().refusal(cmd.CancelItem(unknown))
    assert isinstance(error, NotFound)
    assert error.code == "error.resourcelease.unknown_item"


# -- drain and restore ---------------------------------------------------------------------------


def test_a_drain_takes_pending_items_in_pages_and_leaves_leased_ones() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("leased"), new_item("a"), new_item("b"), new_item("c", delay_ms=1_000))
    granted = kernel.lease_one()
    first = kernel.do(cmd.DrainItems(2))
    assert ([item.payload.resource_id for item in first.items], first.remaining_count) == (["a", "b"], 1)
    second = kernel.do(cmd.DrainItems(2))
    assert ([item.payload.resource_id for item in second.items], second.remaining_count) == (["c"], 0)
    assert kernel.do(cmd.DrainItems()).items == []
    kernel.complete(granted.token)
    kernel.enqueue()


def test_what_was_drained_can_be_restored_with_its_history() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a", request_id="r1", priority=7, weight=3, max_attempts=4))
    token = kernel.lease_one().token
    kernel.heartbeat(token, progress=cmd.Progress(fraction=0.5))
    kernel.fail(token, reason="boom")
    enqueued_at = kernel.item(1).enqueued_at
    kernel.pass_time(5_000)
    page = msgspec.json.decode(msgspec.json.encode(kernel.do(cmd.DrainItems()).items), type=list[RestoredItem])
    answer = kernel.do(cmd.RestoreItems(page))
    assert (answer.restored_count, answer.duplicate_count) == (1, 0)
    granted = kernel.lease_one()
    assert (granted.sequence_id, granted.attempt, granted.priority) == (1, 2, 7)
    assert granted.enqueued_at == enqueued_at
    assert granted.last_error is not None
    assert granted.progress == b'{"fraction":0.5}'
    assert kernel.enqueue(new_item("a", request_id="r1", priority=7, weight=3, max_attempts=4)) == [1]


def test_ids_that_are_there_already_are_counted_and_not_doubled() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), new_item("b"))
    page = kernel.do(cmd.DrainItems()).items
    kernel.do(cmd.RestoreItems(page[:1]))
    answer = kernel.do(cmd.RestoreItems([*page, page[1]]))
    assert (answer.restored_count, answer.duplicate_count) == (1, 2)
    assert kernel.state.pending_count == 2
    nothing = kernel.do(cmd.RestoreItems(page))
    assert (nothing.restored_count, nothing.duplicate_count) == (0, 2)


def test_an_item_whose_request_id_stands_for_another_is_not_restored() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a", request_id="r1"))
    foreign = RestoredItem(sequence_id=77, payload=payload("a", request_id="r1"))
    answer = kernel.do(cmd.RestoreItems([foreign], WORKER))
    assert (answer.restored_count, answer.duplicate_count) == (0, 1)


def test_a_restore_may_use_the_reserve_and_no_more() -> None:
    kernel = Kernel(QueueOptions(capacity=2, reserve=1))
    kernel.enqueue(new_item("a"), new_item("b"))
    foreign = [RestoredItem(sequence_id=number, payload=payload()) for number in (10, 11)]
    assert isinstance(kernel.refusal(cmd.RestoreItems(foreign)), ResourceExhausted)
    kernel.do(cmd.RestoreItems(foreign[:1]))
    assert kernel.state.live_count == 3


def test_an_item_goes_back_where_its_request_id_is_remembered_still() -> None:
    kernel = Kernel(QueueOptions(request_id_max=1))
    kernel.enqueue(new_item("a", request_id="r1"))
    page = kernel.do(cmd.DrainItems()).items
    assert kernel.do(cmd.RestoreItems(page)).restored_count == 1


def test_fences_from_another_log_are_passed_before_anything_is_granted() -> None:
    kernel = Kernel()
    foreign = RestoredItem(
        sequence_id=5, payload=payload(), attempt=2, last_ownership_token=OwnershipToken(5, 1, "elsewhere", 1_000)
    )
    kernel.do(cmd.RestoreItems([foreign]))
    assert kernel.kinds(2) == ["GenerationStarted", "RestoreSnapshot"]
    assert kernel.lease_one().fence > 1_000 + (1 << 32)
    assert kernel.enqueue() == [6]


def test_fences_this_log_has_passed_start_no_generation() -> None:
    kernel = Kernel()
    kernel.enqueue()
    kernel.release(kernel.lease_one().token)
    kernel.do(cmd.RestoreItems(kernel.do(cmd.DrainItems()).items))
    assert kernel.state.generation == 1


def test_items_drained_after_the_highest_fence_came_in_can_be_restored() -> None:
    """A fence is taken up to a limit; what the shard grants from there on must be within it, too."""
    kernel = Kernel()
    foreign = RestoredItem(
        sequence_id=5, payload=payload(), last_ownership_token=OwnershipToken(5, 1, "elsewhere", (1 << 53) - 1)
    )
    try:
        kernel.do(cmd.RestoreItems([foreign]))
    except InvalidArgument:
        return
    kernel.release(kernel.lease_one().token)
    page = kernel.do(cmd.DrainItems()).items
    assert kernel.do(cmd.RestoreItems(page)).restored_count == 1


# -- dead letters --------------------------------------------------------------------------------


def test_a_redriven_item_has_fresh_attempts_and_a_rising_attempt_number() -> None:
    kernel = Kernel(QueueOptions(max_delivery_attempts=2))
    kernel.enqueue()
    for _ in range(2):
        kernel.fail(kernel.lease_one().token)
    assert kernel.do(cmd.RedriveItems(ALL)).count == 1
    for attempt in (3, 4):
        granted = kernel.lease_one()
        assert granted.attempt == attempt
        kernel.fail(granted.token)
    assert kernel.state_of(1) == "dead"


def test_dead_letters_take_no_room_and_a_redrive_uses_the_reserve() -> None:
    kernel = Kernel(QueueOptions(capacity=1, reserve=1))
    ids = [kernel.dead_item(str(n)) for n in range(3)]
    kernel.enqueue()
    assert isinstance(kernel.refusal(cmd.RedriveItems(named(*ids))), ResourceExhausted)
    answer = kernel.do(cmd.RedriveItems(ALL))
    assert answer.count == 1
    assert answer.next is not None, "there is more to redrive"
    assert kernel.state.live_count == 2
    assert isinstance(kernel.refusal(cmd.RedriveItems(ALL)), ResourceExhausted)


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (named(3, 1), {1, 3}),
        (cmd.DeadLetterSelection(resource_type="view"), {2}),
        (cmd.DeadLetterSelection(error_code="app.broken"), {1, 2, 3}),
        (cmd.DeadLetterSelection(error_code="app.other"), set()),
        (ALL, {1, 2, 3}),
    ],
)
def test_dead_letters_are_chosen_by_id_type_error_or_all(selection: cmd.DeadLetterSelection, chosen: set[int]) -> None:
    for command, state in ((cmd.RedriveItems(selection), "ready"), (cmd.PurgeItems(selection), "unknown")):
        kernel = Kernel()
        kernel.dead_item("a")
        kernel.dead_item("b", resource_type="view")
        kernel.dead_item("c")
        assert kernel.do(command).count == len(chosen)
        assert {each for each in (1, 2, 3) if kernel.state_of(each) == state} == chosen


def test_a_selection_goes_on_where_the_step_before_stopped() -> None:
    kernel = Kernel()
    for number in range(5):
        kernel.dead_item(str(number))
    selection = cmd.DeadLetterSelection(everything=True, items_max=2)
    counts = []
    while True:
        answer = kernel.do(cmd.RedriveItems(selection))
        counts.append(answer.count)
        if answer.next is None:
            break
        selection.after = answer.next
    assert counts == [2, 2, 1]


def test_a_redrive_at_a_rate_spreads_its_items() -> None:
    kernel = Kernel()
    for number in range(3):
        kernel.dead_item(str(number))
    kernel.do(cmd.RedriveItems(ALL, rate_per_second=2, already=1))
    waits = [item.not_before - kernel.now_ms for item in kernel.state.delayed if item.not_before is not None]
    assert waits == [500, 1_000, 1_500]


def test_a_redrive_that_takes_for_ever_ends_with_the_last_instant_there_is() -> None:
    kernel = Kernel()
    sequence_id = kernel.dead_item()
    kernel.do(cmd.RedriveItems(ALL, rate_per_second=0.001, already=1 << 40))
    assert kernel.item(sequence_id).not_before == TIME_MAX_MS


def test_a_living_item_cannot_be_redriven_purged_or_edited() -> None:
    kernel = Kernel()
    kernel.enqueue()
    assert isinstance(kernel.refusal(cmd.RedriveItems(named(1))), NotFound)
    assert isinstance(kernel.refusal(cmd.PurgeItems(named(1))), NotFound)
    error = kernel.refusal(cmd.EditDeadLetter(1, payload()))
    assert error.code == "resourcelease.sequenceId.invalid"
    assert isinstance(kernel.refusal(cmd.EditDeadLetter(2, payload())), NotFound)


def test_an_edited_dead_letter_is_redriven_with_its_new_payload() -> None:
    kernel = Kernel()
    kernel.dead_item("a", body=b"broken")
    kernel.do(cmd.EditDeadLetter(1, payload("a", body=b"mended!", attributes={"k": "v"})))
    assert kernel.state.dead.bytes == 9
    kernel.do(cmd.RedriveItems(named(1)))
    assert kernel.lease_one().payload.body == b"mended!"
    assert kernel.state.live_bytes == 9


def test_an_edit_leaves_the_request_id_of_a_dead_letter_as_it_is() -> None:
    kernel = Kernel()
    kernel.dead_item("a", request_id="r1")
    for named in (None, "r1"):
        kernel.do(cmd.EditDeadLetter(1, payload("mended", request_id=named)))
        assert kernel.item(1).payload.request_id == "r1"
    assert kernel.enqueue(new_item("a", request_id="r1")) == [1]
    error = kernel.refusal(cmd.EditDeadLetter(1, payload("mended", request_id="r2")))
    assert (error.code, error.details["field"]) == ("resourcelease.requestId.invalid", "requestId")


def test_an_edit_gives_no_request_id_to_an_item_that_nobody_finds_by_one() -> None:
    kernel = Kernel()
    kernel.dead_item("a")
    error = kernel.refusal(cmd.EditDeadLetter(1, payload("mended", request_id="r1")))
    assert error.code == "resourcelease.requestId.invalid"


@pytest.mark.parametrize("bad", [None, payload(""), payload(body=b"x" * (1 << 21))])
def test_a_dead_letter_is_not_edited_into_something_bad(bad: Any) -> None:
    kernel = Kernel()
    kernel.dead_item()
    assert isinstance(kernel.refusal(cmd.EditDeadLetter(1, bad)), InvalidArgument)


def test_a_purged_item_gives_its_request_id_back_after_its_time() -> None:
    kernel = Kernel(QueueOptions(request_id_retention_ms=0, request_id_retention_max_ms=1_000))
    kernel.dead_item("a", request_id="r1")
    assert kernel.enqueue(new_item("a", request_id="r1")) == [1]
    kernel.do(cmd.PurgeItems(ALL))
    kernel.pass_time(1_000)
    assert kernel.enqueue(new_item("a", request_id="r1")) == [2]


# -- looking -------------------------------------------------------------------------------------


def test_whoever_looks_at_an_item_can_change_nothing_of_it() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a", attributes={"tenant": "x"}), new_item("b", attributes={"tenant": "x"}))
    looked_at = [views.view(kernel.item(1)), *views.peek(kernel.state).items]
    for seen in looked_at:
        assert seen.payload.attributes is not None
        seen.payload.attributes.clear()
        seen.payload.resource_type = "another"
    assert kernel.do(cmd.CancelItem(1)).state == "cancelled"
    assert kernel.lease_one().payload == payload("b", attributes={"tenant": "x"})
    assert digest(kernel.replayed()) == kernel.digest()


MIB = 1024 * 1024


def in_pages(kernel: Kernel, state_name: str) -> list[list[int]]:
    """The ids of all items in that state, page by page."""
    pages: list[list[int]] = []
    after: int | None = 0
    while after is not None:
        page = views.peek(kernel.state, state_name=state_name, after=after, items_max=1_000)
        pages.append([item.sequence_id for item in page.items])
        after = page.next
    return pages


@pytest.mark.parametrize("state_name", ["ready", "leased", "completed", "dead"])
def test_a_page_ends_with_the_item_that_makes_it_too_large(state_name: str) -> None:
    kernel = Kernel()
    body = bytes(MIB // 2 if state_name == "completed" else MIB)
    for number in range(10):
        kernel.enqueue(new_item(str(number), body=body))
    if state_name != "ready":
        for granted in kernel.lease(7) + kernel.lease(3):
            if state_name == "completed":
                kernel.complete(granted.token, result=bytes(MIB // 2))
            elif state_name == "dead":
                kernel.fail(granted.token, mode="dead")
    assert in_pages(kernel, state_name) == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]


def test_a_page_counts_what_it_shows_and_not_what_it_passes_over() -> None:
    kernel = Kernel()
    for number in range(10):
        kernel.enqueue(new_item(str(number), resource_type="large", body=bytes(MIB)), new_item(resource_type="small"))
    page = views.peek(kernel.state, resource_type="small")
    assert (len(page.items), page.next) == (10, None)
