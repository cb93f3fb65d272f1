"""Turns against the plainest way to take them: everybody who is in, searched for the lowest time and name."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.turns import Member, Turns

NAMES = [f"member-{number}" for number in range(12)]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(range(len(NAMES))), st.just(0)),
        st.tuples(st.just("leave"), st.sampled_from(range(len(NAMES))), st.just(0)),
        st.tuples(st.just("forget"), st.sampled_from(range(len(NAMES))), st.just(0)),
        # Most turns are had by who is first, and cost the same.
        st.tuples(st.just("turn"), st.just(-1), st.sampled_from([10, 10, 10, 5, 2, 30])),
        st.tuples(st.just("last turn"), st.just(-1), st.sampled_from([10, 5])),
        st.tuples(st.just("turn"), st.sampled_from(range(len(NAMES))), st.sampled_from([10, 3])),
        st.tuples(st.just("start over"), st.just(0), st.just(0)),
    ),
    max_size=120,
)


def first_of(members: list[Member]) -> Member | None:
    return min((member for member in members if member.offering), key=lambda each: (each.time, each.name), default=None)


@given(steps)
def test_the_first_is_always_the_one_with_the_lowest_time_and_name(taken: list[tuple[str, int, int]]) -> None:
    turns, members = Turns(), [Member(name) for name in NAMES]
    for step, number, cost in taken:
        member = first_of(members) if number < 0 else members[number]
        if step == "join" and member is not None and not member.offering:
            turns.join(member)
        elif step == "leave" and member is not None and member.offering:
            turns.leave(member)
        elif step == "forget" and member is not None and not member.offering:
            members[number] = Member(NAMES[number])
        elif step in ("turn", "last turn") and member is not None and member.offering:
            floor, time = turns.first.time, member.time
            turns.charge(member, cost, step == "turn")
            assert (turns.floor, member.time) == (floor, time + cost)
        elif step == "start over" and not turns.live:
            turns.start_over()
            assert turns.floor == turns.highest
        assert turns.live == sum(each.offering for each in members)
        assert turns.first == first_of(members)
        if not turns.still:
            assert turns.least() == turns.first.time


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_turns_that_go_on_for_long_leave_nothing_behind(costs: list[int]) -> None:
    turns, members = Turns(), [Member(name) for name in NAMES[: len(costs)]]
    for member in members:
        turns.join(member)
    for number in range(500):
        first = turns.first
        assert first == first_of(members)
        turns.charge(first, costs[members.index(first)], True)
        away = members[number % len(members)]
        if len(members) > 1:
            turns.leave(away)
            turns.join(away)
    assert held(turns) <= 3 * len(members) + 20


def held(turns: Turns) -> int:
    """How many entries there are: all that is reachable, as compiled code shows no more of its own."""
    found: list[object] = [turns]
    count = 0
    while found:
        for other in gc.get_referents(found.pop()):
            if isinstance(other, Member):
                count += 1
            elif isinstance(other, list | dict):
                found.append(other)
    return count
