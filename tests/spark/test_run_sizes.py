"""A small run on large tables writes little again: of a long queue what goes on, of many resources those it touches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from omnirelay.lakehouse.formats_delta import DeltaTables
from omnirelay.lakehouse.gold import RESOURCES_MAX, resources_of
from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.sizing import Sizing, Suited
from omnirelay.lakehouse.steps import Steps
from omnirelay.lakehouse.tables import EVENTS, ITEMS, LEASES, RESOURCE_HEALTH, Table
from tests.spark.incidents import Day, log_of
from tests.spark.plain import Plain
from tests.spark.plain_gold import health_rows
from tests.spark.test_pipeline_runs import assert_holds
from tests.spark.workload import Recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
DONE = 200
WAITING = 300
FILE_EVENTS = 100
LAST = 7
"""Frames of what was done at last: three leases, as many ends, and one item."""


async def long_queue(day: Day) -> None:
    """Much was done, on as many resources, and much is still to do. At last a little of it is."""
    await day.completes("ada", *(f"r{number}" for number in range(DONE)))
    await day.waits(*(f"r{number % 9}" for number in range(WAITING)))
    await day.works_off("bob", 3)
    await day.waits("r7")


@pytest.fixture(scope="module")
def log() -> Recorded:
    return log_of("jobs", long_queue)


@pytest.fixture(scope="module")
def tables(whole_spark: SparkSession, log: Recorded, tmp_path_factory: pytest.TempPathFactory) -> DeltaTables:
    """All but what was done at last, in files of a few rows as a long log has files of many; and the rest in bronze."""
    place = tmp_path_factory.mktemp("sizes")
    where = (str(place / "segments"), str(place / "lake"))
    write_segments(place / "segments", log, last=-LAST)
    pipeline = Pipeline(whole_spark, *where, few_events=10)
    pipeline.run()
    write_segments(place / "segments", log, first=-LAST)
    pipeline.ingest()
    tables = DeltaTables(whole_spark, str(place / "lake"), small_bytes=0, file_events=FILE_EVENTS)
    Sizing(tables.spark).suit(0)
    return tables


def files(tables: DeltaTables, table: Table) -> dict[str, int]:
    """With how many rows each has."""
    return {path: pq.read_metadata(path).num_rows for path in DeltaTable(tables.path(table)).file_uris()}


def test_a_run_writes_in_proportion_to_what_is_new(tables: DeltaTables, log: Recorded) -> None:
    tables.optimize([ITEMS, RESOURCE_HEALTH])
    before = {table: files(tables, table) for table in (ITEMS, RESOURCE_HEALTH)}
    assert all(len(each) >= 5 for each in before.values())
    steps = Steps(tables, Suited(few=False, few_new=True))
    for table in (LEASES, ITEMS, RESOURCE_HEALTH):
        steps.bring(table, tables.progress(table), tables.progress(EVENTS))
    steps.close()
    for table, known in before.items():
        now = files(tables, table)
        written = sum(rows for path, rows in now.items() if path not in known)
        assert 4 <= written <= 120, f"{table.name}: of {sum(now.values())} rows"
        assert len(known.keys() - now.keys()) <= 3, table.name
    plain = Plain(log.shard, log.events)
    assert_holds(tables, LEASES, plain.lease_rows())
    assert_holds(tables, ITEMS, plain.item_rows())
    assert_holds(tables, RESOURCE_HEALTH, health_rows(log))


def test_resources_are_named_while_they_are_few(few_spark: SparkSession) -> None:
    ddl = "shard STRING, resource_type STRING, resource_id STRING"

    def of(*rows: tuple[str, str | None, str | None]) -> str | None:
        return resources_of(few_spark.createDataFrame(rows, ddl))

    some = of(("it's", "table", "a"), ("b", "file", "\\'"), ("b", "table", "\\'"), ("b", None, None))
    assert some == "(shard = 'b' AND resource_id IN ('\\\\\\'')) OR (shard = 'it\\'s' AND resource_id IN ('a'))"
    assert of(("b", None, None)) == "false"
    assert of(("b", "table", None)) is None
    many = [("b", "table", str(number)) for number in range(RESOURCES_MAX)]
    assert of(*many) is not None
    assert of(*many, ("b", "table", "one more")) is None
