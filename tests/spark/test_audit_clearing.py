"""Clearing items before SQL changes nothing of what SQL says, whatever stands in the columns."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from omnirelay.lakehouse.audit_clearing import clear
from omnirelay.lakehouse.audit_opinion import SqlOpinion
from omnirelay.lakehouse.audit_plan import ShardPlan, plan
from omnirelay.lakehouse.audit_segments import read_columns
from omnirelay.lakehouse.audit_sql_left import ClearedSegments, is_in_order
from omnirelay.lakehouse.audit_tasks import ROWS_OF_SEGMENTS, padded
from omnirelay.lakehouse.sizing import Sizing
from omnirelay.segments.arrow import frames_to_arrow
from omnirelay.segments.manifest import Before, segment_key
from omnirelay.segments.parquet import encode_table
from tests.spark.audit_plants import short_log
from tests.spark.workload import recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

_PIECES = 3
_SHARDS = 96
_NAMED = ("ownership_sequence_id", "sequence_id", "ownership_fence", "ownership_lease_id", "expires_at", "event_type")
_ODD_VALUES: dict[str, list[Any]] = {
    "sequence": [1, 7, 10**6],
    "event_type": ["Completed", "LeaseGranted", "Enqueue", "Heartbeat", "Cancelled", "TimeAdvanced", "Purged"],
    "ownership_sequence_id": [None, 1, 2, 5, 9],
    "ownership_fence": [None, 3, 10**6, -1],
    "ownership_lease_id": [None, "another"],
    "sequence_id": [None, 1, 2, 9],
    "sequence_ids": ["[1]", "[1, 1]", "[2, 3]", "no list", "[1.0]", "[99999999999999999999]"],
    "frame_first": [1, 2, 9],
    "frame_generation": [0, 2],
    "queue_pending": [None, 0, -1, 3],
    "queue_active": [None, 0, -1, 3],
    "chain": [None, b"\7" * 32],
    "timestamp": [10**12, 4 * 10**12],
    "expires_at": [None, -1, 5],
}


class Table:
    """All events of a shard, to be changed."""

    def __init__(self, parts: list[pa.Table]) -> None:
        self._schema = parts[0].schema
        self.rows = [part.to_pylist() for part in parts]

    def harm(self, choice: random.Random) -> None:
        places = [(part, at) for part, rows in enumerate(self.rows) for at in range(len(rows))]
        (part, at), (other, there) = choice.sample(places, 2)
        row, found = self.rows[part][at], self.rows[other][there]
        match choice.randrange(6):
            case 0:
                row |= {name: found[name] for name in _NAMED}  # Said of another item, maybe of another segment.
            case 1:
                name = choice.choice(list(_ODD_VALUES))
                row[name] = choice.choice(_ODD_VALUES[name])
            case 2:
                for name in _NAMED:
                    row[name], found[name] = found[name], row[name]
            case 3:
                del self.rows[part][at]
            case 4:
                self.rows[part].insert(at, dict(row))
            case _:
                row["event_type"] = "TimeAdvanced"  # As if it had not happened.

    def parts(self) -> list[pa.Table]:
        return [pa.Table.from_pylist(_typed(rows, self._schema), schema=self._schema) for rows in self.rows]


def _typed(rows: list[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    instants = {field.name: field.type for field in schema if pa.types.is_timestamp(field.type)}
    return [
        {
            name: pa.scalar(value, instants[name]).as_py() if name in instants and isinstance(value, int) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _written(directory: Path, shards: int) -> list[ShardPlan]:
    """So many shards, most of them harmed in one or two places, some without their first segment."""
    for number in range(shards):
        write_segments(directory, recorded(f"s{number}", seed=number, steps=70), pieces=_PIECES)
    plans, _ = asyncio.run(plan(str(directory)))
    made = []
    for each in plans:
        number = int(each.shard[1:])
        choice = random.Random(number)
        paths = [directory / segment_key(each.shard, entry.name) for entry in each.entries]
        table = Table([read_columns(path.read_bytes()) for path in paths])
        for _ in range(number % 3):
            table.harm(choice)
        for path, part in zip(paths, table.parts(), strict=True):
            path.write_bytes(encode_table(part))
        if number % 4 == 3:
            first, *rest = each.entries
            each = msgspec.structs.replace(each, anchor=Before.of(first.end), entries=tuple(rest))
        made.append(each)
    return made


def _segments(spark: SparkSession, directory: Path, plans: list[ShardPlan]) -> ClearedSegments:
    found: dict[str, list[Any]] = {}
    batches = []
    for each in plans:
        for entry in each.entries:
            columns = read_columns((directory / segment_key(each.shard, entry.name)).read_bytes())
            cleared = clear(columns, each.shard, entry.before.sequence, min(entry.last, each.last))
            found.setdefault(each.shard, []).append(None if cleared is None else cleared[0])
            if cleared is not None:
                left = (cleared[1].rows, cleared[1].frames)
                batches += [padded(batch, ROWS_OF_SEGMENTS, shard=each.shard) for batch in left]
    return ClearedSegments(found, spark.createDataFrame(pa.Table.from_batches(batches)))


@pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make spark-test")
def test_whatever_stands_in_the_columns_sql_says_the_same_with_and_without_clearing(
    spark: SparkSession, tmp_path: Path
) -> None:
    plans = _written(tmp_path, shards=_SHARDS)
    entries = {each.shard: each.entries for each in plans}
    by_name = {each.shard: each for each in plans}
    segments = _segments(spark, tmp_path, plans)

    def opinion(with_it: ClearedSegments | None) -> SqlOpinion:
        return SqlOpinion(spark, str(tmp_path), by_name, entries, {}, lambda what: None, with_it)

    with Sizing(spark).suited(0):
        in_order = opinion(segments).in_order(segments)
        of_all = opinion(None).run()
    wrong = {each.shard for each in of_all.opined}
    assert wrong.isdisjoint(in_order)
    assert {shard: of_all.states.get(shard, {}) for shard in in_order} == in_order
    # Neither is empty: what was left alone is in order without every event being asked for, and harm is found.
    untouched = {each for each in by_name if int(each[1:]) % 3 == 0}
    assert len(untouched & in_order.keys()) > len(untouched) / 2
    assert len(wrong) > len(plans) / 4


def _columns(shard: str = "jobs") -> tuple[pa.Table, int]:
    log = short_log(shard)
    table = pa.Table.from_batches([frames_to_arrow(log.frames, None)])
    return table, log.state.sequence


def test_an_item_that_ended_is_cleared_and_others_are_left_with_all_their_rows() -> None:
    table, last = _columns()
    cleared = clear(table, "jobs", 0, last)
    assert cleared is not None
    facts, left = cleared
    assert facts.states["completed"] == sum(facts.states.values()) == 1
    assert facts.enqueued == (1, 8)
    [done] = [row["ownership_sequence_id"] for row in table.to_pylist() if row["event_type"] == "Completed"]
    named = [row["ownership_sequence_id"] or row["sequence_id"] for row in table.to_pylist()]
    assert left.rows["item"].to_pylist() == sorted(item for item in named if item is not None and item != done)
    assert facts.left == left.rows.num_rows
    # What the cleared item changed adds up to nothing: it came and went.
    assert sum(left.frames["more_pending"].to_pylist()) == sum(left.frames["more_leased"].to_pylist()) == 0


def test_of_a_stretch_only_what_is_in_it_is_cleared() -> None:
    table, last = _columns()
    types = table["event_type"].to_pylist()
    before = table["sequence"].to_pylist()[types.index("Completed")] - 1
    cleared = clear(table, "jobs", 0, before)
    assert cleared is not None
    assert sum(cleared[0].states.values()) == 0
    nothing = clear(table, "jobs", last, last - 1)
    assert nothing is None, "events that should not be there"
    empty = clear(table.slice(0, 0), "jobs", last, last)
    assert empty is not None
    assert empty[0].generations is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("sequence", 10**6), ("shard", "another"), ("frame_first", None), ("frame_generation", None)],
)
def test_where_numbers_or_frames_are_odd_all_of_a_segment_is_left_to_sql(name: str, value: Any) -> None:
    table, last = _columns()
    for at in (0, table.num_rows - 1):
        values = table[name].to_pylist()
        if values[at] == value:
            continue
        values[at] = value
        field = table.schema.field(name).with_nullable(True)
        harmed = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
        assert clear(harmed, "jobs", 0, last) is None


def test_a_shard_of_which_some_rows_did_not_arrive_is_not_in_order() -> None:
    table, last = _columns()
    cleared = clear(table, "jobs", 0, last)
    assert cleared is not None
    facts, _ = cleared
    found = {"rows": facts.left, "tells": facts.told, "wrong_all": 0}
    assert is_in_order([facts], found)
    assert not is_in_order([facts], None)
    for name in found:
        assert not is_in_order([facts], {**found, name: found[name] + 1})
