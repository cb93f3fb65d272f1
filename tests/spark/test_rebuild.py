"""`rebuild` removes tables only when there is something to make them of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnirelay.errors import NotFound
from omnirelay.lakehouse.errors import NothingToRebuild
from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.tables import EVENTS, LEASES
from tests.spark.pipeline_process import EVERY
from tests.spark.workload import recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


def test_rebuild_keeps_the_tables_when_no_event_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    log = recorded("jobs", seed=17, steps=20)
    write_segments(tmp_path / "segments", log)
    first = Pipeline(spark, str(tmp_path / "segments"), str(tmp_path / "lake"), "parquet")
    first.run()
    wrong = Pipeline(spark, str(tmp_path / "segmets"), str(tmp_path / "lake"), "parquet")
    with pytest.raises(NotFound):
        wrong.rebuild()
    [segment] = (tmp_path / "segments" / "jobs" / "segments").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(b"no Parquet")
    with pytest.raises(NothingToRebuild, match=segment.name):
        first.rebuild()
    assert first.tables.read(EVENTS).count() == len(log.events)
    before = first.tables.version(LEASES)

    segment.write_bytes(whole)
    summary = first.rebuild()
    assert summary.progress == {"jobs": len(log.events)}
    assert len(summary.steps) == len(EVERY)
    assert first.tables.read(EVENTS).count() == len(log.events)
    assert first.tables.version(LEASES) == before, "the tables begin anew"


def test_rebuild_loses_no_shard_unless_told(spark: SparkSession, tmp_path: Path) -> None:
    jobs, other = recorded("jobs", seed=17, steps=20), recorded("other", seed=5, steps=20)
    write_segments(tmp_path / "segments", jobs)
    write_segments(tmp_path / "segments", other)
    pipeline = Pipeline(spark, str(tmp_path / "segments"), str(tmp_path / "lake"), "parquet")
    pipeline.ingest()
    (tmp_path / "segments" / "other").rename(tmp_path / "away")
    with pytest.raises(NothingToRebuild, match=r"no event of 'other', which the tables hold, .* say --gone other"):
        pipeline.rebuild()
    assert pipeline.tables.read(EVENTS).count() == len(jobs.events) + len(other.events)
    accepting = Pipeline(spark, str(tmp_path / "segments"), str(tmp_path / "lake"), "parquet", gone=["other"])
    assert accepting.rebuild().progress == {"jobs": len(jobs.events)}
