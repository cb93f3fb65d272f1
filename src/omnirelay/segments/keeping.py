"""`Keeper`: upkeep beside a writer, one thing at a time, in a task of its own. What fails is tried again later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Tell it of every manifest with `look`; it decides what there is to do. With `start` it also looks by itself, at
    once and from time to time: time goes by where nothing is written, too. Stop it with `close`.
    """

    def __init__(self, archive: Archive, settings: UpkeepSettings) -> None:
        self._archive = archive
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._looked_ms = 0
        self._swept_ms = 0

    def start(self) -> None:
        self._watch = asyncio.create_task(self._look_often())

    async def _look_often(self) -> None:
        while not self._ending.is_set():
            due_ms = min(self._looked_ms + _LOOK_EVERY_MS - self._archive.clock(), _LOOK_EVERY_MS)
            if due_ms <= 0:
                with self._logged():
                    manifest = await self._archive.newest()
                    if manifest is not None and not self._ending.is_set():
                        self.look(manifest)
                due_ms = _LOOK_EVERY_MS
            with suppress(TimeoutError):
                async with asyncio.timeout(due_ms / 1000):
                    await self._ending.wait()

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
        with self._logged():
            await self.run(looking)

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """What fails is tried again with the next look."""
        try:
            yield
        except OmniRelayError as error:
            _log.warning("segments_not_kept", extra={"shard": self._archive.shard, "reason": error.message})
        except Exception:
            _log.exception("segments_not_kept", extra={"shard": self._archive.shard})

    async def run(self, looking: bool = True) -> None:
        """Do all that is due now; with `looking` also what has to be looked for."""
        settings, now = self._settings, self._archive.clock()
        if settings.compact_at:
            while not self._ending.is_set() and await compact(
                self._archive, segment_bytes=settings.segment_bytes, at_least=settings.compact_at
            ):
                pass
        if not looking or self._ending.is_set():
            return
        self._looked_ms = now
        if settings.retention_ms:
            while not self._ending.is_set() and await expire(self._archive, retention_ms=settings.retention_ms):
                pass
        await purge(self._archive, grace_ms=settings.grace_ms)
        if now - self._swept_ms >= _SWEEP_EVERY_MS and not self._ending.is_set():
            self._swept_ms = now
            await sweep(self._archive, grace_ms=settings.grace_ms)

    async def wait_idle(self) -> None:
        """Return when nothing is under way."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Stop soon; what was half done then is done again by the next one. Safe to call twice."""
        self._ending.set()
        tasks = [task for task in (self._watch, self._task) if task is not None]
        self._watch = self._task = None
        if tasks:
            # A request that is given up half way leaves its library with nobody to tell.
            await asyncio.wait(tasks, timeout=_CLOSE_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
