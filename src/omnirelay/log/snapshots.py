"""Snapshot files: a directory of chunks that is complete whenever it has its final name.

    snapshots/00000000000000004711/
        manifest.json     sequence, size and SHA-256 of every file below
        header
        chunk-000000, chunk-000001, …

Built under a `.tmp` name, every file synced, then renamed, then the parent synced. Contents are the caller's business.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Final

import msgspec

from omnirelay.errors import LogDamaged
from omnirelay.log.base import SnapshotRecord
from omnirelay.log.files import make_directories, sync_directory, write_file

DIRECTORY: Final = "snapshots"
MANIFEST: Final = "manifest.json"
HEADER: Final = "header"

_NAME = re.compile(r"\d{20}(\.tmp)?")


class ChunkEntry(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    version: int
    sequence: int
    files: list[ChunkEntry]


_decoder = msgspec.json.Decoder(Manifest)


def write_snapshot(directory: Path, sequence: int, header: bytes, chunks: Iterable[bytes]) -> tuple[str, int]:
    """Write a snapshot below the log's directory; durable when it returns.

    Returns its path relative to `directory` and its size. One chunk is in memory at a time. A snapshot of the same
    sequence is replaced; when `chunks` raises, nothing of the new one stays.
    """
    parent = directory / DIRECTORY
    make_directories(parent)
    final = parent / f"{sequence:020d}"
    building = parent / f"{final.name}.tmp"
    if building.exists():
        shutil.rmtree(building)
    building.mkdir()
    try:
        entries = [_write_chunk(building, HEADER, header)]
        entries.extend(_write_chunk(building, f"chunk-{n:06d}", chunk) for n, chunk in enumerate(chunks))
        manifest = msgspec.json.encode(Manifest(1, sequence, entries))
        write_file(building / MANIFEST, (manifest,))
        sync_directory(building)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    if final.exists():
        # No rename replaces a directory that has files. A crash between these lines loses this snapshot only, and the
        # log still has all its frames: a snapshot is never the only copy of anything that was not verified.
        shutil.rmtree(final)
    os.rename(building, final)
    sync_directory(parent)
    return f"{DIRECTORY}/{final.name}", len(manifest) + sum(entry.bytes for entry in entries)


def read_snapshot(directory: Path, path: str) -> tuple[bytes, Iterator[bytes]]:
    """The header, and the chunks one by one as they are asked for.

    Raises LogDamaged naming the file as soon as one is missing, was altered, or is not listed.
    """
    root = directory / path
    manifest = _read_manifest(root)
    present = {entry.name for entry in root.iterdir()}
    listed = {entry.name for entry in manifest.files} | {MANIFEST}
    if present != listed:
        name = min(present ^ listed)
        raise _damaged(root / name, "is missing" if name in listed else "does not belong there")
    chunks = manifest.files[1:]
    return _read_chunk(root, manifest.files[0]), (_read_chunk(root, entry) for entry in chunks)


def read_recorded(directory: Path, record: SnapshotRecord) -> tuple[bytes, Iterator[bytes]]:
    """`read_snapshot` for one that a log has a record of. Raises LogDamaged behind the last chunk, too, when it is
    whole but another one, of another shard or from an older copy. What was made of it must not be used then.
    """
    header, chunks = read_snapshot(directory, record.path)
    return header, _compared(directory / record.path, record.digest, header, chunks)


def _compared(root: Path, digest: str, header: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    running = hashlib.sha256(header)
    for chunk in chunks:
        running.update(chunk)
        yield chunk
    if running.hexdigest() != digest:
        raise LogDamaged(f"snapshot {root} is another one than was recorded for it", file=str(root))


def newest_snapshot(directory: Path) -> int:
    """The last event of the newest snapshot that lies there, going by its name; 0 when there is none."""
    parent = directory / DIRECTORY
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    return max((int(name) for name in names if len(name) == 20 and _NAME.fullmatch(name)), default=0)


def prune_snapshots(directory: Path, keep: Set[str]) -> list[str]:
    """Remove every snapshot whose relative path is not in `keep`, half-written ones too; returns what went.

    Nothing else in the directory is touched. MUST NOT run while a snapshot is being written.
    """
    parent = directory / DIRECTORY
    if not parent.is_dir():
        return []
    removed = []
    for entry in sorted(parent.iterdir()):
        path = f"{DIRECTORY}/{entry.name}"
        if _NAME.fullmatch(entry.name) and entry.is_dir() and path not in keep:
            shutil.rmtree(entry)
            removed.append(path)
    if removed:
        sync_directory(parent)
    return removed


def _write_chunk(directory: Path, name: str, data: bytes) -> ChunkEntry:
    size = write_file(directory / name, (data,))
    return ChunkEntry(name, size, hashlib.sha256(data).hexdigest())


def _read_chunk(root: Path, entry: ChunkEntry) -> bytes:
    try:
        data = (root / entry.name).read_bytes()
    except OSError as error:
        raise _damaged(root / entry.name, f"cannot be read: {error}") from error
    if len(data) != entry.bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _damaged(root / entry.name, "is not what was written")
    return data


def _read_manifest(root: Path) -> Manifest:
    path = root / MANIFEST
    try:
        manifest = _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"cannot be read: {error}") from error
    names = [HEADER, *(f"chunk-{n:06d}" for n in range(len(manifest.files) - 1))]
    if manifest.version != 1 or [entry.name for entry in manifest.files] != names:
        raise _damaged(path, "does not list the files of a snapshot this version knows")
    if root.name != f"{manifest.sequence:020d}":
        raise _damaged(path, f"belongs to a snapshot at {manifest.sequence}")
    return manifest


def _damaged(path: Path, what: str) -> LogDamaged:
    return LogDamaged(
        f"snapshot file {path} {what}; an older snapshot serves as well, or the log if nothing of it was trimmed, else"
        " a backup or segments have to be restored",
        file=str(path),
    )
