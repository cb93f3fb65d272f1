"""`log export`: a stretch of a log as one file, for whoever has no OmniRelay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from omnirelay.cli.commands import command
from omnirelay.cli.directories import only, with_log
from omnirelay.cli.exits import CANNOT_WRITE, FAILED, USAGE, Stop, nothing, usage
from omnirelay.cli.log_places import StoreOptions, is_path, read_options
from omnirelay.cli.logs import Data, LogNamespace, read_node
from omnirelay.cli.options import DEFAULT_NAMESPACE, DEFAULT_URL, LAST_NUMBER, Url
from omnirelay.cli.printing import note, progress
from omnirelay.cli.running import run_async

if TYPE_CHECKING:
    from omnirelay.log.sqlite import SqliteLog

_BATCH_EVENTS = 8_192
_BATCH_BYTES = 16 * 1024 * 1024
_OBJECT_BYTES_MAX = 5 * 1024**3
"""What S3 takes in one put; only that creates an object at once and never replaces one."""


class FileFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


_OTHER_FORMATS = (
    *("avro", "csv", "delta", "feather", "html", "ipc", "json", "ods", "orc", "tsv", "xls", "xlsx", "xml", "yaml"),
    *("db", "duckdb", "pb", "proto", "sqlite", "yml"),
    *("bz2", "gz", "lz4", "xz", "zip", "zst"),
)
"""Endings that promise what nobody would find in the file. Others are a part of a name."""


def add_to(group: typer.Typer) -> None:
    command(group, "export", _EXPORT)(export)


_EXPORT = """
    omnirelay log export --to-file events.jsonl
    omnirelay log export --data omnirelay-data --from 100 --to 200 --to-file -
    omnirelay log export --data omnirelay-data --to-file events.parquet
    omnirelay log export --data omnirelay-data --format arrow --to-file s3://lake/exports/events.arrow
"""


def export(
    to_file: Annotated[
        str,
        typer.Option(
            "--to-file",
            help="A file that does not exist yet, a directory, the address of an object, or - for stdout.",
            metavar="DEST",
        ),
    ],
    first: Annotated[
        int | None, typer.Option("--from", help="First event. [the first there is]", min=1, max=LAST_NUMBER)
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", help="Last event. [the last there is]", min=1, max=LAST_NUMBER)
    ] = None,
    file_format: Annotated[
        FileFormat | None,
        typer.Option("--format", help="What to write. [as the name of the file ends, otherwise jsonl]"),
    ] = None,
    data: Data = None,
    url: Url = DEFAULT_URL,
    namespace: LogNamespace = None,
    option: StoreOptions = None,
) -> None:
    """Write the events of a shard to a file: lines of JSON as readers outside get them, or columns.

    Parquet and Arrow (an IPC file) have the columns of segments, and are made from the files of a node (--data), which
    may be running. A file has its name only when it is whole; nothing is overwritten. In a directory, or below an
    address that ends with /, it is named after the namespace and the time.
    """
    if first is not None and last is not None and last < first:
        raise usage(f"--to {last} lies before --from {first}")
    kind = file_format or _format_of(to_file)
    if data is None and kind is not FileFormat.JSONL:
        raise usage(f"{kind.value} is made from the files of a node: say --data DIR, or --format jsonl")
    name = only(data, namespace) if data is not None else namespace or DEFAULT_NAMESPACE
    with _destination(to_file, kind, name, read_options(option)) as file, progress(f"export {name}") as move:
        if data is not None:
            count, reached = with_log(data, name, lambda log: _from_files(log, file, kind, first, last, move))
        else:
            count, reached = _from_node(url, name, file, first, last, move)
        if not count and (first is not None or last is not None):
            raise nothing(f"the log of {name} has no event {_range(first, last)}; nothing was exported")
    note(f"exported {count} events" + (f" up to {reached}" if count else ""))
    if last is not None and reached < last:
        note(f"the log ended at {reached} then, before --to {last}")


def _range(first: int | None, last: int | None) -> str:
    words = (f"from {first} on" if first is not None else "", f"up to {last}" if last is not None else "")
    return " ".join(word for word in words if word)


def _format_of(name: str) -> FileFormat:
    ending = name.rpartition("/")[2].rpartition(".")[2].lower() if "." in name.rpartition("/")[2] else ""
    if ending in _OTHER_FORMATS and not Path(name).is_dir():
        written = ", ".join(kind.value for kind in FileFormat)
        raise usage(f"{name} ends with .{ending}, and what is written is {written}: name it so, or say --format")
    return next((kind for kind in FileFormat if ending == kind.value), FileFormat.JSONL)


# -- where events come from ----------------------------------------------------------------------


async def _from_files(
    log: SqliteLog, file: BinaryIO, kind: FileFormat, first: int | None, last: int | None, move: Any
) -> tuple[int, int]:
    """How many events were written, and the number of the last one."""
    from omnirelay.log.batches import in_batches
    from omnirelay.segments.exporting import exporter

    begin = (await log.anchor()).sequence + 1 if first is None else first
    end = (await log.head()).position.sequence if last is None else last
    total = (await log.size_after(begin - 1, end)).events
    written = exporter(kind.value, file, begin, end)
    count = reached = 0
    try:
        if begin <= end:
            async for batch in in_batches(log.read(begin, end), events_max=_BATCH_EVENTS, bytes_max=_BATCH_BYTES):
                # On this loop nobody else waits. A thread could not be stopped before the file is closed.
                count += written.add(batch)
                reached = min(batch[-1].last, end)
                move(count, max(total, count))
    except BaseException:
        # A writer of columns that is not closed before its file complains when it is collected.
        with suppress(Exception):
            written.finish()
        raise
    written.finish()
    return count, reached


def _from_node(
    url: str, namespace: str, file: BinaryIO, first: int | None, last: int | None, move: Any
) -> tuple[int, int]:
    count = reached = 0

    def take(sequence: int, text: bytes) -> bool:
        nonlocal count, reached
        if last is not None and sequence > last:
            return False
        file.write(text + b"\n")
        count += 1
        reached = sequence
        if count % 1000 == 0:
            move(count, None)
        return last is None or sequence < last

    read_node(url, namespace, first, take)
    return count, reached


# -- where they go -------------------------------------------------------------------------------


@contextmanager
def _destination(to_file: str, kind: FileFormat, namespace: str, options: dict[str, Any]) -> Iterator[BinaryIO]:
    """What to write into. It is there, under its name, when the block has ended well."""
    named = f"{namespace}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{kind.value}"
    if to_file == "-":
        if kind is not FileFormat.JSONL:
            raise usage(f"{kind.value} needs a file: say --to-file FILE")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif is_path(to_file):
        from omnirelay.segments.connecting import path_of

        path = path_of(to_file)
        with _new_file(path / named if path.is_dir() or to_file.endswith("/") else path) as file:
            yield file
    else:
        address, _, key = to_file.rpartition("/")
        with _new_object(address, key or named, options) as file:
            yield file


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    from omnirelay.errors import AlreadyExists
    from omnirelay.segments.exporting import whole_file

    try:
        with whole_file(path) as file:
            yield file
    except AlreadyExists as error:
        raise usage(error.message) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        exit_code = FAILED if error.errno in CANNOT_WRITE else USAGE
        raise Stop(exit_code, f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def _new_object(address: str, key: str, options: dict[str, Any]) -> Iterator[BinaryIO]:
    """A temporary file that becomes one object: an object is put whole or not at all."""
    import tempfile

    from omnirelay.segments.connecting import connect

    async def connected() -> None:
        await connect(address, options)

    async def put(content: bytes) -> None:
        store = await connect(address, options, writable=False)
        if not await store.put_if_absent(key, content):
            raise usage(f"{store.address}/{key} exists already and is not overwritten")

    run_async(connected())  # Before anything is read.
    with tempfile.TemporaryFile() as file:
        yield file
        size = file.seek(0, 2)
        if size > _OBJECT_BYTES_MAX:
            raise Stop(FAILED, f"{size} bytes are too many for one object; export less at once with --from and --to")
        file.seek(0)
        run_async(put(file.read()))
