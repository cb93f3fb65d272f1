"""What SQL passes over without looking at every event: numbers that are in line, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from omnirelay.lakehouse.audit_sql_frames import out_of_line
from omnirelay.lakehouse.audit_sql_pieces import kinds_in, odd_buckets, pieces, told_depth
from omnirelay.lakehouse.columns import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

_SHARDS = "shard STRING, first BIGINT, anchor BIGINT, anchor_generation BIGINT"


def events(spark: SparkSession, numbers: list[int], **others: dict[int, Any]) -> DataFrame:
    """Events of one shard in frames of fifty, in this order; `others` are columns by the number of the event."""
    schema = spark_schema()
    rows = []
    for number in numbers:
        given = {"shard": "jobs", "sequence": number, "event_type": "TimeAdvanced", "frame_generation": 1}
        given |= {"frame_first": (number - 1) // 50 * 50 + 1}
        given |= {name: values[number] for name, values in others.items() if number in values}
        rows.append(tuple(given.get(name) for name in schema.fieldNames()))
    for field in schema:
        field.nullable = True
    return spark.createDataFrame(rows, schema)


def found_in(spark: SparkSession, log: DataFrame) -> tuple[set[int], list[tuple[str, int]]]:
    """The buckets that are looked at event by event, and what is out of line in them."""
    shards = spark.createDataFrame([("jobs", 1, 0, 0)], _SHARDS)
    odd = odd_buckets(pieces(log), shards)
    named = out_of_line(log, odd, shards).collect()
    return {row["bucket"] for row in odd.collect() if row["judged"]}, [(row["rule"], row["sequence"]) for row in named]


def test_numbers_in_line_are_not_looked_at_one_by_one(whole_spark: SparkSession) -> None:
    assert found_in(whole_spark, events(whole_spark, list(range(1, 201)))) == (set(), [])


def test_a_number_that_came_twice_does_not_hide_a_gap(whole_spark: SparkSession) -> None:
    numbers = [number if number != 70 else 90 for number in range(1, 201)]
    buckets, found = found_in(whole_spark, events(whole_spark, numbers))
    assert buckets == {1}
    assert found == [("contiguity", 71), ("contiguity", 90)]


def test_a_gap_between_two_buckets_is_found(whole_spark: SparkSession) -> None:
    numbers = [number for number in range(1, 201) if not 60 <= number < 128]
    assert found_in(whole_spark, events(whole_spark, numbers)) == ({2}, [("contiguity", 128)])


def test_a_generation_that_falls_is_found_and_one_that_starts_may_jump(whole_spark: SparkSession) -> None:
    falling = events(whole_spark, list(range(1, 201)), frame_generation=dict.fromkeys(range(128, 201), 0))
    assert found_in(whole_spark, falling) == ({2}, [("fences", 128)])
    numbers = [*range(1, 101), *range(5_000, 5_101)]
    later = {"generation": {5_000: 2}, "frame_generation": dict.fromkeys(range(5_000, 5_101), 2)}
    jump = events(whole_spark, numbers, event_type={5_000: "GenerationStarted"}, **later)
    assert found_in(whole_spark, jump) == ({78}, [])


def test_pieces_say_which_rare_types_there_are_and_what_frames_tell(whole_spark: SparkSession) -> None:
    kinds = {1: "Enqueue", 51: "DrainSnapshot", 52: "RestoreSnapshot"}
    log = events(whole_spark, list(range(1, 121)), event_type=kinds, queue_pending={1: 2, 51: 3, 52: 9, 101: None})
    made = pieces(log)
    masks = [row["kinds"] for row in made.collect()]
    assert set().union(*map(kinds_in, masks)) == {"DrainSnapshot", "RestoreSnapshot"}
    told = {row["frame_first"]: (row["told_pending"], row["told_leased"]) for row in told_depth(made).collect()}
    assert told == {1: (2, 0), 51: (3, 0)}, "what stands beside a frame's first event counts"
