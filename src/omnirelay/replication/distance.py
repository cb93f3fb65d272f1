"""`Distance`: how far a follower is behind its log, counted along with every frame and every delivery."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omnirelay.errors import LogTrimmed
from omnirelay.replication.backlog import Backlog
from omnirelay.replication.cursor import LogCursor
from omnirelay.replication.sources import Happened, LogSource


class Distance:
    """What is behind the checkpoint: events, bytes, and the age of the oldest. Means something once it was measured."""

    def __init__(self, shard: LogSource, cursor: LogCursor) -> None:
        self._shard = shard
        self._cursor = cursor
        self._backlog = Backlog()
        self._counted_to = shard.last_sequence
        """The last event that the backlog knows of."""
        self._log_bytes = shard.log.statistics().bytes
        self._since_ms = shard.now_ms()
        self.is_measured = False

    def grow(self, events: Sequence[Happened], checkpoint: int) -> None:
        """A frame became durable."""
        # It can be read, and even delivered, before this hears of it.
        known = max(self._counted_to, checkpoint)
        if events[0].sequence_number <= known:
            events = [event for event in events if event.sequence_number > known]
        written, before = self._shard.log.statistics().bytes, self._log_bytes
        self._log_bytes = written
        if events:
            self._backlog.add(len(events), written - before, events[0].timestamp)
            self._counted_to = events[-1].sequence_number

    def take(self, events: int, last_ms: int) -> None:
        """So many were delivered, the last of which happened at `last_ms`."""
        self._backlog.take(events, last_ms)

    def clear(self) -> None:
        """Everything is delivered."""
        self._backlog.clear()

    def forget(self) -> None:
        """The checkpoint is another one: what was counted no longer means anything."""
        self.is_measured = False

    async def measure(self, checkpoint: int, still: Callable[[], bool]) -> bool:
        """Count what is behind the checkpoint. False, and nothing is known, when it is not `still` that one then."""
        last, self._counted_to = self._shard.last_sequence, self._shard.last_sequence
        self._log_bytes = self._shard.log.statistics().bytes
        self._backlog.clear()
        size = await self._shard.log.size_after(checkpoint, last)
        try:
            first = await self._cursor.read(checkpoint, 1, 1) if size.events else []
            since_ms = first[0].timestamp if first else self._shard.now_ms()
        except LogTrimmed:
            since_ms = (await self._shard.log.anchor()).time_ms
        if not still():
            return False
        self._backlog.add_older(size.events, size.bytes, since_ms)
        self.is_measured = True
        return True

    def events(self, checkpoint: int) -> int:
        behind = max(0, self._shard.last_sequence - checkpoint)
        # Not the difference: numbers jump where a generation starts.
        return self._backlog.events if behind and self.is_measured else behind

    def bytes(self, checkpoint: int) -> int | None:
        """None when that is not known yet."""
        return self._known(self._backlog.bytes, checkpoint)

    def age_ms(self, checkpoint: int) -> int | None:
        """Of the oldest event; None when that is not known yet."""
        oldest_ms = self._backlog.oldest_ms
        return self._known(0 if oldest_ms is None else max(0, self._shard.now_ms() - oldest_ms), checkpoint)

    def _known(self, measured: int, checkpoint: int) -> int | None:
        if self.events(checkpoint) == 0:
            return 0
        return measured if self.is_measured else None

    @property
    def late_ms(self) -> int:
        """Age of the oldest, but nobody is late for what happened before this node began to deliver."""
        oldest_ms = self._backlog.oldest_ms
        return 0 if oldest_ms is None else max(0, self._shard.now_ms() - max(oldest_ms, self._since_ms))

    @property
    def counted_bytes(self) -> int:
        return self._backlog.bytes

    @property
    def counted(self) -> int:
        """Events behind, as far as they were counted."""
        return self._backlog.events
