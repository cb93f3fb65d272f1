"""Bronze: every event of the log as it stands in the segments, once, by shard and day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from omnirelay.lakehouse.bronze_source import Refused, ShardPlan
from omnirelay.lakehouse.columns import spark_schema
from omnirelay.lakehouse.formats import TableStore
from omnirelay.lakehouse.progress import End, Progress
from omnirelay.lakehouse.segment_files import as_it_is
from omnirelay.lakehouse.tables import QUARANTINE


def new_events(spark: SparkSession, plans: Sequence[ShardPlan], after: Progress) -> DataFrame | None:
    """The events of these plans that are not in the table yet, by Spark's own Parquet scan; None for none."""
    paths = [as_it_is(path) for plan in plans for path in plan.paths]
    if not paths:
        return None
    schema = spark_schema()
    if set().union(*(plan.columns for plan in plans)) <= set(schema.names):
        # Nothing has to be looked up in the files before they are read.
        rows = spark.read.schema(schema).parquet(*paths)
    else:
        # A newer version wrote columns that this one does not know: all that any of the segments has.
        rows = spark.read.option("mergeSchema", "true").parquet(*paths)
    # Segments that were merged since reach back behind the end of the table.
    for plan in plans:
        known = after.get(plan.shard)
        if plan.paths and known is not None:
            rows = rows.where(~((F.col("shard") == plan.shard) & (F.col("sequence") <= known.sequence)))
    return rows.withColumn("date", F.to_date("timestamp"))


def ends_of(plans: Sequence[ShardPlan], after: Progress) -> Progress:
    """Where bronze ends when these plans are taken."""
    return {**after, **{plan.shard: plan.end for plan in plans if plan.end is not None}}


def between(events: DataFrame, after: Progress, upto: Progress, *, touching: bool = False) -> DataFrame:
    """The events behind `after` up to `upto`; with `touching` the last one before them, too."""
    chosen: Column = F.lit(False)
    for shard, end in upto.items():
        begin = after.get(shard, End(0)).sequence
        if begin >= end.sequence:
            continue
        behind = F.col("sequence") >= begin if touching else F.col("sequence") > begin
        chosen = chosen | ((F.col("shard") == shard) & behind & (F.col("sequence") <= end.sequence))
    return events.where(chosen)


def frames_between(events: DataFrame, after: Progress, upto: Progress) -> DataFrame:
    """The first event of every frame behind `after` up to `upto`, and the last event before them."""
    begin: Column = F.lit(False)
    for shard, end in after.items():
        begin = begin | ((F.col("shard") == shard) & (F.col("sequence") == end.sequence))
    return between(events, after, upto, touching=True).where((F.col("sequence") == F.col("frame_first")) | begin)


def quarantine(tables: TableStore, refused: Sequence[Refused]) -> int:
    """Record segments that were refused, each once; how many of them are new."""
    if not refused:
        return 0
    known = set()
    if tables.exists(QUARANTINE):
        known = {tuple(row) for row in tables.read(QUARANTINE).select(*QUARANTINE.keys).collect()}
    new = [each for each in refused if (each.shard, each.segment, each.reason) not in known]
    if new:
        now = datetime.now(UTC)
        values = [(each.shard, each.segment, each.sequence, each.reason, now) for each in new]
        rows = tables.spark.createDataFrame(values, QUARANTINE.ddl)
        tables.append(QUARANTINE, rows, {"": End(len(known) + len(new))})
    return len(new)
