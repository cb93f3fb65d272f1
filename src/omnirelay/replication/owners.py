"""Whose a target is. Two logs that write into one would leave out or mix up each other's events without a word.

Beside a directory of files lies a hidden file with the log that writes there, locked while a sink has it open. A target
without one (of an older version, or copied from somewhere) is taken over when its newest event stands in the log, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from omnirelay.errors import Unavailable
from omnirelay.log.files import sync_directory
from omnirelay.replication.sinks import SinkUnusable

_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
"""What file systems say that know no locks."""


class Owner(msgspec.Struct, rename="camel", frozen=True):
    shard: str
    log_id: str
    gaps: tuple[tuple[int, int], ...] = ()
    """Where a file does not begin right behind the one before it, and is not meant to: after a new generation, or
    because somebody had events left out. Each with the last event before and the first one behind.
    """


class Newest(msgspec.Struct, rename="camel", frozen=True):
    """The last event that a target holds, as it says of itself."""

    sequence_number: int
    event_type: str
    timestamp: str


_read_owner = msgspec.json.Decoder(Owner).decode
_read_newest = msgspec.json.Decoder(Newest).decode


def newest_of(document: bytes | str) -> Newest | None:
    """None when it is not an event as this version writes it."""
    try:
        return _read_newest(document)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def of_another_log(place: object, shard: str, log_id: str) -> SinkUnusable:
    return SinkUnusable(
        f"{place} holds the events of another log, {shard} with the id {log_id}: it belongs to something else; give"
        " this sink another place, or empty that one, then resume"
    )


class DirectoryOwner:
    """The claim of one sink to a directory. Blocks for a moment; calls must not overlap."""

    def __init__(self) -> None:
        self._directory = Path()
        self._file: int | None = None
        self._found: Owner | None = None

    def take(self, directory: Path, log_id: str | None) -> None:
        """Keep others out. Raises Unavailable while another sink has it, SinkUnusable when that follows another log."""
        self.release()
        self._directory = directory
        # Not in it: whoever lists the directory finds events and nothing else.
        self._file = os.open(directory.with_name(f".{directory.name}.owner"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self._refuse(error, log_id)
        self._found = self._read()

    def _refuse(self, error: OSError, log_id: str | None) -> None:
        found = self._read()
        self.release()
        if not isinstance(error, BlockingIOError):
            raise error
        if found is not None and log_id is not None:
            self._found = found
            self.check(log_id)
        raise Unavailable(f"another sink writes to {self._directory}; each needs a place of its own")

    def _read(self) -> Owner | None:
        assert self._file is not None
        try:
            return _read_owner(os.pread(self._file, 64 * 1024, 0))
        except msgspec.DecodeError:
            return None  # New, or half written when the machine went down.

    @property
    def found(self) -> Owner | None:
        """Who wrote there before, or writes there now."""
        return self._found

    def check(self, log_id: str | None) -> None:
        """Raises SinkUnusable when what is there came from another log."""
        found = self._found
        if log_id is not None and found is not None and found.log_id != log_id:
            raise of_another_log(self._directory, found.shard, found.log_id)

    def write(self, owner: Owner) -> None:
        """From now on it belongs to this log."""
        if self._file is None or owner == self._found:
            return
        data = msgspec.json.encode(owner)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, data, 0)
        os.fsync(self._file)
        sync_directory(self._directory.parent)
        self._found = owner

    def release(self) -> None:
        file, self._file, self._found = self._file, None, None
        if file is not None:
            os.close(file)
