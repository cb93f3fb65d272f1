"""The opinion of the replay: a shard's log through the product's own rules, from its first event to its last.

One task replays one shard, a segment at a time, in order; only the state itself grows with the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeAlias

import msgspec

from omnirelay.core.events import SCHEMA_VERSION, Event
from omnirelay.core.snapshot import digest, load
from omnirelay.core.state import State
from omnirelay.errors import DataLoss, OmniRelayError
from omnirelay.lakehouse.audit_digests import Known
from omnirelay.lakehouse.audit_plan import ShardPlan
from omnirelay.lakehouse.audit_rules import Findings, Replayed
from omnirelay.lakehouse.audit_segments import UNREADABLE, as_its_bytes_say, frames_in
from omnirelay.lakehouse.audit_watch import Impossible, Watch
from omnirelay.log.base import Frame
from omnirelay.log.frame import FrameRecord, decode_frame, decode_header
from omnirelay.segments.manifest import Entry, segment_key
from omnirelay.segments.store import ObjectStore

_read_record: Final = msgspec.json.Decoder(FrameRecord).decode

Decoded: TypeAlias = tuple[Sequence[Event], int | None, int | None]
"""The events of a frame, and how many items it says were pending and leased behind them."""


class _Stop(Exception):
    """The replay cannot go on."""


class Replay:
    """One shard. What the segments say is checked elsewhere; here it is taken as it is."""

    def __init__(self, store: ObjectStore, plan: ShardPlan, known: Known | None, findings: Findings) -> None:
        self._store = store
        self._plan = plan
        self._known = known
        self._findings = findings
        self._digests = {} if known is None else known.digests
        self._done = Replayed(
            shard=plan.shard, begun=plan.anchor.sequence, last=plan.anchor.sequence, events=0, frames=0, digest=None
        )

    async def run(self) -> Replayed:
        done = self._done
        state = self._start()
        if state is None:
            done.remark = (
                f"not replayed: the segments begin behind event {done.begun}, and nobody said what the state was there;"
                " name a directory or a backup of the node that reaches back to it"
            )
            return done
        watch = Watch(state, self._findings)
        self._check_digest(state, done.begun)
        try:
            async for entry, data in self._segments():
                self._replay_segment(watch, entry, data)
        except _Stop as stop:
            done.remark = str(stop)
        done.states = watch.check_ends()
        done.digest = digest(state)
        return done

    def _start(self) -> State | None:
        if self._plan.whole:
            return State()
        if self._known is None or self._known.start is None:
            return None
        header, *chunks = self._known.start
        return load(header, chunks)

    async def _segments(self) -> AsyncIterator[tuple[Entry, bytes]]:
        """Segments in order, the next one on its way while one is replayed."""
        keys = [(entry, segment_key(self._plan.shard, entry.name)) for entry in self._plan.entries]
        coming: asyncio.Task[bytes] | None = None
        try:
            for at, (entry, key) in enumerate(keys):
                asked = coming or asyncio.ensure_future(self._store.get(key))
                try:
                    data = await asked
                except OmniRelayError as error:
                    raise _Stop(f"replayed up to event {self._done.last} only: {error.message}") from None
                coming = None
                if at + 1 < len(keys):
                    coming = asyncio.ensure_future(self._store.get(keys[at + 1][1]))
                    await asyncio.sleep(0)
                yield entry, data
        finally:
            if coming is not None:
                coming.cancel()

    def _replay_segment(self, watch: Watch, entry: Entry, data: bytes) -> None:
        try:
            frames = frames_in(entry.name, data)
        except UNREADABLE:
            raise _Stop(
                f"replayed up to event {self._done.last} only: segment {entry.name} behind it cannot be read"
            ) from None
        if entry.before.sequence != self._done.last:
            raise _Stop(f"replayed up to event {self._done.last} only: the events behind it are not there")
        for frame in frames:
            self._replay_frame(watch, frame)

    def _replay_frame(self, watch: Watch, frame: Frame) -> None:
        done = self._done
        try:
            events, pending, active = _decoded(frame, self._plan)
        except DataLoss as error:
            self._findings.add("follows", frame.first, error.message)
            raise _Stop(f"replayed up to event {done.last} only: the frame behind it cannot be read") from None
        whole = events[-1].sequence_number <= self._plan.last
        if not whole:
            events = [event for event in events if event.sequence_number <= self._plan.last]
            if not events:
                return
        try:
            watch.replay(events)
        except Impossible as error:
            self._findings.add("follows", error.sequence, str(error))
            raise _Stop(f"replayed up to event {error.sequence - 1} only: {error}") from None
        done.events += len(events)
        done.frames += 1
        done.last = events[-1].sequence_number
        watch.end_commit(whole=whole)
        if whole:
            watch.check_depth(done.last, pending, active)
        self._check_digest(watch.state, done.last)

    def _check_digest(self, state: State, sequence: int) -> None:
        expected = self._digests.get(sequence)
        if expected is None:
            return
        self._done.snapshots += 1
        found = digest(state)
        if found != expected:
            what = f"the state behind event {sequence} has the digest {found}, the node recorded {expected}"
            self._findings.add("digests", sequence, what)


def _decoded(frame: Frame, plan: ShardPlan) -> Decoded:
    """Raises LogDamaged, LogSchemaTooNew, UnknownEvent."""
    try:
        record = _read_record(frame.data)
        if record.schema == SCHEMA_VERSION and record.events:
            return record.events, record.pending, record.active
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # Older, newer or damaged: that is told below.
    header = decode_header(frame.data)
    events = decode_frame(as_its_bytes_say(frame), shard=plan.shard, log_id=plan.log_id)
    return events, header.pending, header.active
