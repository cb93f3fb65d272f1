"""The work of an audit as Spark's tasks: which segment, which shard, and what came of it.

A task gets its number and finds in what it was sent along with what to do. It reads segments from the store itself: in
order, whole, and also those that Spark's scan would fail on.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from omnirelay.errors import LogDamaged
from omnirelay.lakehouse.audit_clearing import FRAMES, ROWS, Cleared, clear
from omnirelay.lakehouse.audit_digests import Known
from omnirelay.lakehouse.audit_lease_ids import MARKS, marks_of_grants
from omnirelay.lakehouse.audit_plan import ShardPlan
from omnirelay.lakehouse.audit_replay import Replay
from omnirelay.lakehouse.audit_rules import Findings, Opined, Replayed
from omnirelay.lakehouse.audit_segments import SegmentCheck
from omnirelay.lakehouse.waiting import waited
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.errors import ObjectMissing
from omnirelay.segments.manifest import Entry, segment_key
from omnirelay.segments.store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DONE: Final = pa.schema({"done": pa.string()})
REPLAYED: Final = pa.schema({"replayed": pa.string()})
"""What comes of a shard, as JSON."""
ROWS_OF_SEGMENTS: Final = pa.schema(
    {
        "done": pa.string(),
        "shard": pa.string(),
        **{field.name: field.type for schema in (ROWS, FRAMES, MARKS) for field in schema},
    }
)
"""What comes of segments: `done` of each, as JSON, and what is left to SQL. That are rows of items, with `item`, and
frames, with `more_pending`; and of lease ids that were granted there, with `bucket`.
"""
_LOOKS: Final = 3
"""How often a manifest is looked at that changes meanwhile."""

Options: TypeAlias = dict[str, Any] | None
"""Of the object store."""

_encode = msgspec.json.Encoder().encode


class ReplayDone(msgspec.Struct, frozen=True):
    """What the task of a shard sends back."""

    opined: Opined
    replayed: Replayed


class SegmentDone(msgspec.Struct, frozen=True):
    """What the task of a segment sends back, besides what it leaves to SQL."""

    opined: Opined
    cleared: Cleared | None = None
    """None when SQL has to look at all of the shard."""
    marked: bool = False
    """Whether its lease ids are told."""


class SegmentWork(msgspec.Struct, frozen=True):
    """The opinion on one segment. `places` are (number of the plan, number of the segment in it)."""

    address: str
    options: Options
    plans: list[ShardPlan]
    places: list[tuple[int, int]]
    buckets: int = 1
    """Of lease ids."""

    @property
    def count(self) -> int:
        return len(self.places)

    def run(self, number: int) -> Iterator[pa.RecordBatch]:
        of_plan, at = self.places[number]
        plan = self.plans[of_plan]
        entry = plan.entries[at]
        findings = Findings("files", plan.shard, plan.first, plan.last)
        check = SegmentCheck(findings, entry, plan.log_id, thorough=plan.looked_at(entry))
        try:
            # In a thread of its own: a loop in the main thread tells what came of its work to a handler of signals,
            # and all the bytes are spelled out for that.
            check.run(waited(self._fetched(plan.shard, entry)))
        except _Replaced:
            replaced = Opined.of(findings, usable=False, place=at, replaced=True)
            yield _told(SegmentDone(replaced))
            return
        opined = Opined.of(findings, usable=check.usable, place=at)
        cleared, marks = None, None
        if check.columns is not None:
            last = min(entry.last, plan.last)
            cleared = clear(check.columns, plan.shard, entry.before.sequence, last)
            marks = marks_of_grants(check.columns, last, self.buckets)
        facts = None if cleared is None else cleared[0]
        yield _told(SegmentDone(opined, facts, marks is not None))
        left = () if cleared is None else (cleared[1].rows, cleared[1].frames)
        for rows in (*left, *(() if marks is None else (marks,))):
            yield padded(rows, ROWS_OF_SEGMENTS, shard=plan.shard)

    async def _fetched(self, shard: str, entry: Entry) -> bytes | None:
        """What the segment holds; None when it is missing. Raises _Replaced when it need not be there any more."""
        store = await connect(self.address, self.options, writable=False)
        try:
            return await store.get(segment_key(shard, entry.name))
        except ObjectMissing:
            if await _is_listed(store, shard, entry):
                return None
            raise _Replaced from None


class _Replaced(Exception):
    """The newest manifest does not list the segment."""


async def _is_listed(store: ObjectStore, shard: str, entry: Entry) -> bool:
    """Whether the newest manifest lists a segment. What cannot be read of it is taken to do so."""
    for _ in range(_LOOKS):
        archive = Archive(store, shard)
        try:
            manifest = await archive.newest()
            if manifest is None:
                return True
            return entry in [each async for each in archive.segments(manifest, entry.first, entry.last)]
        except ObjectMissing:
            continue  # An index may be replaced while it is looked for; then there is a newer manifest.
        except LogDamaged:
            return True
    return True


class ReplayWork(msgspec.Struct, frozen=True):
    """The opinion of the replay on one shard."""

    address: str
    options: Options
    plans: list[ShardPlan]
    known: dict[str, Known]

    @property
    def count(self) -> int:
        return len(self.plans)

    def run(self, number: int) -> Iterator[pa.RecordBatch]:
        plan = self.plans[number]
        findings = Findings("replay", plan.shard, plan.first, plan.last)
        replayed = asyncio.run(self._replayed(plan, findings))
        yield _json(ReplayDone(Opined.of(findings), replayed), REPLAYED)

    async def _replayed(self, plan: ShardPlan, findings: Findings) -> Replayed:
        store = await connect(self.address, self.options, writable=False)
        return await Replay(store, plan, self.known.get(plan.shard), findings).run()


Work: TypeAlias = ReplayWork | SegmentWork


def tasks(spark: SparkSession, work: Work, schema: pa.Schema) -> DataFrame:
    """What comes of the work, as rows of this schema, each piece of it made by a task of its own."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # A function of a module and what it is given travel; one that is made here would take its whole module along.
    numbers = spark.range(0, work.count, 1, work.count)
    return numbers.mapInArrow(partial(_worked, work), from_arrow_schema(schema))


def _worked(work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            with _seldom_collected():
                done = list(work.run(number))
            yield from done


def _told(done: SegmentDone) -> pa.RecordBatch:
    return padded(_json(done, _DONE), ROWS_OF_SEGMENTS)


def _json(value: SegmentDone | ReplayDone, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([_encode(value).decode()])], schema=schema)


def padded(batch: pa.RecordBatch, schema: pa.Schema, **given: str) -> pa.RecordBatch:
    """With all columns of the schema: given, as they are, or null."""
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name))
        else:
            columns.append(pa.repeat(pa.scalar(given.get(field.name), field.type), batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Events and states are many objects with hardly a cycle: looking for garbage takes longer than the work."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(5_000_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
