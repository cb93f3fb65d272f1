"""Coming in: order, delays, room, and request ids."""

from __future__ import annotations

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem
from omnirelay.errors import AlreadyExists, InvalidArgument, RequestIdsFull, ResourceExhausted
from tests.builders import WORKER, Kernel, new_item

ALICE, BOB = Caller(principal="alice"), Caller(principal="bob")


def test_items_get_rising_ids_and_are_counted() -> None:
    kernel = Kernel()
    assert kernel.enqueue(new_item("a"), new_item("b")) == [1, 2]
    answer = kernel.do(cmd.EnqueueItems([new_item("c")]))
    assert [result.sequence_id for result in answer.results] == [3]
    assert (answer.pending_count, answer.active_lease_count) == (3, 0)


def test_items_are_leased_in_the_order_they_came() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item(str(n)) for n in range(5)])
    assert [granted.payload.resource_id for granted in kernel.lease(10)] == ["0", "1", "2", "3", "4"]


def test_a_delayed_item_waits_for_its_time() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("late", delay_ms=1_000), new_item("later", not_before_ms=kernel.now_ms + 2_000))
    assert kernel.lease(2) == []
    kernel.pass_time(999)
    assert kernel.lease(2) == []
    kernel.pass_time(1)
    assert kernel.lease_one().payload.resource_id == "late"
    kernel.pass_time(1_000)
    assert kernel.lease_one().payload.resource_id == "later"


def test_a_time_that_has_passed_is_no_delay() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item(delay_ms=0), new_item(not_before_ms=kernel.now_ms))
    assert kernel.state.ready.live == 2


def test_an_item_keeps_what_it_came_with() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a", body=b"body", attributes={"tenant": "acme"}, priority=9, weight=3))
    granted = kernel.lease_one()
    assert (granted.payload.body, granted.payload.attributes) == (b"body", {"tenant": "acme"})
    assert (granted.priority, granted.enqueued_at, granted.attempt) == (9, kernel.now_ms, 1)
    assert granted.payload.partition == "a"
    assert granted.payload.encoding == "application/octet-stream"


# -- room ----------------------------------------------------------------------------------------


def test_a_full_shard_refuses_and_advises_to_come_again() -> None:
    kernel = Kernel(QueueOptions(capacity=2))
    kernel.enqueue(new_item("a"), new_item("b"))
    error = kernel.refusal(cmd.EnqueueItems([new_item("c")]))
    assert isinstance(error, ResourceExhausted)
    assert error.code == "error.resourcelease.backpressure"
    assert error.retry_after_ms is not None


def test_leased_and_delayed_items_take_room_and_ended_ones_do_not() -> None:
    kernel = Kernel(QueueOptions(capacity=2))
    kernel.enqueue(new_item("a"), new_item("b", delay_ms=1_000))
    granted = kernel.lease_one()
    assert isinstance(kernel.refusal(cmd.EnqueueItems([new_item()])), ResourceExhausted)
    kernel.complete(granted.token)
    kernel.enqueue()


def test_a_batch_that_does_not_fit_is_refused_whole() -> None:
    kernel = Kernel(QueueOptions(capacity=2))
    kernel.refusal(cmd.EnqueueItems([new_item(str(n)) for n in range(3)]))
    assert kernel.state.live_count == 0


def test_bodies_and_attributes_count_against_the_bytes() -> None:
    kernel = Kernel(QueueOptions(capacity_bytes=10))
    kernel.enqueue(new_item(body=b"12345", attributes={"ab": "cd"}))
    assert kernel.state.live_bytes == 9
    assert isinstance(kernel.refusal(cmd.EnqueueItems([new_item(body=b"12")])), ResourceExhausted)
    kernel.enqueue(new_item(body=b"1"))


def test_a_repeat_needs_no_room() -> None:
    kernel = Kernel(QueueOptions(capacity=1, capacity_bytes=10))
    kernel.enqueue(new_item("a", body=b"0123456789", request_id="r1"))
    assert kernel.enqueue(new_item("a", body=b"0123456789", request_id="r1")) == [1]


def test_a_repeat_beside_a_new_item_needs_no_room_either() -> None:
    kernel = Kernel(QueueOptions(capacity=2, capacity_bytes=15))
    kernel.enqueue(new_item("a", body=b"0123456789", request_id="r1"))
    assert kernel.enqueue(new_item("a", body=b"0123456789", request_id="r1"), new_item("b", body=b"1")) == [1, 2]


def test_a_repeat_beside_a_follow_up_needs_no_room_either() -> None:
    kernel = Kernel(QueueOptions(capacity=3, capacity_bytes=15, reserve_bytes=0))
    kernel.enqueue(new_item("parent"), new_item("a", body=b"0123456789", request_id="r1"))
    follow_ups = [new_item("a", body=b"0123456789", request_id="r1"), new_item("b", body=b"1")]
    answer = kernel.complete(kernel.lease_one().token, caller=WORKER, follow_ups=follow_ups)
    assert answer.follow_up_ids == [2, 3]


# -- request ids ---------------------------------------------------------------------------------


def test_the_same_request_gets_the_first_item_whatever_became_of_it() -> None:
    kernel = Kernel()
    item = new_item("a", body=b"x", request_id="r1")
    assert kernel.enqueue(item) == [1]
    answer = kernel.do(cmd.EnqueueItems([item], WORKER))
    assert (answer.results[0].sequence_id, answer.results[0].duplicate) == (1, True)
    kernel.complete(kernel.lease_one().token)
    assert kernel.enqueue(item) == [1]
    assert kernel.state.pending_count == 0


def test_a_repeat_inside_one_batch_is_recognised() -> None:
    kernel = Kernel()
    assert kernel.enqueue(new_item("a", request_id="r1"), new_item("b"), new_item("a", request_id="r1")) == [1, 2, 1]


def test_defaults_written_out_are_the_same_payload() -> None:
    kernel = Kernel()
    plain = new_item("a", request_id="r1")
    kernel.enqueue(plain)
    written_out = new_item("a", request_id="r1")
    written_out.payload.partition_key = "a"
    written_out.payload.payload_encoding = "application/octet-stream"
    written_out.payload.attributes = {}
    assert kernel.enqueue(written_out) == [1]


def test_request_ids_belong_to_their_principal() -> None:
    kernel = Kernel()
    assert kernel.enqueue(new_item("a", request_id="r1"), caller=ALICE) == [1]
    assert kernel.enqueue(new_item("b", request_id="r1"), caller=BOB) == [2]
    assert kernel.enqueue(new_item("c", request_id="r1"), caller=Caller(peer_id="alice")) == [3]
    assert isinstance(kernel.refusal(cmd.EnqueueItems([new_item("b", request_id="r1")], ALICE)), AlreadyExists)


def test_a_request_id_is_forgotten_after_its_longest_time_and_not_before() -> None:
    kernel = Kernel(QueueOptions(request_id_retention_ms=1_000, request_id_retention_max_ms=5_000))
    kernel.enqueue(new_item("a", request_id="r1"))
    kernel.pass_time(60_000)
    kernel.complete(kernel.lease_one().token)
    kernel.pass_time(4_999)
    assert kernel.enqueue(new_item("a", request_id="r1")) == [1]
    kernel.pass_time(1)
    assert kernel.enqueue(new_item("a", request_id="r1")) == [2]


def test_a_full_table_refuses_ids_and_takes_items_without() -> None:
    kernel = Kernel(QueueOptions(request_id_max=1))
    kernel.enqueue(new_item("a", request_id="r1"))
    error = kernel.refusal(cmd.EnqueueItems([new_item("b", request_id="r2")]))
    assert isinstance(error, RequestIdsFull)
    assert error.details["field"] == "requestId"
    kernel.enqueue(new_item("b"))
    assert kernel.enqueue(new_item("a", request_id="r1")) == [1]


def test_a_full_table_gives_up_the_oldest_id_whose_guaranteed_time_is_over() -> None:
    kernel = Kernel(QueueOptions(request_id_max=2, request_id_retention_ms=1_000))
    kernel.enqueue(new_item("a", request_id="r1"), new_item("b", request_id="r2"))
    for granted in kernel.lease(2):
        kernel.complete(granted.token)
        kernel.pass_time(100)
    kernel.pass_time(799)
    assert isinstance(kernel.refusal(cmd.EnqueueItems([new_item("c", request_id="r3")])), ResourceExhausted)
    kernel.pass_time(1)
    kernel.enqueue(new_item("c", request_id="r3"))
    assert kernel.enqueue(new_item("b", request_id="r2")) == [2], "the younger one is still known"
    kernel.pass_time(100)
    assert kernel.enqueue(new_item("a", request_id="r1")) == [4], "the older one is not"


def test_an_item_that_lives_keeps_its_request_id_for_ever() -> None:
    kernel = Kernel(QueueOptions(request_id_max=1, request_id_retention_ms=0, request_id_retention_max_ms=0))
    kernel.enqueue(new_item("a", request_id="r1"))
    kernel.pass_time(10**9)
    assert kernel.enqueue(new_item("a", request_id="r1")) == [1]


def test_the_table_of_request_ids_never_grows_beyond_its_limit() -> None:
    """Draining and restoring an item within one millisecond must not make its id count twice."""
    kernel = Kernel(QueueOptions(request_id_max=3, request_id_retention_ms=0))
    kernel.enqueue(new_item("a", request_id="r0"))
    kernel.complete(kernel.lease_one().token)
    kernel.enqueue(new_item("a", request_id="r1"))
    for _ in range(2):
        page = kernel.do(cmd.DrainItems())
        kernel.do(cmd.RestoreItems(page.items))
    kernel.do(cmd.DrainItems())
    kernel.enqueue(*[new_item(name, request_id=name) for name in ("r2", "r3", "r4")])
    assert isinstance(kernel.refusal(cmd.EnqueueItems([new_item(request_id="r5")])), ResourceExhausted)
    assert len(kernel.state.requests) == 3


@pytest.mark.parametrize(
    ("items", "field", "limit"),
    [
        ([new_item(request_id=f"r{number}") for number in range(4)], "requestId", 3),
        ([new_item() for _ in range(6)], "items", 5),
        ([new_item(body=b"x" * 50), new_item(body=b"x" * 51)], "items", 100),
        ([new_item(body=b"x" * 101)], "payload", 100),
    ],
)
def test_what_would_not_even_fit_an_empty_shard_is_the_callers_mistake(
    items: list[NewItem], field: str, limit: int
) -> None:
    kernel = Kernel(QueueOptions(capacity=5, capacity_bytes=100, request_id_max=3))
    error = kernel.refusal(cmd.EnqueueItems(items))
    assert isinstance(error, InvalidArgument)
    assert (error.details["field"], error.details["limit"]) == (field, limit)
    assert error.message.startswith(field)


def test_repeats_do_not_make_a_batch_too_large() -> None:
    kernel = Kernel(QueueOptions(capacity=2, capacity_bytes=10, request_id_max=2))
    batch = [new_item("a", body=b"12345", request_id="r1")] * 3 + [new_item("b", body=b"12345", request_id="r2")]
    assert kernel.enqueue(*batch) == [1, 1, 1, 2]
    assert kernel.enqueue(*batch) == [1, 1, 1, 2]


@pytest.mark.parametrize("restarts", [0, 1])
def test_request_ids_survive_a_restart(restarts: int) -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a", request_id="r1"))
    for _ in range(restarts):
        kernel.restart()
    assert kernel.enqueue(new_item("a", request_id="r1")) == [1]


def test_a_completion_that_adds_nothing_is_taken_although_capacity_was_lowered_below_what_is_there() -> None:
    kernel = Kernel(QueueOptions(capacity=3, reserve=0))
    kernel.enqueue(new_item("a"), new_item("b"), new_item("c"))
    token = kernel.lease_one().token
    kernel.do(cmd.ChangeOptions(QueueOptions(capacity=1, reserve=0)))
    assert kernel.complete(token, caller=WORKER, follow_ups=[new_item("d")]).follow_up_ids == [4]
