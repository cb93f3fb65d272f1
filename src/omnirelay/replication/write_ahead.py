"""`WriteAhead`: brings the write-ahead log of a table into its file while the next rows come in.

SQLite does that behind a commit, in the thread that commits: pages are copied, and flushed, while no row is taken. Rows
of a delivery are pages in memory until they are committed, so both go well beside each other.

The log starts over only when a transaction begins while all of it is in the file, and somebody who goes on and on never
finds it so. So whoever begins with a long one brings in the rest first. What is written over again and again lies in
memory, and has its place on the disk.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

import apsw

WORTH_BYTES: Final = 8 * 1024 * 1024
"""Of the log: so much is brought in at once, and flushed while callers of the node wait."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of the log, and one delivery: it starts over then, unless somebody reads what is in it."""


class WriteAhead:
    """Of one connection, in whose thread all is called. Close it before that one."""

    def __init__(self, path: str, writer: apsw.Connection) -> None:
        self._database = apsw.Connection(path)
        self._database.pragma("journal_mode")  # Before it has read anything it does not know of a log.
        self._page_bytes = int(writer.pragma("page_size"))
        self._bytes = 0
        """Of the log behind the last commit."""
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        writer.set_wal_hook(self._committed)  # In the place of what SQLite does by itself.
        # A process may end without it: what it is in the middle of then is as after a crash.
        threading.Thread(target=self._serve, name="omnirelay-write-ahead", daemon=True).start()

    def _committed(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._bytes = pages * self._page_bytes
        if self._bytes >= WORTH_BYTES and self._idle.is_set():
            self._idle.clear()
            self._wanted.put(True)
        return apsw.SQLITE_OK

    def before(self) -> None:
        """To be called before a transaction begins."""
        if self._bytes >= MOST_BYTES:
            self._idle.wait()
            self._bring_in()

    def _serve(self) -> None:
        while self._wanted.get():
            try:
                self._bring_in()
            finally:
                self._idle.set()

    def _bring_in(self) -> None:
        # What cannot be brought in now stays where it is, as safe as it was, and the next commit tries again.
        with suppress(apsw.Error):
            self._database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        self._idle.wait()
        self._wanted.put(False)
        self._database.close()
