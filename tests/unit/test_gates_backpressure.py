"""Backpressure: intake closes at the high watermark, opens at the low one, and never changes too often."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core import views
from omnirelay.core.options import QueueOptions
from omnirelay.errors import InvalidArgument, ResourceExhausted
from tests.builders import WORKER, Kernel, new_item
from tests.gates import SECOND, fill, grant, signal, through_snapshot

COOLDOWN = 5 * SECOND


def shard(high: int = 10, low: int | None = None, **options: Any) -> Kernel:
    return Kernel(QueueOptions(high_watermark=high, low_watermark=low, **options))


def closed(pending: int = 10, **options: Any) -> Kernel:
    """A shard with backpressure, `pending` items, and its cooldown just begun."""
    kernel = shard(pending, **options)
    fill(kernel, pending)
    assert signal(kernel)
    return kernel


def complete(kernel: Kernel, count: int) -> None:
    for lease in grant(kernel, count):
        kernel.complete(lease.token)


def refused(kernel: Kernel, *request_ids: str | None) -> ResourceExhausted:
    items = [new_item(request_id=request_id) for request_id in request_ids or (None,)]
    error = kernel.refusal(cmd.EnqueueItems(items, WORKER))
    assert isinstance(error, ResourceExhausted)
    assert error.code == "error.resourcelease.backpressure"
    return error


# -- watermarks ----------------------------------------------------------------------------------


def test_backpressure_begins_at_the_high_watermark() -> None:
    kernel = shard(10)
    fill(kernel, 9)
    assert not signal(kernel)
    kernel.enqueue()
    assert signal(kernel)
    event = kernel.events[-1]
    assert isinstance(event, ev.BackpressureChanged)
    assert (event.active, event.pending, event.high_watermark, event.low_watermark) == (True, 10, 10, 5)


def test_nothing_is_refused_before_the_change_is_written_down() -> None:
    kernel = shard(10)
    fill(kernel, 15)
    kernel.enqueue()
    assert signal(kernel)
    refused(kernel)


def test_under_backpressure_enqueues_are_refused_with_what_a_caller_needs() -> None:
    error = refused(closed())
    assert error.retry_after_ms is not None
    assert (error.details["pendingCount"], error.details["highWatermark"], error.details["lowWatermark"]) == (10, 10, 5)


def test_pending_are_ready_and_delayed_items_and_not_leased_ones() -> None:
    kernel = shard(4)
    kernel.enqueue(*[new_item(str(n), delay_ms=SECOND if n % 2 else None) for n in range(6)])
    kernel.lease(3)
    assert not signal(kernel)
    kernel.enqueue(new_item(delay_ms=SECOND))
    assert signal(kernel)


def test_backpressure_ends_at_the_low_watermark_and_not_before() -> None:
    kernel = closed()
    kernel.pass_time(COOLDOWN)
    complete(kernel, 4)
    assert not signal(kernel)
    refused(kernel)
    complete(kernel, 1)
    assert signal(kernel)
    event = kernel.events[-1]
    assert isinstance(event, ev.BackpressureChanged)
    assert (event.active, event.pending) == (False, 5)
    kernel.enqueue()


def test_between_the_watermarks_nothing_changes_either_way() -> None:
    kernel = shard(10, 2)
    fill(kernel, 9)
    assert not signal(kernel)
    kernel.enqueue()
    assert signal(kernel)
    kernel.pass_time(COOLDOWN)
    complete(kernel, 7)
    assert not signal(kernel)
    complete(kernel, 1)
    assert signal(kernel)


def test_granting_alone_ends_backpressure() -> None:
    kernel = closed()
    kernel.pass_time(COOLDOWN)
    grant(kernel, 5)
    assert signal(kernel)


@pytest.mark.parametrize(
    ("options", "high", "low"),
    [
        (QueueOptions(), 800_000, 400_000),
        (QueueOptions(capacity=100), 80, 40),
        (QueueOptions(capacity=1), 1, 0),
        (QueueOptions(high_watermark=7), 7, 3),
        (QueueOptions(high_watermark=1), 1, 0),
        (QueueOptions(capacity=100, low_watermark=79), 80, 79),
        (QueueOptions(capacity=100, high_watermark=1_000), 1_000, 500),
    ],
)
def test_watermarks_that_are_not_set_follow_from_capacity(options: QueueOptions, high: int, low: int) -> None:
    signal_ = views.backpressure(Kernel(options).state, "s")
    assert (signal_.high_watermark, signal_.low_watermark) == (high, low)
    assert (signal_.active, signal_.pending, signal_.since, signal_.shard) == (False, 0, None, "s")


def test_the_smallest_shard_closes_and_opens() -> None:
    kernel = Kernel(QueueOptions(capacity=1, backpressure_cooldown_ms=0))
    kernel.enqueue()
    assert signal(kernel)
    refused(kernel)
    kernel.complete(kernel.lease_one().token)
    assert signal(kernel)
    kernel.enqueue()


def test_statistics_say_how_it_stands() -> None:
    kernel = closed()
    kernel.pass_time(SECOND)
    found = views.stats(kernel.state, kernel.now_ms).backpressure
    assert (found.active, found.pending, found.since) == (True, 10, kernel.now_ms - SECOND)


# -- cooldown ------------------------------------------------------------------------------------


def test_the_first_change_waits_for_nothing() -> None:
    kernel = shard(1)
    kernel.enqueue()
    due = kernel.state.next_due()
    assert due is not None
    assert due <= kernel.now_ms
    assert signal(kernel)


def test_a_queue_that_empties_within_the_cooldown_opens_when_it_ends() -> None:
    kernel = closed()
    since = kernel.now_ms
    kernel.pass_time(SECOND)
    complete(kernel, 10)
    assert not signal(kernel)
    refused(kernel)
    assert kernel.state.backpressure_due() == since + COOLDOWN
    kernel.now_ms = since + COOLDOWN - 1
    assert not signal(kernel)
    kernel.now_ms = since + COOLDOWN
    assert signal(kernel)
    kernel.enqueue()


def test_an_engine_is_told_when_a_delayed_change_is_due() -> None:
    kernel = Kernel(QueueOptions(high_watermark=10, backpressure_cooldown_ms=500))
    fill(kernel, 10)
    assert signal(kernel)
    since = kernel.now_ms
    kernel.do(cmd.DrainItems())
    assert kernel.state.next_due() == since + 500


def test_a_queue_that_fills_up_within_the_cooldown_closes_when_it_ends() -> None:
    kernel = closed()
    kernel.pass_time(COOLDOWN)
    complete(kernel, 5)
    assert signal(kernel)
    fill(kernel, 20)
    assert not signal(kernel)
    kernel.enqueue()
    kernel.pass_time(COOLDOWN)
    assert signal(kernel)
    refused(kernel)


def test_a_change_that_is_no_longer_wanted_when_the_cooldown_ends_is_not_made() -> None:
    kernel = closed()
    leases = grant(kernel, 10)
    assert not signal(kernel)
    for lease in leases:
        kernel.release(lease.token)
    kernel.pass_time(COOLDOWN)
    assert kernel.state.backpressure_due() is None
    assert not signal(kernel)
    refused(kernel)


def test_the_cooldown_can_be_left_out() -> None:
    kernel = closed(backpressure_cooldown_ms=0)
    complete(kernel, 10)
    assert signal(kernel)
    kernel.enqueue()


def test_the_cooldown_goes_on_over_a_restart() -> None:
    kernel = closed()
    since = kernel.now_ms
    complete(kernel, 10)
    kernel.restart(SECOND)
    assert not signal(kernel)
    refused(kernel)
    kernel.now_ms = since + COOLDOWN
    assert signal(kernel)


def test_a_snapshot_keeps_backpressure_and_its_cooldown() -> None:
    kernel = closed()
    due = kernel.now_ms + COOLDOWN
    complete(kernel, 10)
    kernel.state = through_snapshot(kernel.state)
    refused(kernel)
    assert kernel.state.backpressure_due() == due


def test_changes_are_never_closer_than_the_cooldown_and_never_lost() -> None:
    kernel = shard(20, 5, backpressure_cooldown_ms=1_000)
    random = Random(2)
    for _ in range(2_000):
        if random.random() < 0.5:
            try:
                kernel.enqueue(*[new_item(str(n)) for n in range(random.randint(1, 8))])
            except ResourceExhausted:
                assert kernel.state.backpressure
        else:
            for lease in kernel.lease(random.randint(1, 8)):
                kernel.complete(lease.token)
        signal(kernel)
        due = kernel.state.backpressure_due()
        assert due is None or due > kernel.now_ms
        kernel.pass_time(random.randint(0, 100))
    changes = [event for event in kernel.events if isinstance(event, ev.BackpressureChanged)]
    assert len(changes) > 10
    for earlier, later in pairwise(changes):
        assert later.timestamp - earlier.timestamp >= 1_000
        assert later.active is not earlier.active


# -- who passes ----------------------------------------------------------------------------------


def test_a_batch_is_refused_as_a_whole() -> None:
    refused(closed(), None, None, None)


def test_repeats_of_what_is_in_already_pass() -> None:
    kernel = shard(3)
    first, second, _ = kernel.enqueue(*[new_item(request_id=f"r{n}") for n in range(3)])
    assert signal(kernel)
    assert kernel.enqueue(new_item(request_id="r0")) == [first]
    assert kernel.enqueue(new_item(request_id="r1"), new_item(request_id="r0")) == [second, first]
    refused(kernel, "r0", "new")


def test_follow_ups_pass() -> None:
    kernel = shard(3)
    fill(kernel, 4)
    lease = kernel.lease_one()
    assert signal(kernel)
    answer = kernel.complete(lease.token, follow_ups=[new_item("x"), new_item("y")])
    assert answer.follow_up_ids == [5, 6]
    assert kernel.state.pending_count == 5


def test_retries_releases_and_expiries_pass() -> None:
    kernel = shard(3)
    fill(kernel, 6)
    failed, released, expired = kernel.lease(3)
    assert signal(kernel)
    kernel.fail(failed.token)
    kernel.release(released.token)
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(expired.sequence_id) == "ready"
    assert kernel.state.pending_count == 6


def test_restores_and_redrives_pass() -> None:
    kernel = shard(2, backpressure_cooldown_ms=0)
    dead = kernel.dead_item()
    kernel.enqueue(new_item("a"))
    page = kernel.do(cmd.DrainItems())
    kernel.enqueue(new_item("b"), new_item("c"))
    assert signal(kernel)
    assert kernel.do(cmd.RestoreItems(page.items)).restored_count == 1
    assert kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(sequence_ids=[dead]))).count == 1
    assert kernel.state.pending_count == 4


def test_leases_are_granted_under_backpressure() -> None:
    assert len(closed().lease(10)) == 10


# -- capacity and options ------------------------------------------------------------------------


def test_a_full_shard_is_refused_with_the_same_code() -> None:
    kernel = Kernel(QueueOptions(capacity=2, high_watermark=1_000))
    kernel.enqueue(new_item("a"), new_item("b"))
    assert not signal(kernel)
    refused(kernel)


def test_a_lower_high_watermark_closes_intake() -> None:
    kernel = shard(10)
    fill(kernel, 6)
    assert not signal(kernel)
    kernel.do(cmd.ChangeOptions(QueueOptions(high_watermark=5)))
    assert signal(kernel)
    refused(kernel)


def test_higher_watermarks_open_intake_after_the_cooldown() -> None:
    kernel = closed()
    kernel.do(cmd.ChangeOptions(QueueOptions(high_watermark=100)))
    assert not signal(kernel)
    kernel.pass_time(COOLDOWN)
    assert signal(kernel)
    kernel.enqueue()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"high_watermark": 0}, "highWatermark"),
        ({"high_watermark": -1}, "highWatermark"),
        ({"high_watermark": 1.5}, "highWatermark"),
        ({"high_watermark": "many"}, "highWatermark"),
        ({"high_watermark": True}, "highWatermark"),
        ({"low_watermark": -1}, "lowWatermark"),
        ({"low_watermark": 0.5}, "lowWatermark"),
        ({"high_watermark": 5, "low_watermark": 5}, "lowWatermark"),
        ({"high_watermark": 5, "low_watermark": 6}, "lowWatermark"),
        ({"capacity": 100, "low_watermark": 80}, "lowWatermark"),
        ({"backpressure_cooldown_ms": -1}, "backpressureCooldownMs"),
        ({"backpressure_cooldown_ms": None}, "backpressureCooldownMs"),
        ({"backpressure_cooldown_ms": 5.0}, "backpressureCooldownMs"),
    ],
)
def test_a_wrong_option_of_backpressure_is_named_when_it_is_built(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        QueueOptions(**fields)
    assert (error.value.code, error.value.details["field"]) == (f"resourcelease.{field}.invalid", field)
