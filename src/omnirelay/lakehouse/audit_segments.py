"""The opinion on files: one segment by itself, its digest, its frames, and its columns or lines against the frames.

Nothing here depends on what is in other segments, so all of them are looked at side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from omnirelay.errors import LogDamaged
from omnirelay.lakehouse.audit_rules import Findings
from omnirelay.lakehouse.audit_spelling import spell_their_frames
from omnirelay.log.base import Frame
from omnirelay.log.frame import chain_of, check_header, decode_header
from omnirelay.segments.agreement import Difference, column_differences, line_differences
from omnirelay.segments.arrow import frames_of_arrow, frames_to_arrow
from omnirelay.segments.lines import decode_lines
from omnirelay.segments.manifest import Entry
from omnirelay.segments.schema import FRAME_FIELDS, arrow_schema
from omnirelay.segments.segment import format_of

_SLICE_EVENTS = 32_768
_FRAME_COLUMNS = [field.name for field in FRAME_FIELDS]

UNREADABLE = (ValueError, KeyError, TypeError, OSError, pa.ArrowException, LogDamaged)


def read_columns(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """A segment's table in this thread alone: tasks share the processors already."""
    return pq.ParquetFile(pa.BufferReader(data)).read(
        columns=None if columns is None else list(columns), use_threads=False
    )


def frames_in(name: str, data: bytes) -> list[Frame]:
    """The frames of a segment as they stand there, unchecked. Raises one of many errors for what is no segment."""
    if format_of(name) == "parquet":
        return frames_of_arrow(read_columns(data, _FRAME_COLUMNS))
    return decode_lines(data)


class SegmentCheck:
    """Looks at one segment. `usable` says afterwards whether its frames, and with them its events, can be read."""

    def __init__(self, findings: Findings, entry: Entry, log_id: str, *, thorough: bool = True) -> None:
        """Without `thorough` only whether it can be used: the segment is outside the stretch to audit."""
        self._findings = findings
        self._entry = entry
        self._log_id = log_id
        self._thorough = thorough
        self.usable = False
        self.columns: pa.Table | None = None
        """What the columns say, once they can be read; of lines what they would say."""

    def run(self, data: bytes | None) -> None:
        """`data` is None when the object is not there."""
        entry = self._entry
        if data is None:
            self._segment("is missing, although the manifest lists it")
            return
        if hashlib.sha256(data).hexdigest() != entry.digest:
            self._segment("is not what was written: its digest differs from the manifest's")
        try:
            table = read_columns(data) if format_of(entry.name) == "parquet" else None
            frames = decode_lines(data) if table is None else frames_of_arrow(table)
            made = None
            spelled = self._thorough and table is not None and self._are_spelled(table, frames)
            if table is None or (self._thorough and not spelled):
                made = pa.Table.from_batches(
                    [frames_to_arrow(part, None) for part in _slices(frames)], schema=arrow_schema()
                )
        except UNREADABLE as error:
            self._segment(f"cannot be read: {str(error).splitlines()[0] if str(error) else repr(error)}")
            return
        if not frames:
            self._segment("holds no frames")
            return
        self.usable = True
        self.columns = made if table is None else table
        if not self._thorough:
            return
        self._check_frames(frames)
        self._check_contiguity(self.columns if made is None else made)
        if made is not None:
            self._check_agreement(line_differences(data, frames) if table is None else column_differences(table, made))

    def _are_spelled(self, table: pa.Table, frames: Sequence[Frame]) -> bool:
        """Whether columns agree with frames, told without making columns of these. If not nothing is known yet."""
        at = 0
        for part in _slices(frames):
            rows = sum(frame.count for frame in part)
            if not spell_their_frames(table.slice(at, rows), part, self._findings.shard, self._log_id):
                return False
            at += rows
        return at == int(table.num_rows)

    def _segment(self, what: str) -> None:
        entry = self._entry
        self._findings.add("segments", entry.first, f"segment {entry.name} {what}", upto=entry.last)

    def _check_frames(self, frames: Sequence[Frame]) -> None:
        """The chain anew from the bytes. Behind a break it goes on with what is stored there."""
        chain = self._entry.before.link()
        before = None if chain is None else chain.chain
        for frame in frames:
            try:
                check_header(frame, shard=self._findings.shard, log_id=self._log_id)
            except LogDamaged as error:
                self._findings.add("columns", frame.first, error.message)
            if before is not None and chain_of(before, frame.data) != frame.chain:
                self._findings.add(
                    "chain",
                    frame.first,
                    f"frame {frame.first} does not continue the chain: its bytes or its link changed",
                )
            before = frame.chain
        last = frames[-1]
        if (last.last, last.chain.hex()) != (self._entry.last, self._entry.chain):
            self._findings.add(
                "chain", self._entry.last, f"segment {self._entry.name} ends otherwise than the manifest says"
            )

    def _check_contiguity(self, events: pa.Table) -> None:
        """The numbers of the events in the raw frames. That the frames fit each other follows from it."""
        entry = self._entry
        expected = entry.before.sequence
        numbers = pa.concat_arrays([pa.array([expected]), *events["sequence"].chunks])
        steps = pc.subtract(numbers[1:], numbers[:-1])
        odd = pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()
        for row in odd:
            sequence, step = numbers[row + 1].as_py(), steps[row].as_py()
            if step > 1 and events["event_type"][row].as_py() == "GenerationStarted":
                continue
            self._findings.add("contiguity", sequence, f"event {sequence} follows event {numbers[row].as_py()}")

    def _check_agreement(self, differences: Iterator[Difference]) -> None:
        """What readers of columns or lines see is what the frames say."""
        entry = self._entry
        for sequence, what in differences:
            if sequence is None:
                self._findings.add("columns", entry.first, f"segment {entry.name}: {what}", upto=entry.last)
            else:
                self._findings.add("columns", sequence, what)


def _slices(frames: Sequence[Frame]) -> list[Sequence[Frame]]:
    """Frames of some thousand events at a time: what is made of them is in memory at once."""
    slices: list[Sequence[Frame]] = []
    start = events = 0
    for at, frame in enumerate(frames):
        if at > start and events + frame.count > _SLICE_EVENTS:
            slices.append(frames[start:at])
            start, events = at, 0
        events += frame.count
    return [*slices, frames[start:]] if frames else []


def as_its_bytes_say(frame: Frame) -> Frame:
    """The frame with the columns beside it as they stand in its bytes. Raises LogDamaged when it is no frame."""
    header = decode_header(frame.data)
    return msgspec.structs.replace(
        frame,
        first=header.first,
        last=header.last,
        count=len(header.events),
        epoch=header.epoch,
        generation=header.generation,
        time_ms=header.time,
    )
