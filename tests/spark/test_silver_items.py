"""Which items of the past a run looks at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnirelay.lakehouse.formats_delta import DeltaTables
from omnirelay.lakehouse.formats_iceberg import _renamed
from omnirelay.lakehouse.progress import End
from omnirelay.lakehouse.silver import CHANGES_DDL, CHANGES_NAMES, from_items_on, oldest_items
from omnirelay.lakehouse.tables import Column, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRANGE = "it's t.1 \\ or 'so"
KEPT = Table(
    layer="silver",
    name="kept",
    meaning="an item",
    keys=("shard", "item"),
    columns=(Column("shard", "STRING", ""), Column("item", "BIGINT", "")),
)


def test_items_of_other_shards_are_not_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    """Every shard counts from 1: a new one must not make a run read all items that there are."""
    store = DeltaTables(spark, str(tmp_path / "lake"))
    for number, shard in enumerate(("jobs", STRANGE), 1):
        rows = store.spark.createDataFrame([(shard, item) for item in range(1, 6)], KEPT.ddl).coalesce(1)
        store.append(KEPT, rows, {"": End(number)})
    named = [(STRANGE, 4), (STRANGE, 3), ("new", 1), ("new", None)]
    values = [tuple({"shard": shard, "item": item}.get(name) for name in CHANGES_NAMES) for shard, item in named]
    oldest = oldest_items(store.spark.createDataFrame(values, CHANGES_DDL))
    assert oldest == {STRANGE: 3, "new": 1}
    chosen = store.read(KEPT).where(from_items_on(oldest))
    assert sorted(tuple(row) for row in chosen.collect()) == [(STRANGE, 3), (STRANGE, 4), (STRANGE, 5)]
    assert (len(chosen.inputFiles()), len(store.read(KEPT).inputFiles())) == (1, 2)
    assert store.read(KEPT).where(from_items_on({})).collect() == []


@pytest.mark.parametrize("shard", ["jobs", STRANGE, "t.", "\\", "'"])
def test_only_the_name_of_the_table_is_replaced_in_a_condition(shard: str) -> None:
    condition = from_items_on({shard: 7}, "t.")
    assert _renamed(condition, "branch") == from_items_on({shard: 7}, "branch.")
