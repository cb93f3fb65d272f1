"""A disk that loses power, fails and fills up: what SQLite does to its files, as data.

`RecordingVFS` stands between SQLite and the real files, and between the log and its redo file. Every write, truncate,
flush and delete goes to the file and, in the same order, into a list. `Disk` plays such a list up to any point and
tells what the files could look like if the power had failed there:

    with RecordingVFS() as vfs:
        log = SqliteLog.open(directory, "jobs", vfs=vfs.name)
        ...                                              # work; note vfs.position at each acknowledgement
    disk = Disk()
    for operation in vfs.operations:
        disk.apply(operation)
        files = disk.image("dropped", Random(1))         # path -> bytes; write them somewhere and open them

What the model assumes of a disk, and no more:

- what was flushed is there; what was not is there, or not, or in part, in any order between flushes;
- a sector of 512 bytes is written whole or not at all, and never harms its neighbours;
- names in a directory change in order. SQLite makes them durable with the first flush of a journal or WAL it
  created. What others do to the names (`omnirelay.log.files` flushes all of it) counts as durable as soon as
  it is noticed: at the next opening of a file, or when `notice_names` is called;
- after a failed flush what was to be flushed may be gone for good, though reading still shows it: the kernel
  calls such pages clean, and the next flush succeeds without them;
- the shared memory of a WAL (`-shm`) is not on the disk at all;
- a redo file has all its blocks from the beginning, so what fails in a write to it is the flush.

The same object makes the disk fail: the n-th write or flush, once or from then on, or when there is no room.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

import apsw
import msgspec

from omnirelay.log.sqlite.redo_disk import OsRedoFile
from omnirelay.log.sqlite.redo_file import RedoFile, stand_ins

SECTOR_BYTES: Final = 512

_numbers = itertools.count(1)

_OWN_DIRECTORY_FLUSH: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL

# Closing a descriptor opened this way keeps the locks that SQLite holds on the file.
_HOLD: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC


class Appeared(msgspec.Struct, frozen=True):
    """A file was opened for the first time. One that was there before counts as flushed with its contents."""

    file: int
    name: str
    contents: bytes | None
    """None: it was created by this opening."""


class Wrote(msgspec.Struct, frozen=True):
    file: int
    offset: int
    data: bytes


class Truncated(msgspec.Struct, frozen=True):
    file: int
    size: int


class Synced(msgspec.Struct, frozen=True):
    file: int
    directory: bool
    """Whether SQLite flushed the directory with it."""


class SyncFailed(msgspec.Struct, frozen=True):
    file: int


class Deleted(msgspec.Struct, frozen=True):
    name: str
    directory: bool
    """Whether the directory was flushed afterwards."""


class Rearranged(msgspec.Struct, frozen=True):
    """Files were renamed or removed behind SQLite's back; `names` is the whole of what is left."""

    names: dict[str, int]


Operation: TypeAlias = Appeared | Wrote | Truncated | Synced | SyncFailed | Deleted | Rearranged

Outcome: TypeAlias = Literal["dropped", "kept", "torn", "subset"]
"""What became of everything that was not flushed when the power failed.

dropped: none of it is there. kept: all of it (so a killed process leaves its files). torn: all but the end of
the very last write. subset: some of it, by the toss of a coin, in any order.
"""


# ---------------------------------------------------------------------------------------- recording


class _Fault(msgspec.Struct):
    """A failure of the `at`-th operation from the moment it was asked for."""

    at: int
    code: int
    lasting: bool
    part: float


class RecordingVFS(apsw.VFS):
    """A SQLite VFS over the default one; give its `name` to whatever opens databases.

    Safe to use from several threads. Unregistered at the end of a `with` block; connections MUST be closed
    by then.
    """

    def __init__(self) -> None:
        self.name = f"omnirelay-recording-{next(_numbers)}"
        self._message = f"made to fail by {self.name}"
        self.operations: list[Operation] = []
        self.room_bytes: int | None = None
        """How large all files together may become; a write beyond is refused like one on a full disk."""
        self.failures = 0
        """How many operations were made to fail."""
        self.lock = threading.RLock()
        self._write_fault: _Fault | None = None
        self._sync_fault: _Fault | None = None
        self._names: dict[str, int] = {}
        self._sizes: dict[int, int] = {}
        self._identities: dict[tuple[int, int], int] = {}
        self._held: list[int] = []
        self._files = itertools.count(1)
        super().__init__(self.name, "")

    def __enter__(self) -> RecordingVFS:
        stand_ins[self.name] = self._make_redo_file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del stand_ins[self.name]
        self.unregister()
        while self._held:
            os.close(self._held.pop())

    @property
    def position(self) -> int:
        """How many operations were recorded so far."""
        return len(self.operations)

    # ------------------------------------------------------------------------------ failing

    def fail_write(
        self, at: int, *, code: int = apsw.SQLITE_IOERR_WRITE, lasting: bool = False, part: float = 0.0
    ) -> None:
        """Have the `at`-th write from now on refused (1: the next one), and with `lasting` all after it.

        `part` of it (0 to 1) reaches the file all the same. Use SQLITE_FULL for a disk without room.
        """
        self._write_fault = _Fault(at, code, lasting, part)

    def fail_sync(self, at: int, *, code: int = apsw.SQLITE_IOERR_FSYNC, lasting: bool = False) -> None:
        """Have the `at`-th flush from now on fail, and with `lasting` all after it."""
        self._sync_fault = _Fault(at, code, lasting, 0.0)

    def heal(self) -> None:
        """From now on nothing fails, and there is room."""
        with self.lock:
            self._write_fault = self._sync_fault = self.room_bytes = None

    @property
    def lasting(self) -> bool:
        """Whether something fails, or will, and goes on failing until `heal`."""
        faults = (self._write_fault, self._sync_fault)
        return self.room_bytes is not None or any(fault is not None and fault.lasting for fault in faults)

    def excepthook(
        self,
        etype: type[BaseException] | None,
        evalue: BaseException | None,
        etraceback: TracebackType | None,
    ) -> bool:
        """SQLite ignores some failures, such as one while closing. Ours are no surprise."""
        if str(evalue) == self._message:
            return True
        return super().excepthook(etype, evalue, etraceback)

    @staticmethod
    def _striking(fault: _Fault | None) -> _Fault | None:
        """Count down; the fault when it is this operation's turn to fail."""
        if fault is None:
            return None
        fault.at -= 1
        return fault if fault.at == 0 or (fault.lasting and fault.at < 0) else None

    def _failure(self, code: int) -> Exception:
        self.failures += 1
        error = apsw.exception_for(code)
        error.args = (self._message,)
        return error

    # ------------------------------------------------------------------------------ SQLite calls these

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None:  # A temporary file: it does not outlive its connection.
            return apsw.VFSFile("", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        with self.lock:
            self.notice_names()
            existed = os.path.exists(path)
            wants_directory = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _OWN_DIRECTORY_FLUSH)
            opened = _RecordedFile(self, name, flags, wants_directory)
            opened.number = self._know(path, existed)
            return opened

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self.lock:
            super().xDelete(filename, syncdir)
            number = self._names.pop(filename, None)
            if number is not None:
                self._sizes[number] = 0
                self.operations.append(Deleted(filename, syncdir))

    def take_in(self, path: Path) -> None:
        """Know a file that is there already, before SQLite opens it."""
        with self.lock:
            self._know(os.fspath(path), existed=True)

    def notice_names(self) -> None:
        """Find out which of the files were renamed or removed by others than SQLite."""
        with self.lock:
            names = {}
            for directory in {os.path.dirname(name) for name in self._names}:
                if not os.path.isdir(directory):  # It was renamed or removed with all it held.
                    continue
                with os.scandir(directory) as entries:
                    for entry in entries:
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue  # The witness was renamed into place in between.
                        number = self._identities.get((status.st_dev, status.st_ino))
                        if number is not None:
                            names[entry.path] = number
            if names != self._names:
                for gone in set(self._names.values()) - set(names.values()):
                    self._sizes[gone] = 0
                self._names = names
                self.operations.append(Rearranged(dict(names)))

    def _know(self, path: str, existed: bool) -> int:
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino)
        number = self._identities.get(identity)
        if number is None:
            # Held open, so that no other file can get its identity.
            self._held.append(os.open(path, _HOLD))
            number = self._identities[identity] = next(self._files)
        if path not in self._names:
            self._names[path] = number
            self._sizes[number] = status.st_size
            contents = Path(path).read_bytes() if existed and status.st_size else b""
            self.operations.append(Appeared(number, path, contents if existed else None))
        return number

    def _make_redo_file(self, path: Path, size: int) -> RedoFile:
        with self.lock:
            self.notice_names()
            if self.room_bytes is not None and sum(self._sizes.values()) + size > self.room_bytes:
                self.failures += 1
                raise OSError(errno.ENOSPC, self._message)
            file = OsRedoFile(path, size)
            return _RecordedRedoFile(self, self._know(os.fspath(path), existed=True), file)

    # ------------------------------------------------------------------------------ the files call these

    def write(self, number: int, data: bytes, offset: int, write: Callable[[bytes, int], None]) -> None:
        with self.lock:
            fault = self._striking(self._write_fault)
            if fault is not None:
                part = data[: int(len(data) * fault.part)]
                if part:
                    self._write(number, part, offset, write)
                raise self._failure(fault.code)
            growth = max(0, offset + len(data) - self._sizes[number])
            if self.room_bytes is not None and sum(self._sizes.values()) + growth > self.room_bytes:
                raise self._failure(apsw.SQLITE_FULL)
            self._write(number, data, offset, write)

    def _write(self, number: int, data: bytes, offset: int, write: Callable[[bytes, int], None]) -> None:
        write(data, offset)
        self._sizes[number] = max(self._sizes[number], offset + len(data))
        self.operations.append(Wrote(number, offset, data))

    def write_flushed(self, number: int, data: bytes, offset: int, file: RedoFile) -> None:
        """To blocks that are there. Two operations: the power may fail before the flush, and in the midst of it."""
        with self.lock:
            self._write(number, data, offset, lambda data, offset: file.write(offset, (data,)))
            try:
                self.sync(number, False, lambda: None)
            except apsw.Error as error:
                raise OSError(errno.EIO, self._message) from error

    def truncate(self, number: int, size: int, truncate: Callable[[int], None]) -> None:
        with self.lock:
            truncate(size)
            self._sizes[number] = size
            self.operations.append(Truncated(number, size))

    def sync(self, number: int, directory: bool, sync: Callable[[], None]) -> None:
        with self.lock:
            fault = self._striking(self._sync_fault)
            if fault is not None:
                self.operations.append(SyncFailed(number))
                raise self._failure(fault.code)
            sync()
            self.operations.append(Synced(number, directory))


class _RecordedFile(apsw.VFSFile):
    def __init__(
        self, vfs: RecordingVFS, name: str | apsw.URIFilename, flags: list[int], wants_directory: bool
    ) -> None:
        self._vfs = vfs
        self._wants_directory = wants_directory
        self.number = 0
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        self._vfs.write(self.number, bytes(data), offset, super().xWrite)

    def xTruncate(self, newsize: int) -> None:
        self._vfs.truncate(self.number, newsize, super().xTruncate)

    def xSync(self, flags: int) -> None:
        flush = super().xSync
        self._vfs.sync(self.number, self._wants_directory, lambda: flush(flags))
        self._wants_directory = False


class _RecordedRedoFile:
    def __init__(self, vfs: RecordingVFS, number: int, file: OsRedoFile) -> None:
        self._vfs = vfs
        self._number = number
        self._file = file

    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        self._vfs.write_flushed(self._number, b"".join(parts), offset, self._file)

    def close(self) -> None:
        self._file.close()


# ---------------------------------------------------------------------------------------- after the cut


class _Change(msgspec.Struct):
    operation: Wrote | Truncated
    fate: Literal["open", "flushed", "doomed"] = "open"
    """open: no flush was tried since. doomed: one was, and failed."""


class _File(msgspec.Struct):
    flushed: bytearray
    changes: list[_Change]
    """In order: what is not flushed, and behind something doomed also what is."""


class Disk:
    """What a disk holds and what it may hold after the operations it was given."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._name_changes: list[tuple[str, int | None]] = []
        self._last: Operation | None = None

    def apply(self, operation: Operation) -> None:
        self._last = operation
        match operation:
            case Appeared(number, name, contents):
                self._appear(number, name, contents)
            case Wrote(number) | Truncated(number):
                self._files[number].changes.append(_Change(operation))
            case Synced(number, directory):
                self._sync(self._files[number])
                if directory:
                    self._sync_names()
            case SyncFailed(number):
                for change in self._files[number].changes:
                    change.fate = "doomed" if change.fate == "open" else change.fate
            case Deleted(name, directory):
                self._name_changes.append((name, None))
                if directory:
                    self._sync_names()
            case Rearranged(names):
                self._name_changes.clear()
                self._names = dict(names)

    def image(self, outcome: Outcome, random: Random) -> dict[str, bytes] | None:
        """The files as the next start could find them; None when the last operation cannot be torn."""
        if outcome == "torn" and (not isinstance(self._last, Wrote) or not _tears(self._last)):
            return None
        return {
            name: bytes(self._contents(self._files[number], outcome, random))
            for name, number in self._names_after(outcome, random).items()
        }

    def _appear(self, number: int, name: str, contents: bytes | None) -> None:
        self._files[number] = _File(bytearray(contents or b""), [])
        if contents is None:
            self._name_changes.append((name, number))
        else:
            self._names[name] = number

    @staticmethod
    def _sync(file: _File) -> None:
        for change in file.changes:
            change.fate = "flushed" if change.fate == "open" else change.fate
        done = 0
        while done < len(file.changes) and file.changes[done].fate == "flushed":
            _perform(file.flushed, file.changes[done].operation)
            done += 1
        del file.changes[:done]

    def _sync_names(self) -> None:
        self._names = self._names_changed(len(self._name_changes))
        self._name_changes.clear()

    def _names_changed(self, count: int) -> dict[str, int]:
        names = dict(self._names)
        for name, number in self._name_changes[:count]:
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number
        return names

    def _names_after(self, outcome: Outcome, random: Random) -> dict[str, int]:
        count = len(self._name_changes)
        if outcome == "dropped":
            count = 0
        elif outcome == "subset":
            count = random.randint(0, count)
        return self._names_changed(count)

    def _contents(self, file: _File, outcome: Outcome, random: Random) -> bytearray:
        contents = bytearray(file.flushed)
        loose: list[Wrote | Truncated] = []
        for change in file.changes:
            if change.fate == "flushed":
                _perform(contents, change.operation)
            elif change.fate == "doomed":
                if outcome == "kept" or (outcome == "subset" and random.random() < 0.5):
                    _perform(contents, change.operation)
            elif outcome != "dropped":
                loose.append(change.operation)
        if outcome == "torn" and loose and loose[-1] is self._last:
            loose[-1] = _torn(loose[-1], random)
        elif outcome == "subset":
            loose = random.sample(loose, random.randint(0, len(loose)))
        for operation in loose:
            _perform(contents, operation)
        return contents


def _perform(contents: bytearray, operation: Wrote | Truncated) -> None:
    if isinstance(operation, Wrote):
        end = operation.offset + len(operation.data)
        if operation.offset > len(contents):
            contents.extend(bytes(operation.offset - len(contents)))
        contents[operation.offset : end] = operation.data
    elif operation.size < len(contents):
        del contents[operation.size :]
    else:
        contents.extend(bytes(operation.size - len(contents)))


def _sector_ends(write: Wrote) -> range:
    """Where in the data a sector of the file ends before the data does."""
    first = SECTOR_BYTES - write.offset % SECTOR_BYTES
    return range(first, len(write.data), SECTOR_BYTES)


def _tears(write: Wrote) -> bool:
    return len(_sector_ends(write)) > 0


def _torn(operation: Wrote | Truncated, random: Random) -> Wrote | Truncated:
    if not isinstance(operation, Wrote):
        return operation
    return Wrote(operation.file, operation.offset, operation.data[: random.choice(_sector_ends(operation))])
