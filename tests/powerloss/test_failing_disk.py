"""Every single write and every single flush of a script fails, each in a run of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw
import pytest

from omnirelay.core.payload import NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.errors import LogOutcomeUnknown
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite import writer as sqlite_writer
from omnirelay.log.sqlite.redo_file import RedoPlan
from omnirelay.testing.clock import FakeClock, settle
from omnirelay.testing.disk import RecordingVFS
from tests.patience import PATIENCE_S
from tests.powerloss.conftest import LONG, REDO
from tests.powerloss.failing import FailingDisk, Story
from tests.powerloss.recording import NAMESPACE, PromiseBroken

COMMANDS = 40
SEED = 7

Fault = Callable[..., None]


def refused_once(vfs: RecordingVFS, at: int) -> None:
    vfs.fail_write(at, part=0.5 if at % 2 else 0.0)


def full_for_a_while(vfs: RecordingVFS, at: int) -> None:
    vfs.fail_write(at, code=apsw.SQLITE_FULL, lasting=True, part=0.3 if at % 2 else 0.0)


def full_once(vfs: RecordingVFS, at: int) -> None:
    vfs.fail_write(at, code=apsw.SQLITE_FULL)


WRITE_FAULTS: dict[str, Fault] = {
    "refused-once": refused_once,
    "full-for-a-while": full_for_a_while,
    "full-once": full_once,
}


async def run(
    directory: Path, fault: Callable[[RecordingVFS], None], patience: int = 0, redo: RedoPlan | None = REDO
) -> tuple[Story, int]:
    """The story of one run, and how many operations failed in it."""
    shutil.rmtree(directory, ignore_errors=True)
    with RecordingVFS() as vfs:
        fault(vfs)
        story = await FailingDisk(directory / "log", vfs, SEED, patience=patience, redo=redo).run(COMMANDS)
        return story, vfs.failures


# Short form: the kinds of failure take turns, so that every write fails in one way. Long form: in every way.
# With a redo file fewer frames meet a refusal: rows that cannot be written at once are written a moment later.
@pytest.mark.parametrize(("redo", "enough"), [(None, 2), (REDO, 12)], ids=["no redo file", "redo file"])
@pytest.mark.parametrize("turn", range(3), ids=list(WRITE_FAULTS))
@pytest.mark.timeout(1_800)
async def test_a_refused_write_closes_intake_and_the_same_frame_goes_in_later(
    workspace: Path, turn: int, redo: RedoPlan | None, enough: int
) -> None:
    name, fault = list(WRITE_FAULTS.items())[turn]
    patience = 2 if name == "full-for-a-while" else 0
    stalls = 0
    at = 1 if LONG else turn + 1
    while True:
        story, failures = await run(workspace / "write", partial(fault, at=at), patience, redo)
        if failures == 0:
            break
        assert story.given_up == story.copies == 0, f"write {at}"
        stalls += story.stalls > 0
        at += 1 if LONG else len(WRITE_FAULTS)
    assert at > 50
    assert stalls > at // enough // (1 if LONG else len(WRITE_FAULTS))


@pytest.mark.parametrize("lasting", [False, True] if LONG else [False])
@pytest.mark.timeout(1_800)
async def test_a_failed_flush_ends_the_shard_and_the_next_start_copies_the_log(workspace: Path, lasting: bool) -> None:
    """And what the copy holds is on the disk, though what failed to be flushed never gets there."""
    given_up = at = 0
    while True:
        at += 1
        story, failures = await run(workspace / "sync", partial(RecordingVFS.fail_sync, at=at, lasting=lasting))
        if failures == 0:
            break
        assert story.stalls == 0
        assert story.given_up + story.refused_starts >= 1, f"flush {at} failed and nobody noticed"
        assert story.copies >= story.given_up
        given_up += story.given_up
    assert at > 30
    assert given_up > at // 2


async def test_a_stalled_shard_waits_quietly_although_something_is_due(workspace: Path) -> None:
    """While a frame cannot be written, nothing else can be decided: a timer that is due must wait for it too."""
    clock = FakeClock()
    with RecordingVFS() as vfs:
        log = SqliteLog.open(workspace / "quiet", NAMESPACE, vfs=vfs.name)
        shard = await Shard.open(log, clock=clock)
        item = NewItem(payload=Payload(resource_type="table", resource_id="a"), delay_ms=150)
        await shard.enqueue(item)
        vfs.fail_write(1, code=apsw.SQLITE_FULL, lasting=True)
        # Two at once go to the writer's thread: the shard's own task stays awake meanwhile.
        calls = [asyncio.ensure_future(shard.enqueue(item)) for _ in range(2)]
        while shard.failure is None:
            await settle()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await clock.advance(450)
        except TimeoutError:
            for call in calls:
                call.cancel()
            shard.kill()
            log.abandon()
            pytest.fail("the shard sets a timer for now, wakes up, can do nothing, and sets it again, for ever")
        vfs.heal()
        await clock.advance(100)
        await asyncio.gather(*calls)
        await shard.close()


async def test_everyone_who_waits_is_answered_when_the_shard_is_given_up(workspace: Path) -> None:
    clock = FakeClock()
    home = workspace / "waiters"
    with RecordingVFS() as vfs:
        log = SqliteLog.open(home, NAMESPACE, vfs=vfs.name)
        shard = await Shard.open(log, clock=clock)
        item = NewItem(payload=Payload(resource_type="table", resource_id="a"), delay_ms=60_000)
        answer = await shard.enqueue(item)
        waiting = [
            asyncio.ensure_future(shard.lease(wait_ms=50_000)),
            asyncio.ensure_future(shard.lease(wait_ms=50_000, max_items=3)),
            asyncio.ensure_future(shard.get(answer.results[0].sequence_id, wait_ms=50_000)),
        ]
        tail = asyncio.ensure_future(_read_to_the_end(shard))
        await settle()
        assert not any(task.done() for task in (*waiting, tail))
        vfs.fail_sync(1)
        # Several at once: some are in the frame that fails, others wait behind it.
        waiting += [asyncio.ensure_future(shard.enqueue([item] * 300)) for _ in range(6)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LogOutcomeUnknown] * 9
        assert {getattr(outcome, "code", None) for outcome in outcomes} == {LogOutcomeUnknown.default_code}
        seen = await tail
        assert seen == answer.results[0].sequence_id + 1, "the tail ends with what is durable"
        await shard.close()
        assert (home / NAMESPACE / "leases.suspect").exists()


@pytest.mark.timeout(1_800)
async def test_the_power_may_fail_while_the_log_is_copied_after_a_failed_flush(workspace: Path) -> None:
    """The mark is there until the copy has taken the log's place, so the next start does it again."""
    for at in range(12, 26, 1 if LONG else 6):
        shutil.rmtree(workspace / "copy", ignore_errors=True)
        with RecordingVFS() as vfs:
            vfs.fail_sync(at)
            disk = FailingDisk(workspace / "copy" / "log", vfs, SEED)
            story = await disk.run(COMMANDS)
            assert story.copies == 1
            assert await disk.check_cuts_while_copying() > 10


async def test_a_start_without_the_mark_of_a_failed_flush_is_caught(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of the test: going on after a failed flush as if nothing had been loses what comes next."""
    start = FailingDisk._start

    async def without_the_mark(disk: FailingDisk) -> Shard:
        (disk._home / "leases.suspect").unlink(missing_ok=True)
        return await start(disk)

    monkeypatch.setattr(FailingDisk, "_start", without_the_mark)
    # No checkpoint on the way: it would read what the flush lost from the cache and write it once more.
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_PAGES", 1_000_000)
    caught = 0
    for at in range(12, 24):
        try:
            await run(workspace / "unmarked", partial(RecordingVFS.fail_sync, at=at))
        except PromiseBroken:
            caught += 1
    assert caught > 0


async def _read_to_the_end(shard: Shard) -> int:
    last = 0
    async for event in shard.tail(1):
        last = event.sequence_number
    return last
