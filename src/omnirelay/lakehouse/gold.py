"""Gold that follows leases: `lineage` and `resource_health`, made anew for what has changed."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse.progress import End, Progress
from omnirelay.lakehouse.silver import in_shape
from omnirelay.lakehouse.tables import LINEAGE, RESOURCE_HEALTH

IN_A_ROW: Final = 3
"""Failures, or expiries, one after the other that make a resource unwell."""
_RESOURCE: Final = ("shard", "resource_type", "resource_id")


def changed_since(rows: DataFrame, after: Progress, upto: Progress) -> DataFrame:
    """Rows of a silver table that an event behind `after` concerned."""
    chosen: Column = F.lit(False)
    for shard, end in upto.items():
        begin = after.get(shard, End(0)).sequence
        if begin < end.sequence:
            chosen = chosen | ((F.col("shard") == shard) & (F.col("last_sequence") > begin))
    return rows.where(chosen)


def lineage(changed: DataFrame) -> DataFrame:
    rows = changed.withColumn("peer", F.col("owner")).withColumn("started_at", F.col("granted_at"))
    return in_shape(rows, LINEAGE)


def resource_health(leases: DataFrame, changed: DataFrame | None, *, few: bool = False) -> DataFrame:
    """How the resources of changed leases are, None for all of them; `leases` are all. `few` of them have changed."""
    mine = leases.where("resource_type IS NOT NULL")
    if changed is not None:
        touched = changed.select(*_RESOURCE).where("resource_type IS NOT NULL").distinct()
        if few:
            touched = F.broadcast(touched)  # Or all leases would be sorted for it.
        mine = mine.join(touched, on=list(_RESOURCE), how="left_semi")
    ended = F.col("outcome").isNotNull()

    def count(outcome: str) -> Column:
        return F.count(F.when(F.col("outcome") == outcome, 1)).alias(outcome)

    last_good = F.coalesce(F.max(F.when(F.col("outcome") == "completed", F.col("fence"))), F.lit(0))
    last_other = F.coalesce(F.max(F.when(ended & (F.col("outcome") != "expired"), F.col("fence"))), F.lit(0))
    bad = F.array_sort(F.collect_list(F.when(F.col("outcome").isin("failed", "expired"), F.col("fence"))))
    expired = F.array_sort(F.collect_list(F.when(F.col("outcome") == "expired", F.col("fence"))))
    rows = mine.groupBy(*_RESOURCE).agg(
        F.count("*").alias("leases"),
        F.count(F.when(~ended, 1)).alias("live"),
        *(count(each) for each in ("completed", "failed", "expired", "released", "cancelled")),
        F.size(F.collect_set("owner")).alias("owners"),
        last_good.alias("last_good"),
        last_other.alias("last_other"),
        bad.alias("bad"),
        expired.alias("ran_out"),
        F.max_by("outcome", F.when(ended, F.col("fence"))).alias("last_outcome"),
        F.max("ended_at").alias("last_ended_at"),
        F.percentile(F.when(F.col("outcome") == "completed", F.col("work_ms")), 0.95).alias("work_p95_ms"),
    )
    rows = rows.withColumn("failures_in_a_row", F.expr("size(filter(bad, f -> f > last_good))"))
    rows = rows.withColumn("expiries_in_a_row", F.expr("size(filter(ran_out, f -> f > last_other))"))
    health = (
        F.when(F.col("last_outcome").isNull(), F.lit("new"))
        .when(F.col("expiries_in_a_row") >= IN_A_ROW, F.lit("expiring"))
        .when(F.col("failures_in_a_row") >= IN_A_ROW, F.lit("failing"))
        .otherwise(F.lit("healthy"))
    )
    return in_shape(rows.withColumn("health", health), RESOURCE_HEALTH)
