"""Where a log can be restored from: segments, a backup, or a backup and the segments behind it.

segments from the first event on     ──────────────────▶ log
a backup                             ───────▶ log
a backup, then segments              ───────┬──────────▶ log
                                     backup │ what the segments have behind it
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from omnirelay.log.base import Frame
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.restoring import History, read_history, without_damaged_snapshots


class Origin(Protocol):
    """A history and its frames. The frames are those of the history, however the place has grown since."""

    @property
    def history(self) -> History: ...

    def frames(self) -> AsyncIterator[Frame]: ...


class BackupOrigin:
    """A log as it lies in a directory, `data/namespace`."""

    def __init__(self, data: Path, namespace: str) -> None:
        """Blocks: it reads the snapshots. Raises LogDamaged, LogSchemaTooNew, LogUnavailable."""
        self._data = data
        self.history = without_damaged_snapshots(read_history(data, namespace))

    async def frames(self) -> AsyncIterator[Frame]:
        history = self.history
        if history.end.sequence == history.anchor.sequence:
            return
        log = SqliteLog.open(self._data, history.shard, read_only=True)
        try:
            async for frame in log.read(history.anchor.sequence + 1, history.end.sequence):
                yield frame
        finally:
            await log.close()
