"""OrderedQueue against a sorted list: entering, leaving from anywhere, looking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.items import READY, Item
from omnirelay.core.ordered import OrderedQueue
from tests.builders import payload
from tests.property.strategies import profile

PAYLOAD = payload()


BY_TIME = pytest.mark.parametrize("by_time", [False, True])


def item(sequence_id: int, stamp: int) -> Item:
    return Item(sequence_id, PAYLOAD, READY, stamp, 1, 5, 1, None, 0, None, 0, None, sequence_id)


def enter(queue: OrderedQueue, model: Sorted, key: int, entering: Item, by_time: bool) -> None:
    if by_time:
        entering.not_before = key
    else:
        entering.order = key
    queue.push(entering)
    model.entries.append((key, entering.sequence_id, entering))


class Sorted:
    """The model: entries in a list that is sorted whenever somebody looks."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, Item]] = []

    def order(self) -> list[tuple[int, int, Item]]:
        return sorted(self.entries, key=lambda entry: entry[:2])


PLACES = st.integers(0, 200)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 69)),
        st.tuples(st.just("leave"), PLACES),
        st.tuples(st.just("move"), PLACES),
        st.tuples(st.just("leave many"), PLACES),
    ),
    max_size=150,
)


@BY_TIME
@profile(300)
@given(steps=STEPS)
def test_the_queue_is_in_order_whatever_enters_and_leaves(by_time: bool, steps: list[tuple[str, int]]) -> None:
    """Ids come in any order, as those of retried items do, and keys tie often, as deadlines of a batch do."""
    queue, model = OrderedQueue(by_time=by_time), Sorted()
    for number, (what, value) in enumerate(steps, start=1):
        if what == "enter":
            entering = item(value // 7 * 1_000 + number, number * 1_000)
            enter(queue, model, value % 7, entering, by_time)
        else:
            count = min(value if what == "leave many" else 1, len(model.entries))
            left = [_leave(queue, model, value, number * 1_000 + step) for step in range(count)]
            if what == "move" and left:
                enter(queue, model, value % 7, left[0], by_time)
        _compare(queue, model)


def _leave(queue: OrderedQueue, model: Sorted, place: int, stamp: int) -> Item:
    _, _, leaving = model.entries.pop(place % len(model.entries))
    leaving.stamp = stamp
    queue.left(leaving)
    return leaving


@BY_TIME
@profile(30)
@given(keys=st.lists(st.integers(0, 1_000), min_size=200, max_size=400), stride=st.sampled_from([1, 7, 101]))
def test_a_long_queue_is_cleaned_up_without_losing_its_order(by_time: bool, keys: list[int], stride: int) -> None:
    queue, model = OrderedQueue(by_time=by_time), Sorted()
    for number, key in enumerate(keys):
        entering = item(number, number)
        enter(queue, model, key, entering, by_time)
    for step in range(len(keys)):
        _leave(queue, model, step * stride, len(keys) + step)
        if len(model.entries) % 10 == 0:
            _compare(queue, model)
    assert queue.first() is None
    assert queue.first_key() is None


def _compare(queue: OrderedQueue, model: Sorted) -> None:
    order = model.order()
    assert queue.live == len(order)
    assert [each.sequence_id for each in queue] == [entry[1] for entry in order]
    assert queue.first_key() == (order[0][0] if order else None)
    assert queue.first() is (order[0][2] if order else None)
    for key, count in ((2, 3), (4, 1_000)):
        due = [entry[1] for entry in order if entry[0] <= key][:count]
        assert [each.sequence_id for each in queue.up_to(key, count)] == due
        assert queue.count_below(key) in (None, sum(entry[0] < key for entry in order))


def test_those_before_a_key_are_counted_at_once_while_nobody_left_from_the_middle() -> None:
    queue, model = OrderedQueue(), Sorted()
    assert queue.count_below(5) is None
    for key in range(10):
        enter(queue, model, key, item(key, key), by_time=False)
        assert queue.count_below(5) == min(key + 1, 5)
    _leave(queue, model, 0, 100)
    assert (queue.count_below(0), queue.count_below(5), queue.count_below(1 << 60)) == (0, 4, 9)
    _leave(queue, model, 3, 101)
    assert queue.count_below(5) is None


@profile(200)
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 9)), max_size=120))
def test_items_that_go_from_queue_to_queue_are_in_one_of_them(steps: list[tuple[int, int, int]]) -> None:
    """As those that change between lanes and keys do, with other orders: nobody is taken for what it left behind."""
    queues, models = [OrderedQueue() for _ in range(3)], [Sorted() for _ in range(3)]
    everything = [item(number, number) for number in range(6)]
    where: dict[int, int] = {}
    for number, (to, which, key) in enumerate(steps, start=100):
        moving = everything[which]
        at = where.pop(which, None)
        if at is not None:
            models[at].entries = [entry for entry in models[at].entries if entry[2] is not moving]
            if queues[at].first() is moving and key % 2:
                queues[at].take_first()
            else:
                moving.stamp = number
                queues[at].left(moving)
        if to < 3:
            where[which] = to
            enter(queues[to], models[to], key, moving, by_time=False)
        for queue, model in zip(queues, models, strict=True):
            _compare(queue, model)
