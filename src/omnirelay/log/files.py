"""Files that survive a power cut: what is created, replaced or renamed here is on the disk before the call returns."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from omnirelay.errors import LogLocked

_HOPELESS: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
)


def is_hopeless(error: OSError) -> bool:
    """Whether trying again is of no use: the place is a wrong one, or not to be written. A full disk has room again."""
    return error.errno in _HOPELESS


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: creating, renaming and removing change the directory, not the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, each synced into the one above it."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def write_file(path: Path, chunks: Iterable[bytes]) -> int:
    """Write a new file and sync its contents; its name becomes durable with the directory. Returns its size."""
    size = 0
    with open(path, "xb", buffering=0) as file:
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
            size += len(chunk)
        os.fsync(file.fileno())
    return size


def replace_file(path: Path, data: bytes) -> None:
    """Give a file new contents at once: whoever reads it, even after a crash, finds the old ones or the new ones."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    write_file(temporary, (data,))
    os.replace(temporary, path)
    sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file for good; one that is not there is fine."""
    if path.exists():
        path.unlink(missing_ok=True)
        sync_directory(path.parent)


class WriterLock:
    """The right to write in a directory, held through `flock` for the life of the object.

    The kernel lets go of it when the process ends, however it ends. A forked child would hold it too: start helper
    processes with spawn.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise LogLocked(
                f"another process (or another object in this one) has {path.parent} open for writing;"
                " stop it, or open this one read-only",
                file=str(path),
            ) from error

    def release(self) -> None:
        """Let others in. Safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
