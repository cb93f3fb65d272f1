"""Runs one after the other: what passes by itself is told and tried again, what does not pass ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.cli.lakehouse_run import Kind, Route, check_source
from omnirelay.errors import DataLoss, NotFound, OmniRelayError, Unavailable
from omnirelay.lakehouse.continuous import BACKOFF_MAX_S, run_until_asked, wait_after
from omnirelay.lakehouse.formats import TableOvertaken
from omnirelay.lakehouse.pipeline import Pipeline, Summary
from omnirelay.lakehouse.tables import EVENTS, ITEMS
from tests.property.strategies import LONG
from tests.spark.pipeline_process import EVERY, rows_in
from tests.spark.workload import recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Looking:
    """Whoever watches the runs, and asks them to stop after so many."""

    def __init__(self, ends: int) -> None:
        self.asked = threading.Event()
        self.told: list[Summary | OmniRelayError] = []
        self.waits: list[float] = []
        self._ends = ends

    def seen(self, summary: Summary) -> None:
        self._tell(summary)

    def hindered(self, error: OmniRelayError, wait_s: float) -> None:
        self.waits.append(wait_s)
        self._tell(error)

    def _tell(self, what: Summary | OmniRelayError) -> None:
        self.told.append(what)
        if len(self.told) == self._ends:
            self.asked.set()


def outcomes(happens: Iterable[Summary | OmniRelayError]) -> Callable[[], Summary]:
    """A run to which these things happen, one after the other."""
    coming = iter(happens)

    def run() -> Summary:
        outcome = next(coming)
        if isinstance(outcome, OmniRelayError):
            raise outcome
        return outcome

    return run


def test_events_that_another_pipeline_took_first_are_not_taken_again(whole_spark: SparkSession, tmp_path: Path) -> None:
    segments, warehouse = tmp_path / "segments", str(tmp_path / "warehouse")
    log = recorded("jobs", seed=17, steps=30)
    third = len(log.frames) // 3
    write_segments(segments, log, last=third)
    quicker = Pipeline(whole_spark, str(segments), warehouse)
    overtaken: list[str] = []

    def overtake(step: str, seconds: float | None) -> None:
        if not overtaken:
            overtaken.append(step)
            write_segments(segments, log, first=third, last=2 * third)
            quicker.ingest()
            write_segments(segments, log, first=2 * third)

    slower = Pipeline(whole_spark, str(segments), warehouse, report=overtake)
    looking = Looking(2)
    run_until_asked(slower.ingest, looking.asked, 0.01, seen=looking.seen, hindered=looking.hindered)
    error, last = looking.told
    assert isinstance(error, TableOvertaken)
    assert isinstance(last, Summary)
    assert (last.segments, last.events) == (1, len(log.events) - log.frames[2 * third - 1].last)
    assert len(rows_in(Path(warehouse), EVENTS)) == len(log.events)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not LONG, reason="a dozen tables: make spark-test")
def test_a_run_that_was_overtaken_goes_on_from_the_newer_tables(whole_spark: SparkSession, tmp_path: Path) -> None:
    segments, warehouse = tmp_path / "segments", str(tmp_path / "warehouse")
    log = recorded("jobs", seed=17, steps=30)
    half = len(log.frames) // 2
    write_segments(segments, log, last=half)
    quicker = Pipeline(whole_spark, str(segments), warehouse)

    def overtake(point: str) -> None:
        if point == "silver.leases" and not quicker.tables.exists(ITEMS):
            write_segments(segments, log, first=half)
            quicker.run()

    slower = Pipeline(whole_spark, str(segments), warehouse, failpoint=overtake)
    looking = Looking(2)
    summary = run_until_asked(slower.run, looking.asked, 0.01, seen=looking.seen, hindered=looking.hindered)
    error, last = looking.told
    assert isinstance(error, TableOvertaken)
    assert isinstance(last, Summary)
    assert last is summary
    assert last.progress == {"jobs": len(log.events)}
    for table in EVERY:
        assert {name: end.sequence for name, end in slower.tables.progress(table).items()} == last.progress


def test_what_passes_is_waited_for_longer_each_time_and_a_run_that_ends_well_begins_anew() -> None:
    happens: list[Summary | OmniRelayError] = [
        Unavailable("the store does not answer"),
        TableOvertaken("somebody was quicker"),
        Unavailable("the store does not answer"),
        Summary(events=1),
        Unavailable("again"),
    ]
    looking = Looking(len(happens))
    last = run_until_asked(outcomes(happens), looking.asked, 0.001, seen=looking.seen, hindered=looking.hindered)
    assert looking.told == happens
    assert looking.waits == [0.001, 0.002, 0.004, 0.001]
    assert last == Summary(events=1)


def test_nothing_was_found_when_no_run_came_to_its_end() -> None:
    def run() -> Summary:
        raise Unavailable("never there")

    looking = Looking(2)
    assert run_until_asked(run, looking.asked, 0.001, seen=looking.seen, hindered=looking.hindered) is None


def test_what_does_not_pass_ends_the_runs() -> None:
    def run() -> Summary:
        raise DataLoss("a table holds what the one it is made of does not")

    looking = Looking(1)
    with pytest.raises(DataLoss):
        run_until_asked(run, looking.asked, 0.001, seen=looking.seen, hindered=looking.hindered)
    assert looking.told == []


@given(hindrances=st.integers(1, 10_000), every_s=st.floats(0.1, 100_000))
def test_waiting_never_falls_and_is_bounded(hindrances: int, every_s: float) -> None:
    wait = wait_after(hindrances, every_s)
    assert every_s <= wait <= max(every_s, BACKOFF_MAX_S)
    assert wait_after(hindrances + 1, every_s) >= wait


def no_segments() -> OmniRelayError:
    return NotFound("there are no segments in ./segments", code="error.segments.none")


def test_segments_that_were_there_are_waited_for_and_those_that_never_were_are_not() -> None:
    happens: list[Summary | OmniRelayError] = [Summary(events=1), no_segments(), no_segments(), Summary(events=2)]
    looking = Looking(len(happens))
    last = run_until_asked(outcomes(happens), looking.asked, 0.001, seen=looking.seen, hindered=looking.hindered)
    assert looking.told == happens
    assert last == Summary(events=2)
    never = Looking(2)
    with pytest.raises(NotFound):
        run_until_asked(
            outcomes([Unavailable("not yet"), no_segments()]),
            never.asked,
            0.001,
            seen=never.seen,
            hindered=never.hindered,
        )
    assert len(never.told) == 1


def test_a_restart_does_not_forget_what_the_tables_hold(whole_spark: SparkSession, tmp_path: Path) -> None:
    segments, away, warehouse = tmp_path / "segments", tmp_path / "away", str(tmp_path / "warehouse")
    write_segments(segments, recorded("jobs", seed=17, steps=30))
    Pipeline(whole_spark, str(segments), warehouse, "parquet").run()
    segments.rename(away)
    looking = Looking(2)

    def come_back(error: OmniRelayError, wait_s: float) -> None:
        away.rename(segments)
        looking.hindered(error, wait_s)

    again = Pipeline(whole_spark, str(segments), warehouse, "parquet")
    run_until_asked(again.run, looking.asked, 0.001, seen=looking.seen, hindered=come_back, known=again.holds_events)
    error, last = looking.told
    assert isinstance(error, NotFound)
    assert isinstance(last, Summary)
    assert not last.changed

    never = Pipeline(whole_spark, str(tmp_path / "nowhere"), str(tmp_path / "empty"), "parquet")
    with pytest.raises(NotFound):
        run_until_asked(
            never.run, looking.asked, 0.001, seen=looking.seen, hindered=looking.hindered, known=never.holds_events
        )


def test_a_source_is_missed_before_spark_is_started_unless_tables_were_made_of_it(
    whole_spark: SparkSession, tmp_path: Path
) -> None:
    segments, warehouse = tmp_path / "segments", str(tmp_path / "warehouse")
    route = Route(str(segments), {}, warehouse, Kind.PARQUET, "local[*]", [])
    write_segments(segments, recorded("jobs", seed=17, steps=30))
    check_source(route, waits=False)
    segments.rename(tmp_path / "away")
    for waits in (False, True):
        with pytest.raises(NotFound):
            check_source(route, waits=waits)
    (tmp_path / "away").rename(segments)
    Pipeline(whole_spark, str(segments), warehouse, "parquet").run()
    segments.rename(tmp_path / "away")
    with pytest.raises(NotFound):
        check_source(route, waits=False)
    check_source(route, waits=True)
