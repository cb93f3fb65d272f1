"""Exports: a stretch of a log as one file that stands by itself, in Parquet, Arrow or lines of JSON.

Written beside its name and synced before it gets it, so that a file of that name is always a whole one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Protocol, TypeAlias

import msgspec

from omnirelay.errors import AlreadyExists
from omnirelay.log.base import Frame
from omnirelay.log.files import sync_directory
from omnirelay.log.frame import decode_header
from omnirelay.segments.libraries import library_for
from omnirelay.wire.events import readable

if TYPE_CHECKING:
    import pyarrow as pa

ExportFormat: TypeAlias = Literal["jsonl", "parquet", "arrow"]
EXTENSIONS: Final[dict[ExportFormat, str]] = {"jsonl": ".jsonl", "parquet": ".parquet", "arrow": ".arrow"}

_ROWS_AT_ONCE: Final = 65_536


class _Number(msgspec.Struct, rename="camel"):
    sequence_number: int


_number_of = msgspec.json.Decoder(_Number).decode
_encode = msgspec.json.Encoder().encode


class Exporter(Protocol):
    """Takes frames in order; `finish` writes what a format has at its end, and leaves the file open."""

    def add(self, frames: Sequence[Frame]) -> int:
        """Write the wanted events of these frames; how many they were. Blocking and long."""
        ...

    def finish(self) -> None: ...


def exporter(kind: ExportFormat, file: BinaryIO, first: int | None, last: int | None) -> Exporter:
    """Raises FailedPrecondition when the library for this format is not installed."""
    if kind == "jsonl":
        return _Lines(file, first, last)
    with library_for("columns"):
        return _Columns(kind, file, first, last)


class _Lines:
    """Events as readers outside get them, one JSON object a line."""

    def __init__(self, file: BinaryIO, first: int | None, last: int | None) -> None:
        self._file = file
        self._first = first
        self._last = last

    def add(self, frames: Sequence[Frame]) -> int:
        count = 0
        for frame in frames:
            for raw in decode_header(frame.data).events:
                if _wanted(_number_of(raw).sequence_number, self._first, self._last):
                    self._file.write(_encode(readable(raw)) + b"\n")
                    count += 1
        return count

    def finish(self) -> None:
        """Lines need no end."""


class _Columns:
    """Events in the one schema of segments. Rows are gathered, so that no row group is smaller than it need be."""

    def __init__(self, kind: ExportFormat, file: BinaryIO, first: int | None, last: int | None) -> None:
        import pyarrow as pa

        from omnirelay.segments.parquet import parquet_writer
        from omnirelay.segments.schema import arrow_schema

        self._first = first
        self._last = last
        self._gathered: list[pa.RecordBatch] = []
        self._rows = 0
        if kind == "parquet":
            self._writer = parquet_writer(file, arrow_schema())
        else:
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            self._writer = pa.ipc.new_file(file, arrow_schema(), options=options)

    def add(self, frames: Sequence[Frame]) -> int:
        from omnirelay.segments.arrow import frames_to_arrow
        from omnirelay.segments.ranges import rows_between

        batch = rows_between(frames_to_arrow(frames, None), self._first, self._last)
        if batch.num_rows:
            self._gathered.append(batch)
            self._rows += batch.num_rows
        if self._rows >= _ROWS_AT_ONCE:
            self._flush()
        return int(batch.num_rows)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._gathered:
            table = pa.Table.from_batches(self._gathered).combine_chunks()
            self._writer.write_table(table)
        self._gathered, self._rows = [], 0

    def finish(self) -> None:
        self._flush()
        self._writer.close()


def _wanted(sequence: int, first: int | None, last: int | None) -> bool:
    return (first is None or sequence >= first) and (last is None or sequence <= last)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that has its name only if the block ends well, and then for good. Never replaces one.

    Raises AlreadyExists, and OSError like any writing.
    """
    if path.exists():
        raise _taken(path)
    partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)
        except FileExistsError:
            raise _taken(path) from None
        sync_directory(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _taken(path: Path) -> AlreadyExists:
    return AlreadyExists(f"{path} exists already and is not overwritten", file=str(path))
