"""How fast a sink catches up beside callers: quick enough to get there, slow enough that they do not notice."""

from __future__ import annotations

import pytest

from omnirelay.replication.courtesy import CALLED_S, EVENTS_PER_SECOND_LEAST, REST_S_MAX, TIMES_CALLERS, Courtesy


class Seconds:
    """A clock that stands still unless it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def called_for(clock: Seconds, courtesy: Courtesy, seconds: float, events_per_second: int) -> None:
    """Ten commits a second."""
    for _ in range(round(seconds * 10)):
        courtesy.called(events_per_second // 10)
        clock.now += 0.1


def test_nobody_rests_where_nobody_calls() -> None:
    clock = Seconds()
    courtesy = Courtesy(clock)
    assert courtesy.rest_s(10_000, 0.01) == 0
    courtesy.called(500)
    assert courtesy.rest_s(10_000, 0.01) > 0
    clock.now += CALLED_S
    assert courtesy.rest_s(10_000, 0.01) == 0


def test_beside_few_calls_a_sink_takes_what_it_takes_in_any_case() -> None:
    courtesy = Courtesy(Seconds())
    courtesy.called(1)
    events = EVENTS_PER_SECOND_LEAST // 10
    assert courtesy.rest_s(events, 0.03) == pytest.approx(0.1 - 0.03)


@pytest.mark.parametrize("events_per_second", [20_000, 100_000, 1_000_000])
def test_a_sink_goes_several_times_as_fast_as_events_come(events_per_second: int) -> None:
    clock = Seconds()
    courtesy = Courtesy(clock)
    called_for(clock, courtesy, 2.5, events_per_second)
    assert courtesy.events_per_second == pytest.approx(events_per_second, rel=0.15)
    events = 4_000
    whole_s = courtesy.rest_s(events, 0.0)
    assert events / whole_s >= 0.99 * TIMES_CALLERS * events_per_second


def test_a_sink_that_is_no_faster_than_that_does_not_rest() -> None:
    clock = Seconds()
    courtesy = Courtesy(clock)
    called_for(clock, courtesy, 2, 100_000)
    assert courtesy.rest_s(4_000, 4_000 / 100_000) == 0


def test_what_was_called_before_everybody_went_away_does_not_count() -> None:
    clock = Seconds()
    courtesy = Courtesy(clock)
    called_for(clock, courtesy, 3, 1_000_000)
    clock.now += 60
    assert courtesy.events_per_second == 0
    courtesy.called(1)
    assert courtesy.events_per_second == 1


def test_no_rest_is_long() -> None:
    courtesy = Courtesy(Seconds())
    courtesy.called(1)
    assert courtesy.rest_s(100 * EVENTS_PER_SECOND_LEAST, 0.0) == REST_S_MAX
