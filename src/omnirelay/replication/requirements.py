"""`Requirement`: what a shard owes to a required sink, and what becomes of it when the sink falls too far behind.

                    within its limits
                            │ more events behind than lag_events_max, or for longer than lag_max
                            ▼
    intake closed (cause replication.lag:SINK) ──behind by less than half of every limit──▶ open

                            │ more bytes of log unconfirmed than max_retained_bytes
                            ▼
    on_retention_exceeded = "close_intake":      intake closed (cause replication.retention:SINK), opened at half
    on_retention_exceeded = "drop_requirement":  the sink counts as optional until it is down to half: the log may be
                                                 trimmed past it, and it closes nothing

Nothing here is stored: after a restart it is all found out anew, from the checkpoint and the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from omnirelay.errors import OmniRelayError
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sources import LogSource

_log = logging.getLogger("omnirelay.replication")

LOOK_S: Final = 0.5
"""How often is looked although nothing was delivered and nothing happened: time alone makes a sink late."""

OPENED: Final = "the sink has caught up"


class Behind(msgspec.Struct, frozen=True):
    """How far a sink is behind."""

    events: int
    bytes: int
    ms: int


class Requirement:
    """Of one sink and one shard. Start with `start`, end with `stop`; tell it with `look` that something moved."""

    def __init__(
        self, sink: str, shard: LogSource, settings: FollowSettings, behind: Callable[[], Behind | None]
    ) -> None:
        """`behind` says how far the sink is behind; None while that is not known yet."""
        self.dropped = False
        """The sink holds back more of the log than it may: it is treated as an optional one."""
        self._sink = sink
        self._shard = shard
        self._settings = settings
        self._behind = behind
        self._lag = f"replication.lag:{sink}"
        self._retention = f"replication.retention:{sink}"
        self._wanted: dict[str, str] = {}
        """The causes there are now, each with its reason."""
        self._told: set[str] = set()
        """The causes that the shard knows of."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def closes_intake(self) -> str | None:
        """Why this sink keeps intake closed; None when it does not."""
        return "; ".join(self._wanted.values()) or None

    @property
    def holds_log(self) -> bool:
        """Whether the log has to keep what the sink has not confirmed."""
        return not self.dropped

    @property
    def presses(self) -> bool:
        """Whether the sink is beyond half of a limit, which is also where it would not open intake again."""
        behind, settings = self._behind(), self._settings
        if behind is None:
            return False
        limits = (
            (settings.lag_events_max, behind.events),
            (settings.lag_max_ms, behind.ms),
            (settings.max_retained_bytes, behind.bytes),
        )
        return any(most and held > most // 2 for most, held in limits)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no longer. What it closed stays so until somebody else leads the shard. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- looking -------------------------------------------------------------------------------

    def look(self) -> None:
        """Find out what is the case now. Only compares a few numbers: it is called with every frame."""
        behind = self._behind()
        if behind is None:
            return
        self._look_at_bytes(behind)
        self._look_at_lag(behind)
        if self._told != self._wanted.keys():
            self._changed.set()

    def _look_at_bytes(self, behind: Behind) -> None:
        most = self._settings.max_retained_bytes
        if not most:
            return
        closing = self._settings.on_retention_exceeded == "close_intake"
        exceeded = self._retention in self._wanted if closing else self.dropped
        if behind.bytes > most and not exceeded:
            words = f"it held back {behind.bytes:,} bytes of the log ({most:,} are allowed)"
            if closing:
                self._wanted[self._retention] = self._reason(words, self._retention_words(most))
            else:
                self.dropped = True
                _log.error("sink_requirement_dropped", extra={**self._labels(), "reason": words})
        elif behind.bytes <= most // 2 and exceeded:
            self._wanted.pop(self._retention, None)
            if self.dropped:
                self.dropped = False
                _log.warning("sink_requirement_restored", extra=self._labels())

    def _look_at_lag(self, behind: Behind) -> None:
        events_max, ms_max = self._settings.lag_events_max, self._settings.lag_max_ms
        late = [
            words
            for too_much, words in (
                (events_max and behind.events > events_max, f"{behind.events:,} events ({events_max:,} are allowed)"),
                (ms_max and behind.ms > ms_max, f"{behind.ms / 1000:,.0f} s ({ms_max / 1000:,g} s are allowed)"),
            )
            if too_much
        ]
        if self.dropped:
            self._wanted.pop(self._lag, None)
        elif late and self._lag not in self._wanted:
            words = f"it was behind by {' and by '.join(late)}"
            self._wanted[self._lag] = self._reason(words, "half of that is left")
        elif (not events_max or behind.events <= events_max // 2) and (not ms_max or behind.ms <= ms_max // 2):
            self._wanted.pop(self._lag, None)

    def _reason(self, words: str, until: str) -> str:
        """In the past: it is written down once, and read for as long as intake is closed."""
        return (
            f"required sink {self._sink}: {words} when this closed; intake opens again when {until};"
            " `omnirelay replication status` says how it is now"
        )

    @staticmethod
    def _retention_words(most: int) -> str:
        return f"{most // 2:,} are left"

    # -- telling -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            self.look()
            try:
                await self._tell()
            except OmniRelayError as error:
                # The shard takes nothing for now (its disk is full, say). What it was not told it is told later.
                _log.warning("sink_requirement_not_told", extra={**self._labels(), "reason": error.message})

    async def _tell(self) -> None:
        for cause in self._told - self._wanted.keys():
            await self._shard.open_intake(cause, OPENED)
            self._told.discard(cause)
            _log.warning("sink_opened_intake", extra={**self._labels(), "cause": cause})
        for cause, reason in list(self._wanted.items()):
            if cause not in self._told:
                await self._shard.close_intake(cause, reason)
                self._told.add(cause)
                _log.error("sink_closed_intake", extra={**self._labels(), "cause": cause, "reason": reason})

    def _labels(self) -> dict[str, str]:
        return {"sink": self._sink, "shard": self._shard.log.shard}
