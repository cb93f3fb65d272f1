"""A disk whose cache dies with the process: what SQLite has not flushed is gone after a kill.

The page cache of a real machine outlives its processes, so a kill alone cannot tell a log that flushes from
one that does not. On this VFS it can: writes wait in memory until SQLite flushes the file.
"""

from __future__ import annotations

import threading
from typing import Any

import apsw

NAME = "volatile"


class VolatileVFS(apsw.VFS):
    def __init__(self, name: str = NAME) -> None:
        self.lock = threading.RLock()
        self.unflushed: dict[str, list[tuple[int, bytes]]] = {}
        """Path → writes in order. Shared by every connection of the process, as a page cache is."""
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return apsw.VFSFile("", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return _VolatileFile(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self.lock:
            self.unflushed.pop(filename, None)
            super().xDelete(filename, syncdir)


class _VolatileFile(apsw.VFSFile):
    def __init__(self, vfs: VolatileVFS, path: str, name: str | apsw.URIFilename, flags: list[int]) -> None:
        self._vfs = vfs
        self._path = path
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        with self._vfs.lock:
            self._vfs.unflushed.setdefault(self._path, []).append((offset, bytes(data)))

    def xRead(self, amount: int, offset: int) -> bytes:
        with self._vfs.lock:
            size = self.xFileSize()
            found = bytearray(super().xRead(amount, offset).ljust(amount, b"\0"))
            for start, data in self._vfs.unflushed.get(self._path, ()):
                first, last = max(start, offset), min(start + len(data), offset + amount)
                if first < last:
                    found[first - offset : last - offset] = data[first - start : last - start]
            return bytes(found[: max(0, min(amount, size - offset))])

    def xFileSize(self) -> int:
        with self._vfs.lock:
            ends = (start + len(data) for start, data in self._vfs.unflushed.get(self._path, ()))
            return max(super().xFileSize(), *ends, 0)

    def xTruncate(self, newsize: int) -> None:
        with self._vfs.lock:
            self._flush()
            super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        with self._vfs.lock:
            self._flush()

    def _flush(self) -> None:
        for start, data in self._vfs.unflushed.pop(self._path, ()):
            super().xWrite(data, start)
