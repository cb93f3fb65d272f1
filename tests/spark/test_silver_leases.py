"""Leases folded from a few events made by hand: what is known of the past counts, and what nobody knows is null."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from omnirelay.lakehouse.silver import CHANGES_DDL, CHANGES_NAMES
from omnirelay.lakehouse.silver_leases import fold_leases
from omnirelay.lakehouse.tables import ITEMS, LEASES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def changes(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    values = [tuple({"shard": "jobs", **row}.get(name) for name in CHANGES_NAMES) for row in rows]
    return spark.createDataFrame(values, CHANGES_DDL)


def known(spark: SparkSession, names: tuple[str, ...], ddl: str, **row: Any) -> DataFrame:
    return spark.createDataFrame([tuple({"shard": "jobs", **row}.get(name) for name in names)], ddl)


def test_the_past_of_items_and_leases_counts_and_an_unknown_wait_is_null(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    new = changes(
        spark,
        {"item": 1, "sequence": 20, "at": at(20), "kind": "LeaseGranted", "lease_id": "a", "fence": 20, "peer": "ada"},
        {"item": 2, "sequence": 21, "at": at(21), "kind": "LeaseGranted", "lease_id": "b", "fence": 21, "peer": "bob"},
        {"item": 3, "sequence": 22, "at": at(22), "kind": "Cancelled"},
    )
    items = known(spark, ITEMS.names, ITEMS.ddl, item=2, ready_at=at(11), resource_type="table", resource_id="orders")
    live = known(
        spark, LEASES.names, LEASES.ddl, lease_id="c", item=3, fence=9, owner="cid", granted_at=at(9), heartbeats=4
    ).unionByName(known(spark, LEASES.names, LEASES.ddl, lease_id="d", item=4, fence=10, heartbeats=0))
    rows = {row.lease_id: row for row in fold_leases(new, items, live).collect()}
    assert set(rows) == {"a", "b", "c"}, "nothing new is said of d"
    assert (rows["a"].owner, rows["a"].wait_ms, rows["a"].resource_id) == ("ada", None, None)
    assert (rows["b"].owner, rows["b"].wait_ms, rows["b"].resource_id) == ("bob", 10_000, "orders")
    cancelled = rows["c"]
    assert (cancelled.outcome, cancelled.owner, cancelled.heartbeats, cancelled.work_ms) == (
        "cancelled",
        "cid",
        4,
        13_000,
    )
    assert cancelled.last_sequence == 22


def test_each_lease_of_an_item_that_came_back_ends_with_the_cancellation_behind_it(spark: SparkSession) -> None:
    def event(sequence: int, kind: str, **more: Any) -> dict[str, Any]:
        return {"item": 1, "sequence": sequence, "at": at(sequence), "kind": kind, **more}

    new = changes(
        spark,
        event(5, "LeaseGranted", lease_id="a", fence=5),
        event(10, "Cancelled"),
        event(20, "LeaseGranted", lease_id="b", fence=20),
        event(25, "Cancelled"),
    )
    nothing = spark.createDataFrame([], ITEMS.ddl), spark.createDataFrame([], LEASES.ddl)
    rows = {row.lease_id: (row.outcome, row.ended_at.second) for row in fold_leases(new, *nothing).collect()}
    assert rows == {"a": ("cancelled", 10), "b": ("cancelled", 25)}
