"""Keys: one lease per key, the order within a key, and what a key with many waiting items costs the others."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import GrantedLease
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.errors import InvalidArgument
from tests.builders import Kernel, new_item
from tests.gates import ENDS, SECOND, fill, grant_and_complete, ids, in_partition, operations

EXCLUSIVE = QueueOptions(ordering="exclusive")
FIFO = QueueOptions(ordering="fifo")
FIFO_PASS = QueueOptions(ordering="fifo", fifo_head="pass")
ORDERED = pytest.mark.parametrize("options", [EXCLUSIVE, FIFO, FIFO_PASS], ids=["exclusive", "fifo", "fifo pass"])


# -- one lease per key ---------------------------------------------------------------------------


def test_without_ordering_items_of_one_resource_are_leased_together() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), new_item("a"), new_item("a"))
    assert len(kernel.lease(10)) == 3


@ORDERED
def test_one_item_of_a_key_is_leased_at_a_time(options: QueueOptions) -> None:
    kernel = Kernel(options)
    for name in ("a", "b", "a", "c", "b", "a"):
        kernel.enqueue(new_item(name))
    assert ids(kernel.lease(10)) == [1, 2, 4]
    assert kernel.lease(10) == []


@ORDERED
@pytest.mark.parametrize("end", ENDS)
def test_the_next_item_of_a_key_stands_when_the_lease_ends(options: QueueOptions, end: str) -> None:
    kernel = Kernel(options)
    kernel.enqueue(new_item("a", max_attempts=1), new_item("a"), new_item("a"))
    lease = kernel.lease_one()
    assert kernel.lease(5) == []
    ENDS[end](kernel, lease)
    assert ids(kernel.lease(5)) == [2]


@ORDERED
def test_an_item_that_is_released_or_fails_stands_again_before_those_behind_it(options: QueueOptions) -> None:
    kernel = Kernel(options)
    kernel.enqueue(new_item("a"), new_item("a"))
    kernel.release(kernel.lease_one().token)
    kernel.fail(kernel.lease_one().token)
    assert ids(kernel.lease(5)) == [1]


@ORDERED
def test_a_lease_that_ran_out_holds_its_key_until_it_is_expired(options: QueueOptions) -> None:
    kernel = Kernel(options)
    kernel.enqueue(new_item("a", max_attempts=1), new_item("a"))
    kernel.heartbeat(kernel.lease_one().token)
    kernel.pass_time(60 * SECOND, upkeep=False)
    assert kernel.lease(5) == []
    kernel.do(cmd.ExpireLeases())
    assert ids(kernel.lease(5)) == [2]


@ORDERED
def test_an_item_that_waits_or_stands_can_be_cancelled(options: QueueOptions) -> None:
    kernel = Kernel(options)
    kernel.enqueue(*[new_item("a") for _ in range(5)])
    for gone in (1, 3):
        kernel.do(cmd.CancelItem(gone))
    assert ids(grant_and_complete(kernel, 3)) == [2, 4, 5]
    assert kernel.lease(1) == []


@ORDERED
def test_a_key_that_was_emptied_serves_the_next_item_as_if_it_were_new(options: QueueOptions) -> None:
    kernel = Kernel(options)
    for _ in range(3):
        (sequence_id,) = kernel.enqueue(new_item("a"))
        assert ids(grant_and_complete(kernel, 1)) == [sequence_id]


@ORDERED
def test_a_follow_up_on_the_same_key_stands_when_its_parent_completes(options: QueueOptions) -> None:
    kernel = Kernel(options)
    kernel.enqueue(new_item("a"))
    kernel.complete(kernel.lease_one().token, follow_ups=[new_item("a"), new_item("a")])
    assert ids(kernel.lease(5)) == [2]


def test_drained_and_restored_items_stand_in_their_old_order() -> None:
    kernel = Kernel(FIFO)
    kernel.enqueue(*[new_item("a") for _ in range(4)])
    page = kernel.do(cmd.DrainItems())
    assert kernel.lease(5) == []
    kernel.enqueue(new_item("a"))
    kernel.do(cmd.RestoreItems(list(reversed(page.items))))
    assert ids(grant_and_complete(kernel, 5)) == [1, 2, 3, 4, 5]


# -- what a key is -------------------------------------------------------------------------------


def test_the_same_id_in_two_types_is_two_keys() -> None:
    kernel = Kernel(EXCLUSIVE)
    kernel.enqueue(new_item("a"), new_item("a", resource_type="view"), new_item("a"))
    assert sorted(ids(kernel.lease(5))) == [1, 2]


def test_a_partition_is_one_key_across_types_and_ids() -> None:
    kernel = Kernel(QueueOptions(ordering="exclusive", key="partition"))
    kernel.enqueue(
        in_partition("p", "a", "table"),
        in_partition("p", "b", "view"),
        in_partition("q", "a", "table"),
    )
    assert ids(kernel.lease(5)) == [1, 3]
    kernel.complete(kernel.item(1).lease.token)  # type: ignore[union-attr]
    assert ids(kernel.lease(5)) == [2]


def test_an_item_without_a_partition_has_its_id_for_one() -> None:
    kernel = Kernel(QueueOptions(ordering="exclusive", key="partition"))
    kernel.enqueue(in_partition("orders", "x"), new_item("orders"), new_item("orders", resource_type="view"))
    assert ids(kernel.lease(5)) == [1]


def test_partitions_are_no_keys_while_resources_are() -> None:
    kernel = Kernel(EXCLUSIVE)
    kernel.enqueue(in_partition("p", "a"), in_partition("p", "b"))
    assert len(kernel.lease(5)) == 2


# -- order within a key --------------------------------------------------------------------------


def test_exclusive_keys_let_lower_classes_first() -> None:
    kernel = Kernel(EXCLUSIVE)
    kernel.enqueue(new_item("a", priority=5), new_item("a", priority=9), new_item("a", priority=1))
    assert ids(grant_and_complete(kernel, 3)) == [3, 1, 2]


def test_an_item_of_a_lower_class_takes_the_place_of_the_one_that_stood() -> None:
    kernel = Kernel(EXCLUSIVE)
    kernel.enqueue(new_item("a", priority=5))
    kernel.enqueue(new_item("b", priority=6), new_item("a", priority=0))
    assert ids(kernel.lease(5)) == [3, 2]
    assert kernel.state_of(1) == "ready"


def test_fifo_keys_keep_the_order_whatever_the_classes() -> None:
    kernel = Kernel(FIFO)
    kernel.enqueue(new_item("a", priority=9), new_item("a", priority=0), new_item("b", priority=5))
    assert ids(kernel.lease(5)) == [3, 1]
    kernel.complete(kernel.item(1).lease.token)  # type: ignore[union-attr]
    assert ids(kernel.lease(5)) == [2]


def test_a_failed_head_with_a_delay_holds_a_fifo_key() -> None:
    kernel = Kernel(FIFO)
    kernel.enqueue(new_item("a"), new_item("a"), new_item("b"))
    head, other = kernel.lease(5)
    kernel.complete(other.token)
    kernel.fail(head.token, delay_ms=5 * SECOND)
    assert kernel.lease(5) == []
    kernel.pass_time(5 * SECOND - 1)
    assert kernel.lease(5) == []
    kernel.pass_time(1)
    assert ids(grant_and_complete(kernel, 2)) == [1, 2]


def test_a_failed_head_with_a_delay_lets_others_pass_when_told_so() -> None:
    kernel = Kernel(FIFO_PASS)
    kernel.enqueue(new_item("a"), new_item("a"), new_item("a"))
    kernel.fail(kernel.lease_one().token, delay_ms=5 * SECOND)
    passing = kernel.lease_one()
    assert passing.sequence_id == 2
    kernel.pass_time(5 * SECOND)
    assert kernel.lease(5) == []
    kernel.complete(passing.token)
    assert ids(grant_and_complete(kernel, 2)) == [1, 3]


def test_a_head_that_comes_back_from_its_delay_takes_its_place_before_the_one_that_stood() -> None:
    kernel = Kernel(FIFO_PASS)
    kernel.enqueue(new_item("a"), new_item("a"))
    kernel.fail(kernel.lease_one().token, delay_ms=SECOND)
    kernel.pass_time(SECOND)
    assert ids(grant_and_complete(kernel, 2)) == [1, 2]


def test_an_item_that_comes_in_delayed_holds_those_behind_it() -> None:
    kernel = Kernel(FIFO)
    kernel.enqueue(new_item("a", delay_ms=SECOND), new_item("a"))
    assert kernel.lease(5) == []
    kernel.pass_time(SECOND)
    assert ids(grant_and_complete(kernel, 2)) == [1, 2]


def test_a_delayed_item_holds_nobody_unless_it_is_fifo() -> None:
    for options in (EXCLUSIVE, FIFO_PASS):
        kernel = Kernel(options)
        kernel.enqueue(new_item("a", delay_ms=SECOND), new_item("a"))
        assert ids(kernel.lease(5)) == [2]


def test_a_delayed_head_that_is_cancelled_holds_nobody_any_more() -> None:
    kernel = Kernel(FIFO)
    kernel.enqueue(new_item("a", delay_ms=SECOND), new_item("a"))
    kernel.do(cmd.CancelItem(1))
    assert ids(kernel.lease(5)) == [2]


def test_a_head_that_dies_lets_the_next_one_stand() -> None:
    kernel = Kernel(QueueOptions(ordering="fifo", max_delivery_attempts=2, requeue_delay_ms=SECOND))
    kernel.enqueue(new_item("a"), new_item("a"))
    for _ in range(2):
        lease = kernel.lease_one()
        assert lease.sequence_id == 1
        kernel.fail(lease.token)
        kernel.pass_time(2 * SECOND)
    assert kernel.state_of(1) == "dead"
    assert ids(kernel.lease(5)) == [2]


def test_several_delays_that_end_together_keep_their_order() -> None:
    kernel = Kernel(FIFO)
    kernel.enqueue(*[new_item("a", delay_ms=delay) for delay in (3_000, 1_000, 2_000)])
    kernel.pass_time(2_500)
    assert kernel.lease(5) == []
    kernel.pass_time(2_500)
    assert ids(grant_and_complete(kernel, 3)) == [1, 2, 3]


def redrive(kernel: Kernel, *sequence_ids: int) -> None:
    kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(sequence_ids=list(sequence_ids))))


def with_dead_head(options: QueueOptions, dead: int = 1) -> Kernel:
    """Four items of one key, of which the first ones are dead."""
    kernel = Kernel(options)
    kernel.enqueue(*[new_item("a") for _ in range(4)])
    for _ in range(dead):
        kernel.fail(kernel.lease_one().token, mode="dead")
    return kernel


def test_a_redriven_item_goes_to_the_tail_of_a_fifo_key() -> None:
    for options in (FIFO, FIFO_PASS):
        kernel = with_dead_head(options)
        redrive(kernel, 1)
        (later,) = kernel.enqueue(new_item("a"))
        assert ids(grant_and_complete(kernel, 5)) == [2, 3, 4, 1, later]


def test_items_redriven_together_go_to_the_tail_in_the_order_they_were_named() -> None:
    kernel = with_dead_head(FIFO, dead=3)
    redrive(kernel, 3, 1, 2)
    assert ids(grant_and_complete(kernel, 4)) == [4, 3, 1, 2]


def test_a_redriven_item_stays_at_the_tail_when_it_is_tried_again() -> None:
    kernel = with_dead_head(FIFO)
    redrive(kernel, 1)
    assert ids(grant_and_complete(kernel, 3)) == [2, 3, 4]
    kernel.enqueue(new_item("a"))
    kernel.fail(kernel.lease_one().token)
    assert ids(grant_and_complete(kernel, 2))[0] == 1


def test_a_redriven_item_keeps_its_place_where_there_is_no_fifo() -> None:
    kernel = with_dead_head(EXCLUSIVE)
    redrive(kernel, 1)
    assert ids(grant_and_complete(kernel, 4)) == [1, 2, 3, 4]


def test_a_redriven_item_that_is_spread_out_holds_its_place_at_the_tail() -> None:
    kernel = with_dead_head(FIFO, dead=2)
    kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(sequence_ids=[1, 2]), rate_per_second=1))
    kernel.pass_time()
    assert ids(grant_and_complete(kernel, 3)) == [3, 4, 1]
    assert kernel.lease(5) == []
    kernel.pass_time(SECOND)
    assert ids(kernel.lease(5)) == [2]


def test_new_ids_are_never_those_of_redriven_places() -> None:
    kernel = with_dead_head(FIFO)
    redrive(kernel, 1)
    before = set(kernel.state.items)
    assert before.isdisjoint(kernel.enqueue(new_item("a"), new_item("b")))


# -- options that change -------------------------------------------------------------------------


def test_ordering_that_is_turned_on_counts_the_leases_that_are_there() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item("a") for _ in range(3)])
    first, second = kernel.lease(2)
    kernel.do(cmd.ChangeOptions(EXCLUSIVE))
    kernel.complete(first.token)
    assert kernel.lease(5) == []
    kernel.complete(second.token)
    assert ids(kernel.lease(5)) == [3]


def test_ordering_that_is_turned_off_lets_everybody_stand() -> None:
    kernel = Kernel(FIFO)
    kernel.enqueue(*[new_item("a") for _ in range(3)])
    kernel.lease_one()
    kernel.do(cmd.ChangeOptions(QueueOptions()))
    assert ids(kernel.lease(5)) == [2, 3]


def test_a_head_that_holds_lets_go_when_the_option_says_pass() -> None:
    kernel = Kernel(FIFO)
    kernel.enqueue(new_item("a", delay_ms=SECOND), new_item("a"))
    kernel.do(cmd.ChangeOptions(FIFO_PASS))
    assert ids(kernel.lease(5)) == [2]


# -- many keys, many calls -----------------------------------------------------------------------


@ORDERED
def test_never_two_leases_of_a_key_whatever_happens(options: QueueOptions) -> None:
    kernel = Kernel(options)
    random = Random(5)
    live: dict[int, GrantedLease] = {}
    for _ in range(1_500):
        if random.random() < 0.4:
            kernel.enqueue(new_item(random.choice("abcd"), delay_ms=random.choice((None, 0, 500))))
        for lease in kernel.lease(random.randint(1, 5)):
            live[lease.sequence_id] = lease
        held = [kernel.item(sequence_id).payload.resource_id for sequence_id in live]
        assert len(held) == len(set(held))
        if live and random.random() < 0.7:
            lease = live.pop(random.choice(list(live)))
            verb = random.randrange(4)
            if verb == 0:
                kernel.fail(lease.token, delay_ms=random.choice((0, 300)))
            elif verb == 1:
                kernel.release(lease.token)
            elif verb == 2:
                kernel.do(cmd.CancelItem(lease.sequence_id, force=True))
            else:
                kernel.complete(lease.token)
        kernel.pass_time(random.randint(0, 100))
        live = {number: lease for number, lease in live.items() if kernel.state_of(number) == "leased"}


@pytest.mark.parametrize("head", ["hold", "pass"])
def test_fifo_grants_first_attempts_of_a_key_in_order(head: str) -> None:
    kernel = Kernel(QueueOptions(ordering="fifo", fifo_head=head))  # type: ignore[arg-type]
    random = Random(6)
    seen: dict[str, list[int]] = {name: [] for name in "abc"}
    for _ in range(200):
        kernel.enqueue(new_item(random.choice("abc")))
        for lease in kernel.lease(2):
            if lease.attempt == 1:
                seen[lease.payload.resource_id].append(lease.sequence_id)
            if random.random() < 0.3:
                kernel.fail(lease.token, delay_ms=200)
            else:
                kernel.complete(lease.token)
        kernel.pass_time(50)
    for order in seen.values():
        assert len(order) > 20
        assert order == sorted(order)


# -- cost ----------------------------------------------------------------------------------------


def cost_of_cycles(options: QueueOptions, waiting: int) -> int:
    """Operations of 20 cycles in which the head of a hot key fails and another key is served."""
    kernel = Kernel(options)
    fill(kernel, waiting, resource_id="hot")
    kernel.enqueue(*[new_item(f"cold-{n}") for n in range(200)])

    def cycles(count: int) -> None:
        for _ in range(count):
            for lease in kernel.lease(2):
                if lease.payload.resource_id == "hot":
                    kernel.fail(lease.token, delay_ms=SECOND)
                else:
                    kernel.complete(lease.token)
            kernel.enqueue(new_item("cold"))
            kernel.pass_time(SECOND)

    cycles(5)
    return operations(lambda: cycles(20))


@pytest.mark.parametrize(
    "options",
    [
        EXCLUSIVE,
        FIFO,
        FIFO_PASS,
        QueueOptions(limits=[Limit(by="key", max=1)]),
    ],
    ids=["exclusive", "fifo", "fifo pass", "key limit"],
)
def test_a_hot_key_with_ten_thousand_waiting_items_does_not_slow_the_others(options: QueueOptions) -> None:
    options = QueueOptions(
        ordering=options.ordering, fifo_head=options.fifo_head, limits=options.limits, max_delivery_attempts=1_000
    )
    few, many = cost_of_cycles(options, 10), cost_of_cycles(options, 10_000)
    assert many <= 2 * few, f"{few} operations with 10 waiting, {many} with 10,000"


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("ordering", "strict", "ordering"),
        ("ordering", None, "ordering"),
        ("ordering", "FIFO", "ordering"),
        ("ordering", 1, "ordering"),
        ("ordering", [], "ordering"),
        ("key", "tenant", "key"),
        ("key", None, "key"),
        ("fifo_head", "skip", "fifoHead"),
        ("fifo_head", True, "fifoHead"),
    ],
)
def test_a_wrong_option_of_keys_is_named_when_it_is_built(name: str, value: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        QueueOptions(**{name: value})
    assert refused.value.code == f"resourcelease.{field}.invalid"
    assert refused.value.details["field"] == field
