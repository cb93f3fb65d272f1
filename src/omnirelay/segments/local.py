"""Objects as files below a directory.

obstore has a file system too, but does not sync what it writes. The log may be trimmed behind a segment, so here a
put is on the disk before it returns: written beside its place, synced, linked to its name, and the name synced.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

from omnirelay.errors import Unavailable, Unimplemented
from omnirelay.log.files import is_hopeless, make_directories, sync_directory, write_file
from omnirelay.segments.errors import ObjectMissing, SegmentStoreUnusable
from omnirelay.segments.store import StoredObject

_STAGING: Final = ".staging-"
"""What files that have no name yet are called. A crash leaves one behind; it is never listed."""
_STAGING_LIFE_S: Final = 86_400.0


class LocalObjectStore:
    """One file per object. `link` fails when the name is taken, which is what makes a put have one winner."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._tidied: set[Path] = set()

    @property
    def address(self) -> str:
        return str(self._root)

    async def list(self, prefix: str, after: str | None = None) -> Sequence[StoredObject]:
        return await asyncio.to_thread(self._list, prefix, after)

    def _list(self, prefix: str, after: str | None) -> Sequence[StoredObject]:
        folder = self._path(prefix)
        try:
            found = [
                StoredObject(key, stat.st_size, stat.st_mtime_ns // 1_000_000)
                for key, stat in _files(folder, prefix.strip("/"))
                if after is None or key > after
            ]
        except OSError as error:
            self._failed("read", error)
        return sorted(found, key=lambda each: each.key)

    async def folders(self, prefix: str) -> Sequence[str]:
        return await asyncio.to_thread(self._folders, prefix)

    def _folders(self, prefix: str) -> Sequence[str]:
        try:
            with os.scandir(self._path(prefix)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._failed("read", error)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await asyncio.to_thread(self._get, key, start, end)

    def _get(self, key: str, start: int, end: int | None) -> bytes:
        try:
            with self._path(key).open("rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(f"there is no {key} in {self.address}", key=key) from None
        except OSError as error:
            self._failed("read", error)

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        return await asyncio.to_thread(self._put, key, data)

    def _put(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        staging = path.with_name(_STAGING + secrets.token_hex(8))
        try:
            make_directories(path.parent)
            self._tidy(path.parent)
            try:
                write_file(staging, (data,))
                os.link(staging, path)
                won = True
            except FileExistsError:
                won = False
            finally:
                staging.unlink(missing_ok=True)
            # Also for who lost: it may now build on the other's object, whose name has to survive.
            sync_directory(path.parent)
        except OSError as error:
            self._failed("write", error)
        return won

    def _tidy(self, folder: Path) -> None:
        """Remove, once per folder, what crashes left without a name long ago."""
        if folder in self._tidied:
            return
        self._tidied.add(folder)
        horizon = time.time() - _STAGING_LIFE_S
        for left in folder.glob(f"{_STAGING}*"):
            with suppress(FileNotFoundError):  # It may just be getting its name.
                if left.stat().st_mtime < horizon:
                    left.unlink()

    async def compare_and_swap(self, key: str, data: bytes, expected: str) -> str | None:
        raise Unimplemented("a file system cannot replace a file only if it is unchanged")

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._delete, key)

    def _delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink()
            sync_directory(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._failed("write", error)

    def _path(self, key: str) -> Path:
        parts = PurePosixPath(key).parts
        if key.startswith("/") or ".." in parts or "\0" in key:
            raise SegmentStoreUnusable(f"{key!r} is no key of an object", field="key")
        return self._root.joinpath(*parts)

    def _failed(self, what: str, error: OSError) -> NoReturn:
        message = f"cannot {what} in {self.address}: {error.strerror or error}"
        if is_hopeless(error):
            raise SegmentStoreUnusable(message) from None
        raise Unavailable(message) from None


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            key = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder / entry.name, key)
            elif not entry.name.startswith(_STAGING):
                try:
                    yield key, entry.stat()
                except FileNotFoundError:  # Deleted since.
                    continue
