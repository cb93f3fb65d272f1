"""Restoring a log into an empty node: built beside its place, proved there, then renamed into it.

    DATA/.NAMESPACE.restoring/NAMESPACE/    while it is built; a crash leaves this, and the next restore removes it
    DATA/NAMESPACE/                         whole and proved as soon as it has that name

Several logs are all proved before the first of them takes its place: damage in one leaves all others where they were.

A log that was restored may lack the end that the lost node had. So it is marked, and whoever leads it first starts a
generation: its sequences and fences begin 2^32 above everything that is known of the old ones.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from omnirelay.errors import FailedPrecondition, LogUnavailable
from omnirelay.log.base import Frame
from omnirelay.log.batches import in_batches
from omnirelay.log.files import WriterLock, make_directories, sync_directory
from omnirelay.log.sqlite.restoring import History, build_log, raise_highest_known
from omnirelay.replication.confirmed import confirmed_by_sinks
from omnirelay.replication.origins import Origin
from omnirelay.replication.proving import Restored, prove
from omnirelay.segments.errors import SegmentStoreUnusable
from omnirelay.segments.restores import check_room, reserve_generation
from omnirelay.segments.store import ObjectStore

_BATCH_EVENTS: Final = 5_000
_BATCH_BYTES: Final = 4 * 1024 * 1024

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and (events done, events in all)."""


def check_empty(data: Path, namespace: str) -> None:
    """Raises FailedPrecondition when there is anything where the log is to go."""
    place = data / namespace
    if place.is_dir() and not any(place.iterdir()):
        return
    if place.exists() or place.is_symlink():
        raise FailedPrecondition(
            f"{place} is not empty, and a log is restored into an empty place only; move it away, or say another"
            " --data",
            file=str(place),
        )


class Prepared:
    """A log that was built beside its place and proved there. It is gone again when its `prepare` ends."""

    def __init__(self, building: Path, data: Path, history: History, restored: Restored) -> None:
        self._building = building
        self._data = data
        self._history = history
        self.restored = restored

    async def reserve(self, marks: ObjectStore | None, above: int | None) -> None:
        """See to it that no fence comes twice. Raises as `restore` does."""
        history, shard = self._history, self._history.shard
        with _explained(self._data, shard):
            # Of the lost log, if their account is still in the directory.
            confirmed = await asyncio.to_thread(confirmed_by_sinks, self._data, shard)
            highest = max([history.highest_known, above or 0, *(each.sequence for each in confirmed)])
            highest = await _reserve(marks, shard, highest, above is not None)
            await asyncio.to_thread(raise_highest_known, self._building, shard, history.reason, highest)
        self.restored = msgspec.structs.replace(self.restored, fences_above=highest)

    def check_place(self) -> None:
        check_empty(self._data, self._history.shard)

    async def take_place(self) -> None:
        shard = self._history.shard
        with _explained(self._data, shard):
            await asyncio.to_thread(_put_in_place, self._building / shard, self._data / shard)


@asynccontextmanager
async def prepare(origin: Origin, data: Path, progress: Progress | None = None) -> AsyncIterator[Prepared]:
    """Build and prove the log of an origin beside its place `data/SHARD`, which is empty or not there.

    Raises FailedPrecondition, LogDamaged and its kind, LogLocked, LogUnavailable.
    """
    history = origin.history
    shard = history.shard
    check_empty(data, shard)
    with ExitStack() as stack:
        with _explained(data, shard):
            building = stack.enter_context(_beside(data, shard))
            await _build(building, origin, _said(progress, "copy"))
            restored = await prove(building, history, _said(progress, "prove"))
        yield Prepared(building, data, history, restored)


async def put_in_place(
    prepared: Sequence[Prepared],
    *,
    marks: ObjectStore | None,
    above: int | None = None,
    placed: Callable[[Restored], None] = lambda _: None,
) -> None:
    """Give every log its place. What can be refused is refused before the first has one.

    Only names are given then, one after the other; `placed` is called with each that has its name. Arguments and what
    is raised are those of `restore`.
    """
    for each in prepared:
        await each.reserve(marks, above)
    for each in prepared:
        each.check_place()
    for each in prepared:
        await each.take_place()
        placed(each.restored)


async def restore(
    origin: Origin,
    data: Path,
    *,
    marks: ObjectStore | None,
    above: int | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Put the log of an origin into `data/SHARD`, which is empty or not there. Nothing changes there if it raises.

    `marks` is where the origin lies; what is restored from there leaves a mark, so that the next one keeps its fences
    apart. `above` is the highest number that was ever given out, for who knows it: then it is fine when no mark can be
    left. Raises FailedPrecondition, LogDamaged and its kind, LogLocked, LogUnavailable.
    """
    async with prepare(origin, data, progress) as prepared:
        await put_in_place([prepared], marks=marks, above=above)
        return prepared.restored


@contextmanager
def _explained(data: Path, shard: str) -> Iterator[None]:
    """Failures of the disk as failures of the restore."""
    try:
        yield
    except OSError as error:
        raise LogUnavailable(
            f"{shard!r} cannot be restored into {data}: {error.strerror or error}", shard=shard, file=str(data)
        ) from error


def _said(progress: Progress | None, what: str) -> Callable[[int, int], None]:
    def move(done: int, total: int) -> None:
        if progress is not None:
            progress(what, done, total)

    return move


@contextmanager
def _beside(data: Path, shard: str) -> Iterator[Path]:
    """A directory to build in, which nobody takes for a node's: the log lies one level too deep for that."""
    place = data / f".{shard}.restoring"
    make_directories(place)
    lock = WriterLock(place / "lock")
    try:
        shutil.rmtree(place / shard, ignore_errors=True)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        lock.release()


def _put_in_place(built: Path, place: Path) -> None:
    try:
        # A directory is renamed over an empty one only: a node that was started meanwhile keeps what it has.
        os.rename(built, place)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            check_empty(place.parent, place.name)
        raise
    sync_directory(place.parent)


async def _reserve(marks: ObjectStore | None, shard: str, highest: int, known: bool) -> int:
    check_room(shard, highest)
    if marks is None:
        return highest
    try:
        return await reserve_generation(marks, shard, highest, time.time_ns() // 1_000_000)
    except SegmentStoreUnusable as error:
        if known:
            return highest
        raise FailedPrecondition(
            f"nothing can be written to {marks.address} ({error.message}), and a log that is restored from there twice"
            " would give out the same fences twice; let the restore write there, or say --above with the highest fence"
            " that was ever given out (0 when this is the first restore)",
            shard=shard,
        ) from error


async def _build(building: Path, origin: Origin, move: Callable[[int, int], None]) -> None:
    """Frames are fetched on the event loop and stored in a thread."""
    loop = asyncio.get_running_loop()
    batches = in_batches(origin.frames(), events_max=_BATCH_EVENTS, bytes_max=_BATCH_BYTES)
    stopped = False
    done = 0

    async def next_batch() -> list[Frame]:
        nonlocal done
        if stopped:
            raise CancelledError
        batch: list[Frame] = await anext(batches, [])
        done += sum(frame.count for frame in batch)
        move(done, max(done, origin.history.events))
        return batch

    def pulled() -> Iterator[Frame]:
        while batch := asyncio.run_coroutine_threadsafe(next_batch(), loop).result():
            yield from batch

    work = asyncio.ensure_future(asyncio.to_thread(build_log, building, origin.history, pulled()))
    try:
        await asyncio.shield(work)
    finally:
        # The thread cannot be cancelled. It ends with the next batch that it asks for, and until then it writes.
        stopped = True
        await asyncio.gather(work, return_exceptions=True)
