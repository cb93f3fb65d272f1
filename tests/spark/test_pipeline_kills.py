"""Kill -9 of the pipeline and its Java at random moments while the log goes on: the tables end like one run's."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from omnirelay.lakehouse.pipeline import Pipeline
from tests.property.strategies import LONG
from tests.spark.pipeline_process import EVERY, PipelineProcess, rows_in
from tests.spark.workload import Recorded, recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = 20 if LONG else 2
WAYS = (None, 0)
"""How many events count as few, kill by kill. With the usual number all of these do: tables are written whole, several
at once. With 0 none do: they are merged into, one after the other.
"""
SEED = 20
DELAY_S = 2.0
"""About as long as a table takes on a machine that has something else to do as well."""


class GrowingLog:
    """A log whose next frames become segments whenever they are asked for."""

    def __init__(self, directory: Path, log: Recorded, pieces: int) -> None:
        self.directory = directory
        self._log = log
        self._size = -(-len(log.frames) // pieces)
        self._written = 0

    def grow(self, *, to_the_end: bool = False) -> None:
        last = None if to_the_end else self._written + self._size
        assert self._written < len(self._log.frames), "the log is too short for so many kills"
        write_segments(self.directory, self._log, first=self._written, last=last)
        self._written = len(self._log.frames) if last is None else last


@pytest.mark.timeout(7_200 if LONG else 1_800)
def test_tables_of_a_pipeline_that_is_killed_again_and_again_are_those_of_one_clean_run(
    whole_spark: SparkSession, tmp_path: Path
) -> None:
    random = Random(SEED)
    segments, warehouse = tmp_path / "segments", tmp_path / "warehouse"
    write_segments(segments, recorded("it's 007", seed=4, steps=20))
    log = GrowingLog(segments, recorded("jobs", seed=17, steps=300 if LONG else 60), pieces=2 * KILLS + 2)
    killed_behind: list[int] = []
    for _ in range(2 * KILLS):
        log.grow()
        few_events = WAYS[len(killed_behind) % len(WAYS)]
        # New events change every table, so that there is always one to come behind so many commits.
        commits = random.randrange(len(EVERY))
        with PipelineProcess(segments, warehouse, few_events=few_events) as run:
            if run.reached(commits) and not run.ended_within(random.uniform(0, DELAY_S)):
                run.kill()
                killed_behind.append(commits)
        if len(killed_behind) == KILLS:
            break
    assert len(killed_behind) == KILLS, "it was too quick for so many kills"
    log.grow(to_the_end=True)
    with PipelineProcess(segments, warehouse) as run:
        run.finished()
    clean = tmp_path / "clean"
    Pipeline(whole_spark, str(segments), str(clean)).run()
    for table in EVERY:
        expected = rows_in(clean, table)
        assert expected or table.name == "anomalies", f"{table.name} is empty, which proves nothing"
        assert rows_in(warehouse, table) == expected, f"{table.name} differs, killed behind {killed_behind}"
