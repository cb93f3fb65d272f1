"""What stands between the writer and its connection: no transaction is left open, and after a failed flush, or when the
files are gone, nothing is written any more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from omnirelay.errors import LogOutcomeUnknown, LogUnavailable, OmniRelayError
from omnirelay.log.sqlite.building import mark_suspect
from omnirelay.log.sqlite.connection import is_sync_failure, keep_wal_on_close, translate
from omnirelay.log.sqlite.paths import LogPaths

T = TypeVar("T")


class Guard:
    """Runs what is done to the database of one writer, and knows whether it may be done."""

    def __init__(self, connection: apsw.Connection, paths: LogPaths, shard: str) -> None:
        self.given_up: str | None = None
        """Why nothing is written any more, or None."""
        self.closed = False
        self.out_of_room = False
        """Something was refused for want of room; set back by whoever makes some."""
        self._connection = connection
        self._paths = paths
        self._shard = shard
        self._gone = False
        self._files: dict[Path, tuple[int, int] | None] = {}
        self.watch(paths.database)

    def check_usable(self, next_sequence: int) -> None:
        if self.closed:
            raise LogUnavailable(f"this log of {self._shard!r} is closed", shard=self._shard)
        if self.given_up is not None:
            raise LogOutcomeUnknown(
                self.given_up,
                shard=self._shard,
                file=str(self._paths.database),
                sequence=next_sequence,
            )

    def run(self, action: Callable[[], T]) -> T:
        """Run a transaction; whatever goes wrong, none is left open."""
        try:
            return action()
        except apsw.Error as error:
            self.roll_back()
            raise self._failure(error) from error
        except BaseException:
            self.roll_back()
            raise

    def roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except apsw.Error as error:
                self._give_up_on(error)

    def _failure(self, error: apsw.Error) -> OmniRelayError:
        meaning = translate(error, self._paths.database, self._shard)
        if isinstance(meaning, LogOutcomeUnknown):
            self.give_up(meaning.message)
        if isinstance(error, apsw.FullError):
            self.out_of_room = True
        return meaning

    # ------------------------------------------------------------------------------ giving up

    def give_up_after(self, error: apsw.Error) -> None:
        """Give up if this was a failed flush."""
        if is_sync_failure(error):
            self._give_up_on(error)

    def _give_up_on(self, error: apsw.Error) -> None:
        self.give_up(translate(error, self._paths.database, self._shard).message)

    def give_up(self, why: str) -> None:
        """Refuse everything from here on and tell the next opening to read back and copy the log.

        After a failed flush the kernel may call pages clean that are not on the disk. Flushing again would succeed and
        prove nothing; closing must not copy such pages into the database either.
        """
        self.given_up = why
        keep_wal_on_close(self._connection)
        mark_suspect(self._paths, why)

    def watch(self, path: Path) -> None:
        """This is one of the files that are written."""
        self._files[path] = _identity(path)

    def is_in_place(self) -> bool:
        """Whether the files are still those that are written. If not, give up: a file that was removed, moved or
        replaced takes every commit, and nobody will ever find them.
        """
        if not self.closed and self.given_up is None:
            self._give_up_if_gone()
        return not self._gone

    def _give_up_if_gone(self) -> None:
        for path, identity in self._files.items():
            try:
                if identity is None or _identity(path) == identity:
                    continue
            except OSError:
                continue  # What cannot be asked is not known to be gone.
            self._gone = True
            self.given_up = (
                f"the log {path} was removed, moved or replaced while it was being written;"
                " put it back where it was and start again"
            )
            # It may have been moved together with its WAL: what is in there stays there.
            keep_wal_on_close(self._connection)
            return


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is; None when there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
