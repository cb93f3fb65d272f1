"""Backups in an object store: the files of a copied log, cut into parts, and one object that says which they are.

    SHARD/backup.json              the commit: put if absent when every part was read back
    SHARD/backup-NONCE/000000      parts, in order

Parts of two backups never mix, because each has a name of its own; of two that go to one place the first one to finish
wins, and the other one removes its parts.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from omnirelay.errors import AlreadyExists, NotFound, OmniRelayError, Unavailable
from omnirelay.log.files import make_directories, sync_directory
from omnirelay.segments.errors import ObjectMissing, SegmentsDamaged
from omnirelay.segments.seals import is_intact, sealed
from omnirelay.segments.store import ObjectStore

PART_BYTES: Final = 32 * 1024 * 1024
_FORMAT_VERSION: Final = 1

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


class Part(msgspec.Struct, frozen=True):
    key: str
    bytes: int
    sha256: str


class BackedUpFile(msgspec.Struct, frozen=True):
    path: str
    """Relative to the log's directory."""
    parts: tuple[Part, ...]


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    shard: str
    log_id: str
    last: int
    """The last event in it."""
    chain: str
    """Behind that event, in hexadecimal."""
    written_ms: int
    files: tuple[BackedUpFile, ...]
    format_version: int = _FORMAT_VERSION

    @property
    def size(self) -> int:
        return sum(part.bytes for file in self.files for part in file.parts)


def backup_key(shard: str) -> str:
    return f"{shard}/backup.json"


async def put_backup(
    store: ObjectStore, directory: Path, about: BackupManifest, progress: Progress | None = None
) -> BackupManifest:
    """Put the files below `directory` as the backup that `about` describes; its `files` are filled in.

    Every part is read back. Raises AlreadyExists when there is a backup of this shard already, SegmentsDamaged when a
    part does not read back, Unavailable; nothing stays then, except the parts when the last step, which makes them a
    backup, was sent and nobody knows what became of it.
    """
    shard = about.shard
    if await find_backup(store, shard) is not None:
        raise _taken(store, shard)
    prefix = f"{shard}/backup-{secrets.token_hex(8)}"
    paths = _files_below(directory)
    total = sum(path.stat().st_size for path in paths)
    put: list[Part] = []
    committing = False
    try:
        files = []
        for path in paths:
            parts = []
            for data in _parts_of(path):
                part = await _put_part(store, shard, f"{prefix}/{len(put):06d}", data, put)
                parts.append(part)
                if progress is not None:
                    progress(sum(each.bytes for each in put), total)
            files.append(BackedUpFile(path.relative_to(directory).as_posix(), tuple(parts)))
        manifest = msgspec.structs.replace(about, files=tuple(files))
        committing = True
        await _commit(store, manifest, prefix)
    except BaseException as error:
        if not committing or isinstance(error, AlreadyExists):
            for each in put:
                with suppress(OmniRelayError):
                    await store.delete(each.key)
        raise
    return manifest


async def _commit(store: ObjectStore, manifest: BackupManifest, prefix: str) -> None:
    """Have the parts be a backup. Raises AlreadyExists when another one is there, Unavailable when nobody can tell.

    What the store says is not the last word: the answer may get lost, or a repetition on the way may meet the very
    object that the first attempt put there. Whose it is can be read, because no other backup has these parts.
    """
    key, data = backup_key(manifest.shard), sealed(msgspec.json.encode(manifest))
    failure: OmniRelayError | None = None
    try:
        if await store.put_if_absent(key, data):
            return
    except OmniRelayError as error:
        failure = error
    try:
        if await store.get(key) == data:
            return
    except ObjectMissing:
        pass  # It may still be on its way.
    except OmniRelayError as error:
        failure = failure or error
    else:
        raise _taken(store, manifest.shard)
    reason = "it is gone" if failure is None else failure.message
    raise Unavailable(
        f"whether {key} in {store.address} was written is not known: {reason}. If it is there, the backup is whole; if"
        f" not, remove what is below {prefix} and make another",
        shard=manifest.shard,
    ) from failure


async def _put_part(store: ObjectStore, shard: str, key: str, data: bytes, put: list[Part]) -> Part:
    part = Part(key, len(data), hashlib.sha256(data).hexdigest())
    put.append(part)
    await store.put_if_absent(key, data)
    await _get_part(store, shard, part)
    return part


def _files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _parts_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(PART_BYTES):
            yield data


def _taken(store: ObjectStore, shard: str) -> AlreadyExists:
    return AlreadyExists(
        f"there is a backup of {shard!r} in {store.address} already, and it is not overwritten; give this one a place"
        " of its own",
        shard=shard,
    )


async def find_backup(store: ObjectStore, shard: str) -> BackupManifest | None:
    """What is backed up of a shard, None when nothing is. Raises SegmentsDamaged."""
    key = backup_key(shard)
    try:
        data = await store.get(key)
        manifest = msgspec.json.decode(data, type=BackupManifest)
    except ObjectMissing:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(shard, key, f"cannot be read: {error}") from None
    if manifest.format_version > _FORMAT_VERSION:
        raise _damaged(shard, key, f"has format {manifest.format_version}, which this version does not know; upgrade")
    if manifest.shard != shard:
        raise _damaged(shard, key, f"is of {manifest.shard!r}")
    if not is_intact(data):
        raise _damaged(shard, key, "is not what was written: its own digest is another")
    return manifest


async def fetch_backup(
    store: ObjectStore, shard: str, directory: Path, progress: Progress | None = None
) -> BackupManifest:
    """Write the files of a backup below `directory`, every part checked. Raises NotFound, SegmentsDamaged."""
    manifest = await find_backup(store, shard)
    if manifest is None:
        raise NotFound(f"there is no backup of {shard!r} in {store.address}", shard=shard)
    done = 0
    for each in manifest.files:
        path = _path_in(directory, each.path, shard)
        await asyncio.to_thread(make_directories, path.parent)
        with path.open("xb") as file:
            for part in each.parts:
                await asyncio.to_thread(file.write, await _get_part(store, shard, part))
                done += part.bytes
                if progress is not None:
                    progress(done, manifest.size)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        await asyncio.to_thread(sync_directory, path.parent)
    return manifest


def _path_in(directory: Path, name: str, shard: str) -> Path:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise _damaged(shard, backup_key(shard), f"names the file {name!r}, which lies outside")
    return directory.joinpath(*pure.parts)


async def _get_part(store: ObjectStore, shard: str, part: Part) -> bytes:
    try:
        data = await store.get(part.key)
    except ObjectMissing:
        raise _damaged(shard, part.key, "is missing, although the backup lists it") from None
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise _damaged(shard, part.key, "is not what was written")
    return data


def _damaged(shard: str, key: str, what: str) -> SegmentsDamaged:
    return SegmentsDamaged(f"{key} of the backup of {shard!r} {what}", shard=shard, segment=key)
