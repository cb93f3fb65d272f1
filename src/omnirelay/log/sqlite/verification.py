"""Walking a whole log: every frame hashed, linked and decoded, then head, snapshot records and witness compared."""

from __future__ import annotations

import apsw

from omnirelay.errors import LogDamaged
from omnirelay.log.base import Anchor, Position, VerifyReport
from omnirelay.log.frame import decode_frame
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
