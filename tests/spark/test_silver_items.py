"""Which items of the past a run looks at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnirelay.lakehouse.formats_delta import DeltaTables
from omnirelay.lakehouse.formats_iceberg import _renamed
from omnirelay.lakehouse.gold_windows import news_of
from omnirelay.lakehouse.progress import End
from omnirelay.lakehouse.silver import CHANGES_DDL, CHANGES_NAMES, COMING_BACK, Ranges, both, open_or_back, ranges_of
from omnirelay.lakehouse.tables import Column, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STRANGE = "it's t.1 \\ or 'so"
KEPT = Table(
    layer="silver",
    name="kept",
    meaning="an item",
    keys=("shard", "item"),
    columns=(Column("shard", "STRING", ""), Column("item", "BIGINT", ""), Column("ended_at", "BIGINT", "")),
)


def changes(spark: SparkSession, *named: tuple[str, int | None, str]) -> DataFrame:
    """Events of items: shard, item and type."""
    values = [
        tuple({"shard": shard, "item": item, "kind": kind}.get(name) for name in CHANGES_NAMES)
        for shard, item, kind in named
    ]
    return spark.createDataFrame(values, CHANGES_DDL)


def test_only_events_that_bring_items_back_say_which_had_ended(few_spark: SparkSession) -> None:
    """A sign of life of an item from long ago must not make a run read all items behind it."""
    found = ranges_of(
        changes(
            few_spark,
            ("jobs", 1, "Heartbeat"),
            ("jobs", 40, "Redriven"),
            ("jobs", 7, "DeadLetterEdited"),
            ("jobs", 90, "Enqueue"),
            ("jobs", None, "Redriven"),
            (STRANGE, 3, "RestoreSnapshot"),
            ("new", 1, "Enqueue"),
        ),
        COMING_BACK,
    )
    assert found == {"jobs": (7, 40), STRANGE: (3, 3)}


def test_items_are_looked_at_where_some_come_back_and_where_open_ones_go_on(
    few_spark: SparkSession, tmp_path: Path
) -> None:
    """Every shard counts from 1: what comes back in one must not make a run read the items of another. And however long
    a queue is, only what goes on in it is read.
    """
    store = DeltaTables(few_spark, str(tmp_path / "lake"))
    number = 0
    for shard in ("jobs", STRANGE):
        for items in ((1, 2), (3, 4), (5, 6)):
            number += 1
            rows = [(shard, item, 10) for item in items]
            store.append(KEPT, store.spark.createDataFrame(rows, KEPT.ddl).coalesce(1), {"": End(number)})
    for first in (7, 9):
        waiting = store.spark.createDataFrame([("jobs", first, None), ("jobs", first + 1, None)], KEPT.ddl).coalesce(1)
        store.append(KEPT, waiting, {"": End(number + first)})

    def looked_at(going_on: Ranges, back: Ranges) -> tuple[list[tuple[str, int]], int]:
        chosen = store.read(KEPT).where(open_or_back(going_on, back))
        return sorted((row.shard, row.item) for row in chosen.collect()), len(chosen.inputFiles())

    assert len(store.read(KEPT).inputFiles()) == 8
    assert looked_at({"jobs": (1, 7)}, {STRANGE: (5, 6)}) == ([(STRANGE, 5), (STRANGE, 6), ("jobs", 7)], 2)
    assert looked_at({"jobs": (8, 8)}, {}) == ([("jobs", 8)], 1)
    assert looked_at({"jobs": (8, 9)}, {}) == ([("jobs", 8), ("jobs", 9)], 2)
    assert looked_at({}, {}) == ([], 0)
    assert looked_at({STRANGE: (1, 99)}, {})[0] == [], "what has ended does not go on"


def test_what_is_said_of_a_shard_twice_reaches_from_the_first_to_the_last() -> None:
    assert both({"a": (3, 5), "b": (1, 1)}, {"a": (4, 9), "c": (2, 2)}) == {"a": (3, 9), "b": (1, 1), "c": (2, 2)}
    assert both({}, {}) == {}


def test_the_last_event_that_was_there_before_is_not_among_the_new_ones(few_spark: SparkSession) -> None:
    """It says when the last window began; what it brought back, or went on, is in the tables."""
    at = datetime(2026, 3, 1, tzinfo=UTC)
    values: list[tuple[str, int, str, datetime, int | None, int | None]] = [
        ("jobs", 5, "Heartbeat", at, None, 1),
        ("jobs", 6, "Enqueue", at + timedelta(1), 90, None),
        ("jobs", 7, "LeaseGranted", at + timedelta(1), None, 40),
        ("jobs", 8, "Cancelled", at + timedelta(1), 7, None),
        ("jobs", 9, "DeadLetterEdited", at + timedelta(1), 3, None),
        ("jobs", 10, "Redriven", at + timedelta(1), None, None),
        ("new", 1, "Enqueue", at, 1, None),
    ]
    ddl = "shard STRING, sequence BIGINT, event_type STRING, timestamp TIMESTAMP, sequence_id BIGINT"
    events = few_spark.createDataFrame(values, f"{ddl}, ownership_sequence_id BIGINT")
    news = news_of(events, {"jobs": End(5)})
    assert news.kinds == {"Enqueue", "LeaseGranted", "Cancelled", "DeadLetterEdited", "Redriven"}
    assert [span.last_ms - span.first_ms for span in news.spans] == [86_400_000, 0]
    assert news.going_on == {"jobs": (7, 40)}


@pytest.mark.parametrize("shard", ["jobs", STRANGE, "t.", "\\", "'"])
def test_only_the_name_of_the_table_is_replaced_in_a_condition(shard: str) -> None:
    condition = open_or_back({shard: (1, 2)}, {shard: (7, 9)}, "t.")
    assert _renamed(condition, "branch") == open_or_back({shard: (1, 2)}, {shard: (7, 9)}, "branch.")
