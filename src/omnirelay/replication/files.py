"""Events in files of lines, one JSON object each. A file is named after its first event and rolled by size."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.sinks import SinkUnusable

ROTATE_BYTES = 64 * 1024 * 1024


class _Sequence(msgspec.Struct, rename="camel"):
    sequence_number: int


_read_sequence = msgspec.json.Decoder(_Sequence).decode


def whole_event(event: ReplicatedEvent) -> bytes | None:
    return event.json()


class FileSink:
    """Appends to `{directory}/{shard}/{first sequence}.jsonl`; flushed and synced before it counts.

    The files themselves say how far they reach. A line that a crash cut off is removed when the sink opens.
    """

    rebuilds_state = False

    def __init__(
        self,
        directory: Path,
        *,
        rotate_bytes: int = ROTATE_BYTES,
        line_of: Callable[[ReplicatedEvent], bytes | None] = whole_event,
        keeps_all: bool = True,
    ) -> None:
        """`line_of` makes the line of an event, None for one that has none; then `keeps_all` must be false, because the
        files no longer say how far they reach.
        """
        self._directory = directory
        self._rotate_bytes = rotate_bytes
        self._line_of = line_of
        self._keeps_all = keeps_all
        self._file: int | None = None
        self._size = 0
        self._last = 0

    async def open(self, shard: str) -> int | None:
        return await asyncio.to_thread(self._open, shard)

    def _open(self, shard: str) -> int | None:
        self._directory = self._directory / shard
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkUnusable(f"cannot write to {self._directory}: {error.strerror}") from None
        files = sorted(self._directory.glob("*.jsonl"))
        for path in reversed(files):
            last = self._repaired(path)
            if last is not None:
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
                self._size = path.stat().st_size
                self._last = last
                return last if self._keeps_all else None
            path.unlink()  # A crash came before its first line was whole.
        return 0 if self._keeps_all else None

    def _repaired(self, path: Path) -> int | None:
        """Cut off a torn last line; the last sequence of the file, None when it has no whole line."""
        with path.open("rb+") as file:
            file.seek(0, os.SEEK_END)
            end = file.tell()
            tail = b""
            at = end
            while at > 0 and tail.count(b"\n") < 2:
                step = min(64 * 1024, at)
                at -= step
                file.seek(at)
                tail = file.read(step) + tail
            whole = tail.rfind(b"\n") + 1
            if whole < len(tail):
                file.truncate(end - (len(tail) - whole))
                os.fsync(file.fileno())
            lines = tail[:whole].splitlines()
        try:
            return _read_sequence(lines[-1]).sequence_number if lines else None
        except msgspec.DecodeError:
            raise SinkUnusable(f"the last line of {path} is not an event") from None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        lines = []
        for event in events:
            if event.sequence > self._last:
                line = self._line_of(event)
                if line is not None:
                    lines.append((event.sequence, line))
        if lines:
            await asyncio.to_thread(self._append, lines)
        self._last = max(self._last, events[-1].sequence)

    def _append(self, lines: list[tuple[int, bytes]]) -> None:
        if self._file is None or self._size >= self._rotate_bytes:
            self._roll(lines[0][0])
        assert self._file is not None
        data = b"".join(line + b"\n" for _, line in lines)
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fsync(self._file)
        self._size += len(data)

    def _roll(self, first: int) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        path = self._directory / f"{first:020d}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = 0
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)  # The name of a new file has to survive a crash, too.
        finally:
            os.close(directory)

    async def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
