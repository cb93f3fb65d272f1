"""The state as bytes, canonically: equal states give equal bytes, so a hash of them proves a replay.

A snapshot is a header and a sequence of chunks, each a msgpack array of up to CHUNK_RECORDS records
of one kind. Everything is written in an order that follows from the state itself (ids, event
numbers), never from how a dict or heap happens to lie in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from omnirelay.core.closures import Closure
from omnirelay.core.items import (
    CANCELLED,
    COMPLETED,
    DEAD,
    DELAYED,
    LEASED,
    READY,
    Item,
)
from omnirelay.core.lanes import Level
from omnirelay.core.options import QueueOptions
from omnirelay.core.pauses import Pause
from omnirelay.core.recording import item_of, lease_of, record_of_item, record_of_lease
from omnirelay.core.records import ItemRecord, LeaseRecord
from omnirelay.core.schedule import Schedule
from omnirelay.core.state import RequestRecord, State
from omnirelay.core.waiting import CLASSES
from omnirelay.errors import LogDamaged

SNAPSHOT_VERSION: Final = 1
CHUNK_RECORDS: Final = 4096


class Header(msgspec.Struct, array_like=True, kw_only=True):
    version: int
    sequence: int
    time: int
    generation: int
    next_sequence_id: int
    options: QueueOptions
    items: int
    ended_leases: int
    requests: int
    pauses: list[Pause]
    backpressure: bool
    backpressure_at: int | None
    grants: int
    sweep_at: int


class _RequestRow(msgspec.Struct, array_like=True, gc=False):
    key: bytes
    sequence_id: int
    payload_digest: bytes
    ended_at: int


class _ItemChunk(msgspec.Struct, array_like=True, tag="items"):
    records: list[ItemRecord]


class _EndedChunk(msgspec.Struct, array_like=True, tag="ended"):
    records: list[LeaseRecord]


class _RequestChunk(msgspec.Struct, array_like=True, tag="requests"):
    """Live request ids by key, then ended ones in the order they ended."""

    records: list[_RequestRow]


class _LevelRow(msgspec.Struct, array_like=True):
    """How far one class has come, and the members that take turns in it."""

    waiting_since: int
    closed_at: int
    guarded_at: int
    floor: int
    shares: list[_ShareRow]


class _ShareRow(msgspec.Struct, array_like=True):
    resource_type: str
    time: int
    floor: int
    lanes: list[tuple[str, int]]
    """Tenants and their times."""


class _ScheduleChunk(msgspec.Struct, array_like=True, tag="schedule"):
    """One record per class. Who stands where follows from the items, whose turn it is does not."""

    records: list[_LevelRow]


class _StillChunk(msgspec.Struct, array_like=True, tag="still"):
    """Classes, and shares of a class by their type, in which nobody has had a turn since nobody could. Left out when
    there is none, which is so wherever neither a pause nor a limit held everybody back.
    """

    records: list[tuple[int, str | None]]


class _ClosureChunk(msgspec.Struct, array_like=True, tag="closures"):
    """What keeps intake closed, by name. Left out while nothing from outside ever did, so that digests stay as they
    were before there was such a thing.
    """

    records: list[Closure]
    changed_at: int


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Header).decode
_decode_chunk = msgspec.msgpack.Decoder(
    _ItemChunk | _EndedChunk | _RequestChunk | _ScheduleChunk | _StillChunk | _ClosureChunk
).decode


def digest(state: State) -> str:
    """SHA-256 over the snapshot: equal on every node that replayed the same log."""
    header, chunks = dump(state)
    running = sha256(header)
    for chunk in chunks:
        running.update(chunk)
    return running.hexdigest()


# -- writing -----------------------------------------------------------------------------------


def dump(state: State) -> tuple[bytes, Iterator[bytes]]:
    header = Header(
        version=SNAPSHOT_VERSION,
        sequence=state.sequence,
        time=state.time,
        generation=state.generation,
        next_sequence_id=state.next_sequence_id,
        options=state.options,
        items=len(state.items),
        ended_leases=len(state.ended),
        requests=len(state.requests),
        pauses=[state.pauses[scope] for scope in sorted(state.pauses)],
        backpressure=state.backpressure,
        backpressure_at=state.backpressure_at,
        grants=state.schedule.grants,
        sweep_at=state.schedule.sweep_at,
    )
    return _encode(header), _dump_chunks(state)


def _dump_chunks(state: State) -> Iterator[bytes]:
    yield _encode(_ScheduleChunk([_level_row(level) for level in state.schedule.levels]))
    still = _still_rows(state.schedule)
    if still:
        yield _encode(_StillChunk(still))
    if state.closures_at is not None:
        closures = [state.closures[cause] for cause in sorted(state.closures)]
        yield _encode(_ClosureChunk(closures, state.closures_at))
    items = state.items
    for ids in _sliced(sorted(items)):
        yield _encode(_ItemChunk([record_of_item(items[sequence_id]) for sequence_id in ids]))
    for leases in _sliced(list(state.ended)):
        yield _encode(_EndedChunk([record_of_lease(lease) for lease in leases]))
    requests = state.requests
    keys = sorted(key for key, record in requests.items() if record.ended_at == 0)
    keys += [key for key, record in state.requests_ended if requests.get(key) is record]
    for slice_ in _sliced(keys):
        rows = [(key, requests[key]) for key in slice_]
        yield _encode(
            _RequestChunk([_RequestRow(key, row.sequence_id, row.payload_digest, row.ended_at) for key, row in rows])
        )


def _level_row(level: Level) -> _LevelRow:
    shares = [
        _ShareRow(
            share.name,
            share.time,
            share.turns.floor,
            [(lane.name, lane.time) for _, lane in sorted(share.lanes.items())],
        )
        for _, share in sorted(level.shares.items())
    ]
    return _LevelRow(level.waiting_since, level.closed_at, level.guarded_at, level.turns.floor, shares)


def _still_rows(schedule: Schedule) -> list[tuple[int, str | None]]:
    rows: list[tuple[int, str | None]] = []
    for level in schedule.levels:
        if level.turns.still_matters:
            rows.append((level.number, None))
        rows += [(level.number, name) for name, share in sorted(level.shares.items()) if share.turns.still_matters]
    return rows


def _sliced(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(records), CHUNK_RECORDS):
        yield records[start : start + CHUNK_RECORDS]


# -- reading -----------------------------------------------------------------------------------


def load(header: bytes, chunks: Iterable[bytes]) -> State:
    """The state a snapshot holds; LogDamaged when it is not a snapshot or not a whole one."""
    try:
        head = _decode_header(header)
        if head.version != SNAPSHOT_VERSION:
            raise LogDamaged(f"snapshot version {head.version} is not known", version=head.version)
        state = State(head.options)
        _load_pauses(state, head)
        items: list[Item] = []
        levels = 0
        still: list[tuple[int, str | None]] = []
        for chunk in chunks:
            decoded = _decode_chunk(chunk)
            if isinstance(decoded, _ItemChunk):
                items += [item_of(record) for record in decoded.records]
            elif isinstance(decoded, _ScheduleChunk):
                levels += len(decoded.records)
                _load_schedule(state.schedule, decoded.records)
            elif isinstance(decoded, _StillChunk):
                still += decoded.records
            elif isinstance(decoded, _ClosureChunk):
                state.closures = {closure.cause: closure for closure in decoded.records}
                state.closures_at = decoded.changed_at
            elif isinstance(decoded, _EndedChunk):
                _load_ended(state, decoded.records)
            else:
                _load_requests(state, decoded.records)
    except msgspec.DecodeError as error:
        raise LogDamaged(f"the snapshot cannot be read: {error}") from error
    state.sequence = head.sequence
    state.time = head.time
    state.generation = head.generation
    state.next_sequence_id = head.next_sequence_id
    _load_items(state, items)
    _load_still(state.schedule, still)
    found = (len(state.items), len(state.ended), len(state.requests), levels)
    if found != (head.items, head.ended_leases, head.requests, CLASSES):
        raise LogDamaged(f"the snapshot holds {found} records, its header says otherwise")
    return state


def _load_items(state: State, items: list[Item]) -> None:
    by_state: list[list[Item]] = [[], [], [], [], [], []]
    for item in items:
        state.items[item.sequence_id] = item
        by_state[item.state].append(item)
        if item.state <= LEASED:
            state.live_bytes += item.size
    # Listings go by when items became ready, which is when their stamp was made; one event may have made many.
    for item in sorted(by_state[READY], key=lambda item: (item.stamp, item.sequence_id)):
        state.ready.enter(item)
    for item in sorted(by_state[DELAYED], key=lambda item: (item.not_before, item.sequence_id)):
        state.delayed.push(item)
    leased = [(item.lease.deadline, item) for item in by_state[LEASED] if item.lease is not None]
    for deadline, item in leased:
        state.leased.enter(deadline, item)
    for _, item in sorted(leased, key=lambda pair: _fence(pair[1])):
        if item.lease is not None and item.lease.request_key is not None:
            state.grants.setdefault(item.lease.request_key, {})[item.sequence_id] = item
    state.schedule.load(by_state[READY] + by_state[DELAYED] + by_state[LEASED])
    for item in sorted(by_state[DEAD], key=lambda item: item.stamp):
        state.dead.add(item)
    for item in sorted(by_state[COMPLETED] + by_state[CANCELLED], key=lambda item: item.stamp):
        state.finished.append(item)
        state.finished_bytes += item.size


def _load_pauses(state: State, head: Header) -> None:
    state.backpressure = head.backpressure
    state.backpressure_at = head.backpressure_at
    state.schedule.count_grants(head.grants, head.options.starvation_every)
    state.schedule.sweep_at = head.sweep_at
    state.pauses = {pause.scope: pause for pause in head.pauses}
    state.schedule.load_pauses(head.pauses)


def _load_schedule(schedule: Schedule, rows: list[_LevelRow]) -> None:
    for level, row in zip(schedule.levels, rows, strict=False):
        level.waiting_since = row.waiting_since
        level.closed_at = row.closed_at
        level.guarded_at = row.guarded_at
        level.turns.floor = row.floor
        for share_row in row.shares:
            share = schedule.new_share(level.number, share_row.resource_type)
            share.time = share_row.time
            share.turns.floor = share_row.floor
            for tenant, time in share_row.lanes:
                schedule.new_lane(share, tenant).time = time


def _load_still(schedule: Schedule, rows: list[tuple[int, str | None]]) -> None:
    for number, resource_type in rows:
        level = schedule.levels[number] if 0 <= number < CLASSES else None
        share = None if level is None or resource_type is None else level.shares.get(resource_type)
        if level is None or (resource_type is not None and share is None):
            raise LogDamaged(f"the snapshot speaks of turns in class {number} that it does not hold")
        turns = level.turns if share is None else share.turns
        turns.still = True


def _fence(item: Item) -> int:
    return 0 if item.lease is None else item.lease.token.fence or 0


def _load_ended(state: State, records: list[LeaseRecord]) -> None:
    for lease in map(lease_of, records):
        state.ended.add(lease)


def _load_requests(state: State, rows: list[_RequestRow]) -> None:
    for row in rows:
        record = state.requests[row.key] = RequestRecord(row.sequence_id, row.payload_digest, row.ended_at)
        if row.ended_at:
            state.requests_ended.append((row.key, record))
