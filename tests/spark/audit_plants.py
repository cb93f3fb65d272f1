"""Logs with a violation planted in them, each as the segments of a shard of its own.

A plant is put behind a log that the real engine wrote: the events are chained with the product's own encoder, so that
nothing but the rule in question stands against them, and written past every check that the writer of segments makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from omnirelay.core import events as ev
from omnirelay.core.evolve import evolve
from omnirelay.core.items import LEASED, READY, Item
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import Caller, ErrorInfo, NewItem, OwnershipToken, Payload
from omnirelay.core.state import State
from omnirelay.engine.shard import Shard
from omnirelay.log import MemoryLog
from omnirelay.log.base import Frame
from omnirelay.log.frame import chain_of, decode_frame, encode_frame
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.manifest import Before, Manifest, encode_manifest, manifest_key, segment_key
from omnirelay.segments.parquet import encode_table, read_table
from omnirelay.segments.segment import SegmentFormat, encode_segment, entry_of
from omnirelay.segments.upkeep import compact, purge
from omnirelay.segments.writer import SegmentWriter
from omnirelay.testing.clock import FakeClock
from tests.spark.workload import Recorded

OPTIONS = QueueOptions(lease_duration_ms=20_000, heartbeat_interval_ms=2_000, capacity=40, reserve=0)


class Log:
    """A short log of the real engine: items completed, failed, leased and ready, and the state behind it."""

    def __init__(self, shard: str, log_id: str, frames: list[Frame]) -> None:
        self.shard = shard
        self.log_id = log_id
        self.frames = frames
        self.state = State()
        for event in self.events:
            evolve(self.state, event)

    @property
    def events(self) -> list[ev.Event]:
        return [event for frame in self.frames for event in decode_frame(frame, shard=self.shard, log_id=self.log_id)]

    @property
    def next(self) -> int:
        return self.state.sequence + 1

    def item(self, state: int) -> Item:
        return next(item for item in self.state.items.values() if item.state == state)

    def frame(
        self, events: Sequence[ev.Event], *, chain: bytes | None = None, depth: tuple[int, int] | None = None
    ) -> Frame:
        """Events as the next frame, chained to the log, or with a chain of one's own."""
        last = self.frames[-1]
        frame = encode_frame(self.shard, self.log_id, last.generation, last.epoch, events[-1].timestamp, events, depth)
        return msgspec.structs.replace(frame, chain=chain or chain_of(last.chain, frame.data))


def short_log(shard: str, options: QueueOptions = OPTIONS) -> Log:
    return asyncio.run(_short_log(shard, options))


async def _short_log(name: str, options: QueueOptions) -> Log:
    log = MemoryLog(name)
    clock = FakeClock()
    shard = await Shard.open(log, clock=clock, options=options)
    caller = Caller(peer_id="ada")
    payloads = [
        Payload(resource_type="table", resource_id=f"r{number % 4}", attributes={"tenant": f"t{number % 2}"})
        for number in range(8)
    ]
    await shard.enqueue([NewItem(payload=payload) for payload in payloads])
    granted = await shard.lease(caller, max_items=2)
    await clock.advance(3_000)
    await shard.heartbeat(granted[0].token, caller=caller)
    await shard.complete(granted[0].token, caller=caller)
    for lease in granted[1:]:
        await shard.fail(lease.token, caller=caller, reason="no")
    await shard.lease(caller, max_items=1)
    frames = [frame async for frame in log.read(1)]
    await shard.close()
    return Log(name, log.log_id, frames)


def alike_log(shard: str) -> Log:
    """Two leases of different exclusive keys that read the same."""
    return asyncio.run(_alike_log(shard))


async def _alike_log(name: str) -> Log:
    log = MemoryLog(name)
    options = msgspec.structs.replace(EXCLUSIVE, limits=[Limit(by="key", match="*", max=1)])
    async with await Shard.open(log, clock=FakeClock(), options=options) as shard:
        payloads = [
            Payload(resource_type=resource_type, resource_id=resource_id)
            for resource_type, resource_id in (("table", "a/b"), ("table/a", "b"))
        ]
        await shard.enqueue([NewItem(payload=payload) for payload in payloads])
        assert len(await shard.lease(Caller(peer_id="ada"), max_items=2)) == 2
        return Log(name, log.log_id, [frame async for frame in log.read(1)])


def keyless_log(shard: str) -> tuple[Recorded, int]:
    """A log that leases two items of different exclusive keys, and the frame behind their enqueues.

    Segments from there on do not say what the keys are.
    """
    return asyncio.run(_keyless_log(shard))


async def _keyless_log(name: str) -> tuple[Recorded, int]:
    log = MemoryLog(name)
    clock = FakeClock()
    async with await Shard.open(log, clock=clock) as shard:
        payloads = [Payload(resource_type="table", resource_id=f"r{number}") for number in range(2)]
        await shard.enqueue([NewItem(payload=payload) for payload in payloads])
        enqueued = len([frame async for frame in log.read(1)])
    # Only what is said behind them makes keys exclusive.
    log = log.reopen()
    async with await Shard.open(log, clock=clock, options=EXCLUSIVE) as shard:
        assert len(await shard.lease(Caller(peer_id="ada"), max_items=2)) == 2
        return Recorded(name, [frame async for frame in log.read(1)], log.log_id), enqueued


# -- plants ----------------------------------------------------------------------------------------

Plant: TypeAlias = Callable[[Log], tuple[Frame, int]]
"""Makes the frame to put behind a log, and the event that the audit has to name."""


def grant(log: Log, item: Item, **other: Any) -> ev.LeaseGranted:
    sequence = other.pop("sequence", log.next)
    now = log.state.time + 1
    lease_id = other.pop("lease_id", f"planted-{sequence}")
    token = OwnershipToken(item.sequence_id, item.attempt, lease_id, other.pop("fence", sequence))
    return ev.LeaseGranted(
        sequence_number=sequence,
        timestamp=now,
        ownership=token,
        expires_at=now + other.pop("duration_ms", 20_000),
        peer_id="eve",
    )


def enqueued(log: Log, at: int = 0, **other: Any) -> ev.Enqueue:
    """The item that would come in next, as the event `at` places behind the next one."""
    made: dict[str, Any] = {
        "sequence_number": log.next + at,
        "timestamp": log.state.time + 1,
        "sequence_id": log.state.next_sequence_id,
        "payload": Payload(resource_type="table", resource_id="more"),
    }
    return ev.Enqueue(**made | other)


def gap(log: Log) -> tuple[Frame, int]:
    event = ev.TimeAdvanced(sequence_number=log.next + 5, timestamp=log.state.time + 1)
    return log.frame([event]), event.sequence_number


def wrong_chain(log: Log) -> tuple[Frame, int]:
    event = ev.TimeAdvanced(sequence_number=log.next, timestamp=log.state.time + 1)
    return log.frame([event], chain=b"\7" * 32), event.sequence_number


def not_applicable(log: Log) -> tuple[Frame, int]:
    """There is no such class, and nobody checks that before."""
    return log.frame([enqueued(log, priority=77)]), log.next


def completed_item_leased(log: Log) -> tuple[Frame, int]:
    done = next(event for event in log.events if isinstance(event, ev.Completed))
    item = log.state.items[done.ownership.sequence_id]
    return log.frame([grant(log, item)]), log.next


def never_enqueued(log: Log) -> tuple[Frame, int]:
    event = ev.Cancelled(sequence_number=log.next, timestamp=log.state.time + 1, sequence_id=4711)
    return log.frame([event]), log.next


def second_lease(log: Log) -> tuple[Frame, int]:
    return log.frame([grant(log, log.item(LEASED))]), log.next


def stale_owner(log: Log) -> tuple[Frame, int]:
    item = log.item(LEASED)
    stale = OwnershipToken(item.sequence_id, 1, "somebody-else", 3)
    event = ev.Completed(sequence_number=log.next, timestamp=log.state.time + 1, ownership=stale)
    return log.frame([event]), log.next


def lease_id_again(log: Log) -> tuple[Frame, int]:
    """Another item is leased with the id of a lease that is over, and whose item has all of its life in one segment."""
    done = next(event for event in log.events if isinstance(event, ev.Completed))
    return log.frame([grant(log, log.item(READY), lease_id=done.ownership.lease_id)]), log.next


def same_key_leased(log: Log) -> tuple[Frame, int]:
    leased = log.item(LEASED)
    item = next(
        item
        for item in log.state.items.values()
        if item.state == READY and item.payload.resource_id == leased.payload.resource_id
    )
    return log.frame([grant(log, item)]), log.next


def out_of_turn(log: Log) -> tuple[Frame, int]:
    """Nobody has the key of the item, but another item stands before it there."""
    waiting = [item for item in log.state.items.values() if item.state == READY]
    held = {item.payload.resource_id for item in log.state.items.values() if item.state == LEASED}
    item = next(
        item
        for at, item in enumerate(waiting)
        if item.payload.resource_id not in held
        and any(item.payload.resource_id == other.payload.resource_id for other in waiting[:at])
    )
    return log.frame([grant(log, item)]), log.next


def same_tenant_leased(log: Log) -> tuple[Frame, int]:
    leased = log.item(LEASED)
    item = next(
        item
        for item in log.state.items.values()
        if item.state == READY and item.payload.attributes == leased.payload.attributes
    )
    return log.frame([grant(log, item)]), log.next


def wrong_fence(log: Log) -> tuple[Frame, int]:
    return log.frame([grant(log, log.item(READY), fence=3)]), log.next


def fence_of_elsewhere(log: Log) -> tuple[Frame, int]:
    """An item came back with a fence above all of this log, and no generation was started."""
    now = log.state.time + 1
    token = OwnershipToken(4711, 1, "elsewhere", 10**6)
    payload = Payload(resource_type="table", resource_id="r9")
    restored = ev.RestoredItem(sequence_id=4711, payload=payload, last_ownership_token=token)
    item = Item(4711, payload, READY, 0, 1, 5, 1, None, now, None, 0, None, 4711)
    events: list[ev.Event] = [
        ev.RestoreSnapshot(sequence_number=log.next, timestamp=now, items=[restored]),
        grant(log, item, sequence=log.next + 1),
    ]
    return log.frame(events), log.next + 1


def ready_leased(log: Log) -> tuple[Frame, int]:
    """Nothing is wrong with it, unless the options limit leases."""
    return log.frame([grant(log, log.item(READY))]), log.next


def _retried(log: Log, next_attempt: Callable[[Item], int]) -> tuple[Frame, int]:
    item = log.item(LEASED)
    assert item.lease is not None
    event = ev.Failed(
        sequence_number=log.next,
        timestamp=log.state.time + 1,
        ownership=item.lease.token,
        error=ErrorInfo("again"),
        mode="retry",
        next_attempt=next_attempt(item),
    )
    return log.frame([event]), log.next


def one_attempt_more(log: Log) -> tuple[Frame, int]:
    return _retried(log, lambda item: 99)


def beyond_capacity(log: Log) -> tuple[Frame, int]:
    room = log.state.options.items_max - log.state.live_count
    following = log.state.next_sequence_id
    events = [enqueued(log, number, sequence_id=following + number) for number in range(room + 1)]
    return log.frame(events), log.next + room


def expired_early(log: Log) -> tuple[Frame, int]:
    item = log.item(LEASED)
    assert item.lease is not None
    event = ev.Expired(
        sequence_number=log.next, timestamp=log.state.time + 1, ownership=item.lease.token, undelivered=True
    )
    return log.frame([event]), log.next


def wrong_depth(log: Log) -> tuple[Frame, int]:
    return log.frame([enqueued(log)], depth=(log.state.pending_count + 3, log.state.leased.live)), log.next


def never_expired(log: Log) -> tuple[Frame, int]:
    """The log goes on for an hour, and the lease that ran out meanwhile stays."""
    item = log.item(LEASED)
    event = ev.TimeAdvanced(sequence_number=log.next, timestamp=log.state.time + 3_600_000)
    return log.frame([event]), item.stamp


def other_attempt(log: Log) -> tuple[Frame, int]:
    """The live lease is acknowledged, but as an attempt that it is not."""
    item = log.item(LEASED)
    assert item.lease is not None
    token = msgspec.structs.replace(item.lease.token, attempt=item.attempt + 7)
    return log.frame([ev.Completed(sequence_number=log.next, timestamp=log.state.time + 1, ownership=token)]), log.next


def time_goes_back(log: Log) -> tuple[Frame, int]:
    return log.frame([ev.TimeAdvanced(sequence_number=log.next, timestamp=log.state.time - 1)]), log.next


def number_given_out_before(log: Log) -> tuple[Frame, int]:
    return log.frame([enqueued(log, sequence_id=0)]), log.next


def attempt_skipped(log: Log) -> tuple[Frame, int]:
    return _retried(log, lambda item: item.attempt + 2)


def paused_leased(log: Log, resource_type: str | None = None, tenant: str | None = None) -> tuple[Frame, int]:
    pause = ev.Paused(
        sequence_number=log.next, timestamp=log.state.time + 1, resource_type=resource_type, tenant=tenant
    )
    return log.frame([pause, grant(log, log.item(READY), sequence=log.next + 1)]), log.next + 1


def earlier_epoch(log: Log) -> tuple[Frame, int]:
    event = ev.LeaderElected(
        sequence_number=log.next, timestamp=log.state.time + 1, epoch=0, owner="late", down_from=log.state.time
    )
    return log.frame([event]), log.next


# -- writing ---------------------------------------------------------------------------------------


def write(
    address: Path | str,
    log: Log,
    planted: Frame | None = None,
    *,
    pieces: int = 1,
    kind: SegmentFormat = "parquet",
    **options: Any,
) -> None:
    """The log as so many segments, and the planted frame as one more that nobody checked."""
    asyncio.run(_write(str(address), log, planted, pieces, kind, options))


async def _write(
    address: str, log: Log, planted: Frame | None, pieces: int, kind: SegmentFormat, options: dict[str, Any]
) -> None:
    store = await connect(address, options)
    archive = Archive(store, log.shard)
    writer = SegmentWriter(archive, kind=kind, region="eu")
    size = -(-len(log.frames) // pieces)
    for at in range(0, len(log.frames), size):
        await writer.append(log.frames[at : at + size])
    if planted is None:
        return
    manifest = await archive.newest()
    assert manifest is not None
    assert manifest.end is not None
    entry, data = encode_segment([planted], Before.of(manifest.end), kind, "eu")
    await store.put_if_absent(segment_key(log.shard, entry.name), data)
    await archive.change(lambda newest: None if newest is None else newest.with_recent((*newest.recent, entry)))


def merge(directory: Path, shard: str) -> None:
    """Put one segment in place of all there are, and remove those, as the upkeep of a node does in time."""
    asyncio.run(_merge(directory, shard))


async def _merge(directory: Path, shard: str) -> None:
    archive = Archive(await connect(str(directory)), shard)
    assert await compact(archive, segment_bytes=1 << 30, at_least=2)
    assert await purge(archive, grace_ms=0)


def segment_paths(directory: Path, shard: str) -> list[Path]:
    return sorted((directory / shard / "segments").glob("*.parquet"))


def edit_column(directory: Path, log: Log, name: str, sequence: int, value: Any) -> None:
    """Change a column of one event and nothing else; the manifest is made to agree with the file."""
    asyncio.run(_edit_column(directory, log, name, sequence, value))


async def _edit_column(directory: Path, log: Log, name: str, sequence: int, value: Any) -> None:
    archive = Archive(await connect(str(directory)), log.shard)
    manifest = await archive.newest()
    assert manifest is not None
    changed = []
    for entry in manifest.recent:
        path = directory / segment_key(log.shard, entry.name)
        table = read_table(path.read_bytes())
        numbers = table["sequence"].to_pylist()
        if sequence in numbers:
            values = table[name].to_pylist()
            values[numbers.index(sequence)] = value
            field = table.schema.field(name)
            table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
            data = encode_table(table)
            path.write_bytes(data)
            digest = entry_of(log.frames, entry.before, "parquet", data).digest
            entry = msgspec.structs.replace(entry, digest=digest, bytes=len(data))
        changed.append(entry)
    edited: Manifest = manifest.with_recent(tuple(changed))
    (directory / manifest_key(log.shard, manifest.version)).write_bytes(encode_manifest(edited))


LIMITED = msgspec.structs.replace(OPTIONS, limits=[Limit(by="type", match="tab*", max=1)])
BY_TENANT = msgspec.structs.replace(OPTIONS, limits=[Limit(by="tenant", max=1)])
EXCLUSIVE = msgspec.structs.replace(OPTIONS, ordering="exclusive")
SMALL = msgspec.structs.replace(OPTIONS, capacity=9)
