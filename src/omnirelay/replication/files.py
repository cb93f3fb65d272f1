"""Events in files of lines, one JSON object each. A file is named after its first event and rolled by size."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from omnirelay.log.files import make_directories, sync_directory
from omnirelay.replication.commits import Commits
from omnirelay.replication.courtesy import FLUSHED_EVENTS
from omnirelay.replication.events import ReplicatedEvent, json_of
from omnirelay.replication.owners import DirectoryOwner, Newest, Owner, newest_of
from omnirelay.replication.settings import ROTATE_BYTES
from omnirelay.replication.sinks import SinkUnusable, TargetChanged, not_writable
from omnirelay.replication.threads import OneThread
from omnirelay.replication.workshop import IN_THREAD, Maker

_OWN_NAME: Final = re.compile(r"[0-9]{20}\.jsonl")


def own_files(directory: Path) -> list[Path]:
    """The files with names as the sink gives them, in the order of their events. Others are somebody else's."""
    return sorted(path for path in directory.iterdir() if _OWN_NAME.fullmatch(path.name))


def _last_lines(path: Path) -> tuple[list[bytes], int]:
    """Some whole lines from the end of a file, and how many bytes of a torn one are behind them."""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        tail = b""
        while at > 0 and tail.count(b"\n") < 2:
            step = min(64 * 1024, at)
            at -= step
            file.seek(at)
            tail = file.read(step) + tail
    whole = tail.rfind(b"\n") + 1
    return tail[:whole].splitlines(), len(tail) - whole


def _sequence_of(path: Path, lines: list[bytes]) -> int | None:
    """That of the last line. Raises SinkUnusable when it has none."""
    try:
        return _read_sequence(lines[-1]).sequence_number if lines else None
    except msgspec.DecodeError:
        raise SinkUnusable(f"the last line of {path} is not an event") from None


class _Sequence(msgspec.Struct, rename="camel"):
    sequence_number: int


_read_sequence = msgspec.json.Decoder(_Sequence).decode


def whole_event(event: ReplicatedEvent) -> bytes | None:
    return event.json()


def lines_of(
    events: Sequence[ReplicatedEvent], line_of: Callable[[ReplicatedEvent], bytes | None]
) -> list[tuple[ReplicatedEvent, bytes]]:
    """The events that have a line, with it. Whole ones are made many at a time."""
    if line_of is whole_event:
        return list(zip(events, json_of(events), strict=True))
    return [(event, line) for event in events if (line := line_of(event)) is not None]


class FileSink:
    """Appends to `{directory}/{shard}/{first sequence}.jsonl`; flushed and synced before it counts.

    The files themselves say how far they reach. A line that a crash cut off is removed when the sink opens, and what a
    failed write left behind before the next one. What stands under the name of the file is looked at with every
    delivery: who goes on in a file that was removed or replaced would confirm what nobody can read.
    """

    rebuilds_state = False
    prepares_ahead = 2
    events_beside_callers = FLUSHED_EVENTS
    maker: Maker = IN_THREAD

    newest: Newest | None = None
    """The last event that the files had when they were opened, where they keep all of them."""

    def __init__(
        self,
        directory: Path,
        *,
        rotate_bytes: int = ROTATE_BYTES,
        line_of: Callable[[ReplicatedEvent], bytes | None] = whole_event,
        keeps_all: bool = True,
    ) -> None:
        """`line_of` makes the line of an event, None for one that has none; then `keeps_all` must be false, because the
        files no longer say how far they reach. A line has the field `sequenceNumber`.
        """
        self._root = directory
        self._directory = directory
        self._rotate_bytes = rotate_bytes
        self._line_of = line_of
        self._keeps_all = keeps_all
        self._thread = OneThread("omnirelay-file-sink")
        self._owner = DirectoryOwner()
        self._log_id: str | None = None
        self._shard = ""
        self._gaps: tuple[tuple[int, int], ...] = ()
        self._file: int | None = None
        self._path = directory
        self._size = 0
        self._half_written = False
        self._is_open = False
        self._last = 0
        self._newest_line = 0
        """The last event whose line this object has written or found, over all that it was opened on."""

    @property
    def takes_commits(self) -> bool:
        return self._line_of is whole_event

    def of_log(self, log_id: str) -> None:
        """Which log it follows. A directory that holds another one's events is refused."""
        self._log_id = log_id

    async def open(self, shard: str) -> int | None:
        return await self._thread.run(lambda: self._open(shard))

    def _open(self, shard: str) -> int | None:
        self._let_go()
        self._shard, self._directory, self.newest = shard, self._root / shard, None
        try:
            make_directories(self._directory)
            self._owner.take(self._directory, self._log_id)
            if own_files(self._directory):  # Nobody's events are in an empty one, whoever had it before.
                self._owner.check(self._log_id)
            last = self._find_end()
            self._gaps = self._known_gaps()
        except OSError as error:
            raise not_writable(self._directory, error) from None
        self._last, self._is_open = last, True
        # Without an account of its own, a target that lost lines since they were written still has to get them again.
        lost, self._newest_line = last < self._newest_line, last
        return last if self._keeps_all or lost else None

    def _find_end(self) -> int:
        """Open the last file that has a line; the sequence of its last one, 0 when there is none."""
        for path in reversed(own_files(self._directory)):
            last = self._repaired(path)
            if last is not None:
                self._take(path, os.O_WRONLY | os.O_APPEND)
                return last
            path.unlink()  # A crash came before its first line was whole.
        return 0

    def _known_gaps(self) -> tuple[tuple[int, int], ...]:
        """Where files do not follow each other. Raises SinkUnusable when one is missing, which nothing would fill."""
        files = own_files(self._directory) if self._keeps_all and self._log_id is not None else []
        # Those that the sink did not leave itself; a directory that nobody owned yet is taken as it is.
        left = self._owner.found.gaps if files and self._owner.found is not None else None
        gaps = []
        for before, behind in pairwise(files):
            gap = (_sequence_of(before, _last_lines(before)[0]) or 0, int(behind.stem))
            if gap[1] == gap[0] + 1:
                continue
            if left is not None and gap not in left:
                raise SinkUnusable(
                    f"{self._directory} lacks events: {before.name} ends with {gap[0]}, and the next file begins with"
                    f" {gap[1]}; put back what is missing, or empty the directory to get all of it again, then resume"
                )
            gaps.append(gap)
        return tuple(gaps)

    def _repaired(self, path: Path) -> int | None:
        """Cut off a torn last line; the last sequence of the file, None when it has no whole line."""
        lines, torn = _last_lines(path)
        if torn:
            with path.open("rb+") as file:
                file.truncate(path.stat().st_size - torn)
                os.fsync(file.fileno())
        last = _sequence_of(path, lines)
        if last is not None and self._keeps_all:
            self.newest = newest_of(lines[-1])
        return last

    async def prepare(self, commits: Commits) -> None:
        """Make the text of what comes next while the disk is busy with what comes before it."""
        commits.made = await self.maker.make("lines", commits)

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        await self._thread.run(lambda: self._apply(events))

    def _apply(self, events: Sequence[ReplicatedEvent]) -> None:
        if not self._is_open:
            raise self._changed("has to be opened again first")
        # What is new is found out here and not before the thread: an earlier call that took too long may have written.
        if isinstance(events, Commits) and self.takes_commits:
            self._apply_commits(events.behind(self._last))
            return
        new = [event for event in events if event.sequence > self._last]
        if not new:
            return
        lines = lines_of(new, self._line_of)
        if lines:
            self._append([b"".join([line + b"\n" for _, line in lines])], lines[0][0].sequence)
            self._newest_line = lines[-1][0].sequence
        self._last = new[-1].sequence

    def _apply_commits(self, new: Commits) -> None:
        if new:
            self._append(new.pieces(), new.first)
            self._last = self._newest_line = new.last

    def _append(self, pieces: Sequence[bytes], first: int) -> None:
        rolls = self._file is None or self._size >= self._rotate_bytes
        gap = (self._last, first)
        if rolls and self._last and first != self._last + 1 and gap not in self._gaps:
            self._gaps += (gap,)
        if self._log_id is not None:
            self._owner.write(Owner(self._shard, self._log_id, self._gaps if self._keeps_all else ()))
        file = self._roll(first) if rolls or self._file is None else self._file
        self._check_place(file)
        self._half_written = True
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(file, view) :]
        os.fsync(file)
        self._size += sum(map(len, pieces))
        self._half_written = False
        self._check_place(file)

    def _check_place(self, file: int) -> None:
        """What stands under the name must be the open file, with what was written to it and nothing else."""
        held = os.fstat(file)
        if held.st_size > self._size and self._half_written:
            # Half a batch that a failed write left behind must not stay: the whole one is coming again.
            os.ftruncate(file, self._size)
            held = os.fstat(file)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            raise self._changed("was removed or moved") from None
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise self._changed("was replaced by another file")
        if held.st_size != self._size:
            raise self._changed(f"has {held.st_size} bytes where {self._size} were written: somebody else changed it")

    def _changed(self, what: str) -> TargetChanged:
        self._let_go()
        self._is_open = False
        return TargetChanged(f"{self._path} {what}", file=str(self._path))

    def _roll(self, first: int) -> int:
        self._close_file()
        path = self._directory / f"{first:020d}.jsonl"
        try:
            file = self._take(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
            sync_directory(self._directory)  # The name of a new file has to survive a crash, too.
        except (FileNotFoundError, FileExistsError) as error:
            self._path = path
            raise self._changed(f"cannot be begun: {error.strerror}") from None
        return file

    def _take(self, path: Path, flags: int) -> int:
        self._file = file = os.open(path, flags, 0o644)
        self._path, self._size, self._half_written = path, os.fstat(file).st_size, False
        return file

    def _let_go(self) -> None:
        self._close_file()
        self._owner.release()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    async def close(self) -> None:
        await self._thread.run(self._let_go)
        self._thread.close()
