"""`Keeper`: upkeep beside a writer, one thing at a time, in a task of its own. What fails is tried again later."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from omnirelay.errors import OmniRelayError
from omnirelay.segments.archive import Archive
from omnirelay.segments.manifest import Manifest
from omnirelay.segments.upkeep import COMPACT_AT, GRACE_MS, compact, expire, purge, small_row, sweep

_log = logging.getLogger("omnirelay.segments")

SEGMENT_BYTES: Final = 64 * 1024 * 1024
_LOOK_EVERY_MS: Final = 60_000
_SWEEP_EVERY_MS: Final = 6 * 3_600_000
_CLOSE_S: Final = 1.0


class UpkeepSettings(msgspec.Struct, frozen=True, kw_only=True):
    segment_bytes: int = SEGMENT_BYTES
    """Small segments are merged up to so many bytes of frames."""
    compact_at: int = COMPACT_AT
    """So many small neighbours are merged; 0: none ever."""
    retention_ms: int = 0
    """Segments whose last event is older are dropped; 0: never."""
    grace_ms: int = GRACE_MS
    """How long a dropped object stays for those who are reading it."""


class Keeper:
    """Tell it of every manifest with `look`; it decides what there is to do. Stop it with `close`."""

    def __init__(self, archive: Archive, settings: UpkeepSettings) -> None:
        self._archive = archive
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._looked_ms = 0
        self._swept_ms = 0

    def look(self, manifest: Manifest) -> None:
        """Begin what is due, unless something is under way."""
        if self._task is not None and not self._task.done():
            return
        now = self._archive.clock()
        looking = now - self._looked_ms >= _LOOK_EVERY_MS
        if looking or self._compacting(manifest):
            self._task = asyncio.create_task(self._keep(looking))

    def _compacting(self, manifest: Manifest) -> bool:
        settings = self._settings
        return settings.compact_at > 0 and bool(small_row(manifest.recent, settings.segment_bytes, settings.compact_at))

    async def _keep(self, looking: bool) -> None:
        try:
            await self.run(looking)
        except OmniRelayError as error:
            _log.warning("segments_not_kept", extra={"shard": self._archive.shard, "reason": error.message})
        except Exception:
            _log.exception("segments_not_kept", extra={"shard": self._archive.shard})

    async def run(self, looking: bool = True) -> None:
        """Do all that is due now; with `looking` also what has to be looked for."""
        settings, now = self._settings, self._archive.clock()
        if settings.compact_at:
            while not self._closing and await compact(
                self._archive, segment_bytes=settings.segment_bytes, at_least=settings.compact_at
            ):
                pass
        if not looking or self._closing:
            return
        self._looked_ms = now
        if settings.retention_ms:
            while not self._closing and await expire(self._archive, retention_ms=settings.retention_ms):
                pass
        await purge(self._archive, grace_ms=settings.grace_ms)
        if now - self._swept_ms >= _SWEEP_EVERY_MS and not self._closing:
            self._swept_ms = now
            await sweep(self._archive, grace_ms=settings.grace_ms)

    async def wait_idle(self) -> None:
        """Return when nothing is under way."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Stop soon; what was half done then is done again by the next one. Safe to call twice."""
        self._closing = True
        task, self._task = self._task, None
        if task is not None:
            # A request that is given up half way leaves its library with nobody to tell.
            await asyncio.wait((task,), timeout=_CLOSE_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
