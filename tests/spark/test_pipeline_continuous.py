"""`lakehouse run --continuous`: it takes what comes, and ends when it is asked to."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from omnirelay.lakehouse.tables import EVENTS
from tests.property.strategies import LONG
from tests.spark.pipeline_process import EVERY, PipelineProcess, rows_in
from tests.spark.workload import recorded, write_segments


@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_takes_new_segments_and_ends_well_when_asked_to(number: signal.Signals, tmp_path: Path) -> None:
    segments, warehouse = tmp_path / "segments", tmp_path / "warehouse"
    log = recorded("jobs", seed=17, steps=60)
    write_segments(segments, log, last=15)
    with PipelineProcess(segments, warehouse, "--continuous", "--every", "0.1", "-o", "jsonl") as run:
        assert run.process.stdout is not None
        first = json.loads(run.process.stdout.readline())
        assert first["changed"]
        write_segments(segments, log, first=15, pieces=2)
        second = json.loads(run.process.stdout.readline())
        assert second["segments"] in (1, 2), "it came between two segments, or behind both"
        while second["progress"]["jobs"] < len(log.events):
            second = json.loads(run.process.stdout.readline())
        run.process.send_signal(number)
        # Nothing more is printed: a run with nothing new says nothing.
        assert run.finished() == ""
    assert len(rows_in(warehouse, EVENTS)) == len(log.events)
    assert all(rows_in(warehouse, table) for table in EVERY if table.name != "anomalies")
