"""Walking a whole log: every frame hashed, linked and decoded, then head, snapshot records and witness compared.

A log that was trimmed says nothing without a snapshot: there must be one whose files are what was written.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import apsw

from omnirelay.errors import LogDamaged
from omnirelay.log.base import Anchor, Position, SnapshotRecord, VerifyReport
from omnirelay.log.frame import decode_frame
from omnirelay.log.snapshots import read_recorded
from omnirelay.log.sqlite.checks import check_end, check_witness
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import FrameReader, read_view
from omnirelay.log.sqlite.rows import position_at, read_snapshots
from omnirelay.log.witness import read_witness


class Verification:
    """Takes batch after batch from a reader; `finish` makes the report."""

    def __init__(self, shard: str, log_id: str, anchor: Anchor) -> None:
        self.frames = 0
        self._shard = shard
        self._log_id = log_id
        self._anchor = anchor
        self._position = Position(anchor.sequence, anchor.chain)
        self._events = 0
        self._bytes = 0
        self._needed: list[SnapshotRecord] = []
        """The snapshots that recovery has to choose from, newest first; none when it can do without."""

    def take(self, reader: FrameReader) -> bool:
        """Check one more batch; False when there is none. Raises LogDamaged, UnknownEvent, LogSchemaTooNew."""
        batch = reader.batch()
        for frame in batch:
            self._events += len(decode_frame(frame, shard=self._shard, log_id=self._log_id))
            self._bytes += len(frame.data)
            self._position = Position(frame.last, frame.chain)
        self.frames += len(batch)
        return bool(batch)

    def finish(self, connection: apsw.Connection, paths: LogPaths) -> VerifyReport:
        """Compare what lies around the frames. Runs in a read transaction that has not read anything yet."""
        # Before the log: a witness is never ahead of a log that is read after it.
        witness = read_witness(paths.witness)
        view = read_view(connection, paths.database, self._shard)
        check_end(connection, paths, self._shard, self._log_id, view)
        check_witness(connection, paths, self._shard, self._log_id, view, witness)
        snapshots = read_snapshots(connection)
        for record in snapshots:
            if position_at(connection, record.sequence, view.anchor) != Position(record.sequence, record.chain):
                raise LogDamaged(
                    f"the snapshot record at {record.sequence} of {self._shard!r} has another chain than"
                    " the log; remove that snapshot",
                    shard=self._shard,
                    file=str(paths.database),
                    sequence=record.sequence,
                )
        if view.anchor.sequence > 0:
            # A record without files is that of a log whose events stand for themselves.
            self._needed = [record for record in snapshots if record.path]
        return VerifyReport(
            self._anchor,
            self._position,
            self.frames,
            self._events,
            self._bytes,
            view.head.generation,
            len(snapshots),
            witness.sequence if witness is not None else None,
        )

    def check_snapshot_files(self, directory: Path) -> None:
        """Raises LogDamaged, naming the file, when frames are gone and no snapshot that stands for them can be read.

        After `finish`, and without a transaction: this may take a while.
        """
        damage: LogDamaged | None = None
        for record in self._needed:
            try:
                deque(read_recorded(directory, record)[1], maxlen=0)
            except LogDamaged as error:
                damage = damage or error
            else:
                return
        if damage is not None:
            raise LogDamaged(
                f"the log of {self._shard!r} begins behind event {self._anchor.sequence}, and no snapshot says what the"
                f" state was by then: {damage.message}",
                shard=self._shard,
                file=damage.details["file"],
            )
