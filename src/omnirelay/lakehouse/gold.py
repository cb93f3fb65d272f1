"""Gold that follows leases: `lineage`, made anew for what has changed, and `resource_health`, which is added to."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse.formats import NO_ROW
from omnirelay.lakehouse.progress import End, Progress
from omnirelay.lakehouse.silver import in_shape, quoted
from omnirelay.lakehouse.tables import LINEAGE, RESOURCE_HEALTH
from omnirelay.lakehouse.tallies import COARSE_BITS, percentiles, rounded, tally

IN_A_ROW: Final = 3
"""Failures, or expiries, one after the other that make a resource unwell."""
GRANTED_NOW: Final = "granted_now"
"""Of a lease that has changed: whether it was granted since, too."""
RESOURCES_MAX: Final = 1_000
"""So many resources are named in a condition at most. With more, most files would have one of them."""
_RESOURCE: Final = ("shard", "resource_type", "resource_id")
_OUTCOMES: Final = ("completed", "failed", "expired", "released", "cancelled")
_SUMS: Final = ("leases", "live", *_OUTCOMES)


def changed_since(rows: DataFrame, after: Progress, upto: Progress) -> DataFrame:
    """Leases that an event behind `after` concerned, with each whether it was granted behind it."""
    chosen: Column = F.lit(False)
    granted: Column = F.lit(False)
    for shard, end in upto.items():
        begin = after.get(shard, End(0)).sequence
        if begin < end.sequence:
            here = F.col("shard") == shard
            chosen = chosen | (here & (F.col("last_sequence") > begin))
            granted = granted | (here & (F.col("fence") > begin))
    return rows.where(chosen).withColumn(GRANTED_NOW, granted)


def lineage(changed: DataFrame) -> DataFrame:
    rows = changed.withColumn("peer", F.col("owner")).withColumn("started_at", F.col("granted_at"))
    return in_shape(rows, LINEAGE)


# -- resource_health ---------------------------------------------------------------------------


def resources_of(changed: DataFrame) -> str | None:
    """That a row of the table is of a resource that these leases are of, or of its namesake of another type; None when
    there are too many to name.
    """
    mine = changed.where("resource_type IS NOT NULL").select("shard", "resource_id").distinct()
    found = [tuple(row) for row in mine.limit(RESOURCES_MAX + 1).collect()]
    if len(found) > RESOURCES_MAX or any(name is None for _, name in found):
        return None
    names: dict[str, list[str]] = {}
    for shard, name in sorted(found):
        names.setdefault(shard, []).append(quoted(name))
    parts = (f"(shard = {quoted(shard)} AND resource_id IN ({', '.join(each)}))" for shard, each in names.items())
    return " OR ".join(parts) or NO_ROW


def resource_health(changed: DataFrame, known: DataFrame | None) -> DataFrame:
    """How resources are that leases have changed: what `known`, their rows of the table as it is, says and what is new.

    `changed` are leases as `changed_since` has them. Those that were granted before were live, as no others change.
    What is in a row is told by fences, in the order of grants, not of ends: whatever comes, a failure counts while no
    lease that was granted later was completed. So the fences behind the last completed one are all that is kept.
    """
    mine = changed.where("resource_type IS NOT NULL")
    parts = _summed(mine).unionByName(_timed(mine, known), allowMissingColumns=True)
    if known is not None:
        parts = parts.unionByName(known.drop("work_times", "work_p95_ms"), allowMissingColumns=True)
    last = F.max(F.when(F.col("last_fence").isNotNull(), F.struct("last_fence", "last_outcome")))
    rows = parts.groupBy(*_RESOURCE).agg(
        *(F.sum(name).alias(name) for name in _SUMS),
        F.array_sort(F.array_distinct(_all("owner_names"))).alias("owner_names"),
        F.max("good_fence").alias("good_fence"),
        F.max("other_fence").alias("other_fence"),
        F.array_sort(_all("bad_fences")).alias("bad_fences"),
        F.array_sort(_all("expired_fences")).alias("expired_fences"),
        last.alias("last"),
        F.max("last_ended_at").alias("last_ended_at"),
        _all("work_times").alias("work_times"),  # Of one row for each resource.
        F.max("work_p95_ms").alias("work_p95_ms"),
    )
    rows = rows.select("*", "last.*").withColumns(
        {
            "owners": F.size("owner_names"),
            "bad_fences": F.expr("filter(bad_fences, f -> f > good_fence)"),
            "expired_fences": F.expr("filter(expired_fences, f -> f > other_fence)"),
        }
    )
    rows = rows.withColumn("failures_in_a_row", F.size("bad_fences"))
    rows = rows.withColumn("expiries_in_a_row", F.size("expired_fences"))
    health = (
        F.when(F.col("last_outcome").isNull(), F.lit("new"))
        .when(F.col("expiries_in_a_row") >= IN_A_ROW, F.lit("expiring"))
        .when(F.col("failures_in_a_row") >= IN_A_ROW, F.lit("failing"))
        .otherwise(F.lit("healthy"))
    )
    return in_shape(rows.withColumn("health", health), RESOURCE_HEALTH)


def _all(name: str) -> Column:
    """In a group: what is in the arrays of any row."""
    return F.flatten(F.collect_list(name))


def _summed(leases: DataFrame) -> DataFrame:
    """What leases that have changed add to their resources, but for how long they took."""
    outcome, fence = F.col("outcome"), F.col("fence")
    ended = outcome.isNotNull()
    lives = F.when(ended, 0).otherwise(1) - F.when(F.col(GRANTED_NOW), 0).otherwise(1)

    def greatest(condition: Column) -> Column:
        return F.coalesce(F.max(F.when(condition, fence)), F.lit(0))

    def fences(*outcomes: str) -> Column:
        return F.collect_list(F.when(outcome.isin(*outcomes), fence))

    return leases.groupBy(*_RESOURCE).agg(
        F.count(F.when(F.col(GRANTED_NOW), 1)).alias("leases"),
        F.sum(lives).alias("live"),
        *(F.count(F.when(outcome == each, 1)).alias(each) for each in _OUTCOMES),
        F.collect_set("owner").alias("owner_names"),
        greatest(outcome == "completed").alias("good_fence"),
        greatest(ended & (outcome != "expired")).alias("other_fence"),
        fences("failed", "expired").alias("bad_fences"),
        fences("expired").alias("expired_fences"),
        F.max(F.when(ended, fence)).alias("last_fence"),
        F.max_by("outcome", F.when(ended, fence)).alias("last_outcome"),
        F.max("ended_at").alias("last_ended_at"),
    )


def _timed(leases: DataFrame, known: DataFrame | None) -> DataFrame:
    """How long completed leases took, those before and those that were since, a row for each resource."""
    one = F.lit(1).cast("bigint").alias("leases")
    times = leases.where("outcome = 'completed' AND work_ms IS NOT NULL")
    times = times.select(*_RESOURCE, rounded("work_ms", COARSE_BITS), one)
    if known is not None:
        times = times.unionByName(known.select(*_RESOURCE, F.inline("work_times")))
    counted = times.groupBy(*_RESOURCE, "ms").agg(F.sum("leases").alias("leases"))
    ms, count = F.col("ms"), F.col("leases")
    return counted.groupBy(*_RESOURCE).agg(tally(ms, count).alias("work_times"), *percentiles(ms, count, "work", [95]))
