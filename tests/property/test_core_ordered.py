"""OrderedQueue against a sorted list: entering, leaving from anywhere, looking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.items import READY, Item
from omnirelay.core.ordered import OrderedQueue
from tests.builders import payload
from tests.property.strategies import profile

PAYLOAD = payload()


def item(sequence_id: int, stamp: int) -> Item:
    return Item(sequence_id, PAYLOAD, READY, stamp, 1, 5, 1, None, 0, None, 0, None, sequence_id)


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


@profile(300)
@given(steps=STEPS)
def test_the_queue_is_in_order_whatever_enters_and_leaves(steps: list[tuple[str, int]]) -> None:
    """Ids come in any order, as those of retried items do, and keys tie often, as deadlines of a batch do."""
    queue, model = OrderedQueue(), Sorted()
    for number, (what, value) in enumerate(steps, start=1):
        if what == "enter":
            entering = item(value // 7 * 1_000 + number, number * 1_000)
            queue.push(value % 7, entering)
            model.entries.append((value % 7, entering.sequence_id, entering))
        else:
            count = min(value if what == "leave many" else 1, len(model.entries))
            left = [_leave(queue, model, value, number * 1_000 + step) for step in range(count)]
            if what == "move" and left:
                queue.push(value % 7, left[0])
                model.entries.append((value % 7, left[0].sequence_id, left[0]))
        _compare(queue, model)


def _leave(queue: OrderedQueue, model: Sorted, place: int, stamp: int) -> Item:
    _, _, leaving = model.entries.pop(place % len(model.entries))
    leaving.stamp = stamp
    queue.left(leaving)
    return leaving


@profile(30)
@given(keys=st.lists(st.integers(0, 1_000), min_size=200, max_size=400), stride=st.sampled_from([1, 7, 101]))
def test_a_long_queue_is_cleaned_up_without_losing_its_order(keys: list[int], stride: int) -> None:
    queue, model = OrderedQueue(), Sorted()
    for number, key in enumerate(keys):
        entering = item(number, number)
        queue.push(key, entering)
        model.entries.append((key, number, entering))
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
