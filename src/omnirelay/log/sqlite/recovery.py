"""Getting a log back that may not simply be opened.

After a failed flush (`recover_suspect`): every frame is read back and copied to a new file, because the page cache may
show bytes that never reached the disk. Nothing may be missing; a frame whose outcome was unknown is kept if it checks
out.

After damage or regression (`recover_accepting_loss`), only when an operator says so: the valid prefix is kept, the
rest is lost, the old file stays aside, and the history counts as unproven, so that the next leader starts a
generation.
"""

from __future__ import annotations

import mmap
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import apsw

from omnirelay.errors import LogDamaged, LogRegressed, LogSchemaTooNew, UnknownEvent
from omnirelay.log.base import Anchor, Frame, Position, SnapshotRecord
from omnirelay.log.chain import Link, follow
from omnirelay.log.frame import decode_frame, genesis_chain
from omnirelay.log.sqlite.building import Contents, build, discard_unfinished, empty_log, replace_database
from omnirelay.log.sqlite.checks import check_end, check_identity, check_witness, highest_known
from omnirelay.log.sqlite.connection import (
    check_version,
    connect_to_examine,
    transaction,
    translate,
    translated,
)
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import read_view
from omnirelay.log.sqlite.rows import (
    HeadRow,
    position_at,
    read_anchor,
    read_frames,
    read_head,
    read_meta,
    read_snapshots,
)
from omnirelay.log.sqlite.statements import statement
from omnirelay.log.witness import Witness

_MARK_UNPROVEN: Final = statement("mark_unproven")
_LAST_OF_FRAMES: Final = statement("last_of_frames")

_SEQUENCE_MAX: Final = (1 << 63) - 1
_SEQUENCE_PLAUSIBLE: Final = 1 << 62
"""Bytes that only look like a header must not use up the numbers that are left."""

# A frame's header as it stands in the file, whatever became of the pages around it.
_HEADER: Final = re.compile(
    rb'"epoch":\d{1,19},"first":\d{1,19},"last":(\d{1,19}),"time":\d{1,19},"schema":\d{1,9},"events":\['
)

T = TypeVar("T")


def recover_suspect(paths: LogPaths, shard: str, witness: Witness | None, vfs: str | None) -> None:
    """Copy the log to a new file and put that in its place. Raises like an ordinary opening, altering nothing."""
    with translated(paths.database, shard):
        connection = connect_to_examine(paths.database, vfs=vfs)
        try:
            with transaction(connection, "DEFERRED"):
                check_version(connection, paths.database)
                log_id = check_identity(connection, paths, shard)
                view = read_view(connection, paths.database, shard)
                check_end(connection, paths, shard, log_id, view)
                check_witness(connection, paths, shard, log_id, view, witness)
                contents = Contents(
                    shard,
                    log_id,
                    _created_ms(read_meta(connection)),
                    view.head,
                    view.anchor,
                    read_snapshots(connection),
                )
                build(paths, contents, _frames_to_copy(connection, paths, contents), vfs)
        except BaseException:
            discard_unfinished(paths)
            raise
        finally:
            connection.close()
    replace_database(paths, "suspect")


def recover_accepting_loss(paths: LogPaths, shard: str, witness: Witness | None, vfs: str | None) -> str | None:
    """Make a log usable that lost something, and say what was accepted; None when nothing is wrong with it.

    Walks the whole log. Afterwards head row and frames agree, the head is marked unproven, and its `highest_known`
    covers everything the old file or the witness still tells of. The caller replaces the witness.
    """
    with translated(paths.database, shard):
        connection = connect_to_examine(paths.database, vfs=vfs)
        try:
            with transaction(connection, "DEFERRED"):
                contents, damage = _salvage(connection, paths, shard, witness)
                if damage is not None:
                    contents.head = contents.head._replace(unproven=f"accepted loss: {damage.message}")
                    build(paths, contents, _frames_to_copy(connection, paths, contents), vfs)
            if damage is None:
                return _accept_regression(connection, paths, shard, witness)
        except BaseException:
            discard_unfinished(paths)
            raise
        finally:
            connection.close()
    replace_database(paths, "damaged")
    return contents.head.unproven


def _frames_to_copy(connection: apsw.Connection, paths: LogPaths, contents: Contents) -> Iterator[Frame]:
    """What belongs into the copy. An error in reading it is one of the old file, not of the new one."""
    with translated(paths.database, contents.shard):
        yield from _checked_frames(connection, contents, contents.head.last)


def _checked_frames(connection: apsw.Connection, contents: Contents, to_last: int) -> Iterator[Frame]:
    """Stored frames from the anchor on, each checked against the one before."""
    link = Link.at_anchor(contents.anchor)
    if to_last <= link.sequence:
        return  # There is nothing to read, perhaps because nothing can be read.
    for frame in read_frames(connection, 0, to_last):
        link = follow(link, frame, shard=contents.shard, log_id=contents.log_id)
        yield frame


def _accept_regression(connection: apsw.Connection, paths: LogPaths, shard: str, witness: Witness | None) -> str | None:
    """The log is whole but not what its witness saw: keep it as it is and mark it."""
    connection.execute("PRAGMA synchronous = FULL")
    with transaction(connection):
        log_id = check_identity(connection, paths, shard)
        view = read_view(connection, paths.database, shard)
        try:
            check_witness(connection, paths, shard, log_id, view, witness)
        except LogRegressed as error:
            reason = f"accepted loss: {error.message}"
            connection.execute(_MARK_UNPROVEN, (reason, highest_known(view, witness)))
            return reason
    return None


class _Damages:
    """Reads part after part of a database of which any may be gone, and remembers the first damage."""

    def __init__(self, paths: LogPaths, shard: str) -> None:
        self.first: LogDamaged | None = None
        self._path = paths.database
        self._shard = shard

    def attempt(self, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except LogDamaged as error:
            damage = error
        except apsw.IOError as error:
            # A sector that cannot be read is damage too: the operator said to go on with what there is.
            damage = LogDamaged(f"{self._path} cannot be read: {error}", shard=self._shard, file=str(self._path))
        except apsw.Error as error:
            meaning = translate(error, self._path, self._shard)
            if not isinstance(meaning, LogDamaged):
                raise
            damage = meaning
        self.first = self.first or damage
        return otherwise


def _salvage(
    connection: apsw.Connection, paths: LogPaths, shard: str, witness: Witness | None
) -> tuple[Contents, LogDamaged | None]:
    """What the database still holds, with a head that ends where the valid prefix ends, and the first damage.

    What cannot be read is taken from elsewhere where that is possible: the log id from the witness, the anchor from
    the genesis. If that was wrong, no frame fits onto it and the prefix is empty.
    """
    damages = _Damages(paths, shard)
    attempt = damages.attempt
    attempt(lambda: check_version(connection, paths.database), 0)
    meta: dict[str, str] = attempt(lambda: read_meta(connection), {})
    if meta.get("shard", shard) != shard:
        check_identity(connection, paths, shard)
    head = attempt(lambda: read_head(connection), None)
    anchor = attempt(lambda: read_anchor(connection), None)
    contents = empty_log(shard)
    contents.created_ms = _created_ms(meta)
    contents.log_id = meta.get("log_id") or (witness.log_id if witness is not None else contents.log_id)
    contents.anchor = anchor or Anchor(0, genesis_chain(shard, contents.log_id), 0, 0)

    end = _End(Link.at_anchor(contents.anchor), head.epoch if head is not None else 0, contents.anchor.time_ms)
    attempt(lambda: end.follow(connection, contents), None)
    if damages.first is None:
        view = attempt(lambda: read_view(connection, paths.database, shard), None)
        if view is not None:
            attempt(lambda: check_end(connection, paths, shard, contents.log_id, view), None)

    link = end.link
    if damages.first is not None:
        known = _highest_known(connection, paths, damages, head, contents.anchor, witness)
        contents.head = HeadRow(end.epoch, link.generation, link.sequence, link.chain, end.time_ms, None, known)
        contents.snapshots = attempt(lambda: _snapshots_within(connection, contents.anchor, link), [])
    return contents, damages.first


def _snapshots_within(connection: apsw.Connection, anchor: Anchor, end: Link) -> list[SnapshotRecord]:
    """Records of snapshots that stand on the valid prefix."""
    return [
        record
        for record in read_snapshots(connection)
        if record.sequence <= end.sequence
        and position_at(connection, record.sequence, anchor) == Position(record.sequence, record.chain)
    ]


class _End:
    """The end of the valid prefix, as far as a walk has come."""

    def __init__(self, link: Link, epoch: int, time_ms: int) -> None:
        self.link = link
        self.epoch = epoch
        self.time_ms = time_ms

    def follow(self, connection: apsw.Connection, contents: Contents) -> None:
        """Walk on until a frame is bad; raises LogDamaged or an error of SQLite there."""
        for frame in _checked_frames(connection, contents, _SEQUENCE_MAX):
            # Events of a newer version are whole, only unknown here.
            with suppress(UnknownEvent, LogSchemaTooNew):
                decode_frame(frame, shard=contents.shard, log_id=contents.log_id)
            self.link = Link(frame.last, frame.chain, frame.generation)
            self.epoch = max(self.epoch, frame.epoch)
            self.time_ms = frame.time_ms


def _highest_known(
    connection: apsw.Connection,
    paths: LogPaths,
    damages: _Damages,
    head: HeadRow | None,
    anchor: Anchor,
    witness: Witness | None,
) -> int:
    """The highest sequence anything still tells of; a fence that was ever granted must not be granted again."""
    last = damages.attempt(lambda: connection.execute(_LAST_OF_FRAMES).get, None)
    return max(
        head.last if head is not None else 0,
        head.highest_known if head is not None else 0,
        anchor.sequence,
        anchor.highest_fence,
        witness.sequence if witness is not None else 0,
        last if isinstance(last, int) else 0,
        _highest_in_file(paths.database),
        _highest_in_file(paths.wal),
        _highest_in_file(paths.redo),
    )


def _highest_in_file(path: Path) -> int:
    """Search the raw bytes for headers of frames: they are readable long after the tables around them are not."""
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = (int(match[1]) for match in _HEADER.finditer(content))
        return max((last for last in found if last <= _SEQUENCE_PLAUSIBLE), default=0)


def _created_ms(meta: dict[str, str]) -> int:
    created = meta.get("created_ms", "")
    return int(created) if created.isdecimal() else time.time_ns() // 1_000_000
