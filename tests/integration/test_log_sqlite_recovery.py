"""Getting an SQLite log back: after an accepted loss, and after a failed flush."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from omnirelay.core.events import GenerationStarted
from omnirelay.errors import (
    InvalidArgument,
    LogDamaged,
    LogRegressed,
    OmniRelayError,
)
from omnirelay.log import Frame, SqliteLog
from omnirelay.log.failpoints import armed
from omnirelay.testing.conformance import Leader, SimulatedCrash, frames_of
from tests.integration.log_sqlite import DAMAGES, SHARD, SqliteStore, digest, four_frames, refused

# ----------------------------------------------------------------------- accepting the loss


async def led(store: SqliteStore, log: SqliteLog) -> Leader:
    """Lead an accepted log: still unproven after a crash, then a generation, then like any other."""
    first = await Leader.of(log)
    assert first.unproven is not None
    assert first.unproven.startswith("accepted loss: ")
    store.crash(log)
    leader = await Leader.of(store.open())
    assert (leader.unproven, leader.highest_known) == (first.unproven, first.highest_known)
    with pytest.raises(InvalidArgument):
        await leader.append()
    start = leader.generation_start()
    assert start.first > first.highest_known
    await leader.append(start)
    await leader.append()
    await leader.log.close()
    again = await Leader.of(store.open())
    assert again.unproven is None
    assert (await again.log.verify()).position == leader.position
    await again.log.close()
    return first


@pytest.mark.parametrize("damage", DAMAGES)
async def test_an_accepted_loss_keeps_the_valid_prefix_and_the_old_file(store: SqliteStore, damage: str) -> None:
    leader = await four_frames(store)
    sql, _ = DAMAGES[damage]
    store.execute(sql)
    old = store.database.read_bytes()
    log = store.open(accept_loss=True)
    assert (store.root / "leases.db.damaged-1").read_bytes() == old
    assert not store.database.with_name("leases.db.new").exists()
    frames = await frames_of(log)
    assert [frame.last for frame in frames] == list(range(3, 3 * len(frames) + 1, 3))
    accepted = await led(store, log)
    assert accepted.highest_known >= leader.position.sequence
    assert accepted.position.sequence == 3 * len(frames)
    kept = {
        "frame before the last missing": 6,
        "chain of the frame before the last": 6,
        "all frames missing": 0,
    }
    of_the_head_only = damage.startswith(("head", "chain of the head", "generation", "time of the head"))
    assert accepted.position.sequence == kept.get(damage, 12 if of_the_head_only else 9)


async def test_damage_in_the_middle_can_be_accepted_too(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append_many(2)
    early = await leader.snapshot()
    await leader.append_many(2)
    await leader.snapshot()
    await leader.log.close()
    store.damage(9, "events")
    log = store.open(accept_loss=True)
    # A snapshot beyond the valid prefix belongs to a history that no longer exists.
    assert await log.snapshots() == [early]
    accepted = await led(store, log)
    assert (accepted.position.sequence, accepted.highest_known) == (6, 12)


async def test_the_lost_part_is_known_even_from_a_file_sqlite_cannot_read(store: SqliteStore) -> None:
    await four_frames(store)
    store.witness.unlink()
    contents = bytearray(store.database.read_bytes())
    contents[:100] = bytes(100)
    store.database.write_bytes(contents)
    refused(store, LogDamaged)
    log = store.open(accept_loss=True)
    assert await frames_of(log) == []
    assert (await led(store, log)).highest_known == 12


async def test_the_lost_part_is_known_even_from_a_frame_whose_header_is_gone(store: SqliteStore) -> None:
    await four_frames(store)
    store.witness.unlink()
    store.execute("DELETE FROM head")
    store.execute("""UPDATE frames SET data = replace(data, '"epoch"', '"ep0ch"') WHERE last = 12""")
    log = store.open(accept_loss=True)
    accepted = await led(store, log)
    assert (accepted.position.sequence, accepted.highest_known) == (9, 12)


async def test_a_log_that_is_gone_can_be_accepted_as_lost(store: SqliteStore) -> None:
    await four_frames(store)
    store.database.unlink()
    log = store.open(accept_loss=True)
    accepted = await led(store, log)
    assert (accepted.position.sequence, accepted.highest_known) == (0, 12)


async def test_a_regression_can_be_accepted_without_touching_the_frames(store: SqliteStore, tmp_path: Path) -> None:
    await four_frames(store)
    shutil.copy(store.database, tmp_path / "old.db")
    again = await Leader.of(store.open())
    await again.append_many(3)
    await again.log.close()
    shutil.copy(tmp_path / "old.db", store.database)
    log = store.open(accept_loss=True)
    assert not list(store.root.glob("*.damaged-*"))
    assert len(await frames_of(log)) == 4
    early = await Leader.of(log)
    early.generation += 1
    # 21 was a sequence of the lost history; nobody may get it again.
    start = GenerationStarted(sequence_number=21, timestamp=0, generation=2, reason="test", next_sequence_id=21)
    with pytest.raises(InvalidArgument) as refusal:
        await early.append(early.frame_of([start]))
    assert refusal.value.details["expected"] == 22
    accepted = await led(store, log)
    assert (accepted.position.sequence, accepted.highest_known) == (12, 21)


async def test_accepting_the_loss_of_a_whole_log_changes_nothing(store: SqliteStore) -> None:
    leader = await four_frames(store)
    before = store.database.read_bytes()
    log = store.open(accept_loss=True)
    assert store.database.read_bytes() == before
    acquired = await log.acquire("me")
    assert (acquired.unproven, acquired.position) == (None, leader.position)
    await log.close()


async def test_another_shards_log_is_no_loss_to_accept(store: SqliteStore) -> None:
    await four_frames(store)
    before = digest(store.root)
    with pytest.raises(LogDamaged):
        SqliteLog.open(store.directory, SHARD, shard="other", accept_loss=True)
    assert digest(store.root) == before


@pytest.mark.parametrize("point", ["copied", "marked", "moved_aside", "renamed"])
async def test_a_crash_at_any_step_of_a_recovery_can_be_recovered_from(store: SqliteStore, point: str) -> None:
    await four_frames(store)
    store.damage(12, "events")
    crash_in_recovery(f"log.recovery.{point}", lambda: store.open(accept_loss=True))
    if point == "copied":
        # Nothing was decided yet: the damage is still refused.
        with pytest.raises(LogDamaged):
            store.open()
        log = store.open(accept_loss=True)
    elif point == "renamed":
        # The new file is in place, only the old witness still speaks against it.
        with pytest.raises(LogRegressed):
            store.open()
        log = store.open(accept_loss=True)
    else:
        with pytest.raises(LogRegressed):
            store.open()
        log = store.open(accept_loss=True)
    assert [frame.last for frame in await frames_of(log)] == [3, 6, 9]
    assert not (store.root / "leases.replacement").exists()
    assert (await led(store, log)).highest_known == 12


@pytest.mark.parametrize("marker", [b"{", b'{"aside":"leases.\xe4b.damaged-1"}', b'{"aside":"../leases.db.damaged-1"}'])
async def test_an_unreadable_marker_of_a_recovery_is_refused(store: SqliteStore, marker: bytes) -> None:
    await four_frames(store)
    path = store.root / "leases.replacement"
    path.write_bytes(marker)
    before = digest(store.root)
    with pytest.raises(LogDamaged, match="ask for help") as refusal:
        store.open()
    assert refusal.value.details["file"] == str(path)
    assert digest(store.root) == before


def crash_in_recovery(point: str, recover: Callable[[], SqliteLog]) -> None:
    def crash() -> None:
        raise SimulatedCrash(point)

    with armed(point, crash), pytest.raises(SimulatedCrash):
        recover()


# ----------------------------------------------------------------------- after a failed flush


async def suspect(store: SqliteStore) -> tuple[Leader, Frame]:
    """A log that was given up in the middle of its third frame."""
    leader = await Leader.of(store.open())
    await leader.append_many(2)
    frame = leader.frame()
    with store.failing_flush(), pytest.raises(OmniRelayError):
        await leader.append(frame)
    assert (store.root / "leases.suspect").exists()
    return leader, frame


@pytest.mark.parametrize("ended", ["closed", "killed"])
async def test_after_a_failed_flush_the_log_is_copied_to_a_new_file(fragile: SqliteStore, ended: str) -> None:
    leader, frame = await suspect(fragile)
    if ended == "closed":
        await leader.log.close()
    else:
        fragile.crash(leader.log)
    inode = fragile.database.stat().st_ino
    log = fragile.open()
    assert fragile.database.stat().st_ino != inode
    assert (fragile.root / "leases.db.suspect-1").exists()
    # An old WAL beside the new database would be replayed into it.
    assert (fragile.root / "leases.db.suspect-1-wal").exists()
    assert not (fragile.root / "leases.suspect").exists()
    again = await Leader.of(log)
    assert again.unproven is None
    assert [read.last for read in await frames_of(log)] in ([3, 6], [3, 6, frame.last])
    await again.append()
    await log.close()
    await fragile.open().close()


async def test_a_suspect_log_that_is_damaged_is_refused(fragile: SqliteStore) -> None:
    leader, _ = await suspect(fragile)
    await leader.log.close()
    fragile.damage(3, "events")
    assert refused(fragile, LogDamaged).details["sequence"] == 1
    log = fragile.open(accept_loss=True)
    assert not (fragile.root / "leases.suspect").exists()
    await led(fragile, log)


@pytest.mark.parametrize("point", ["copied", "marked", "moved_aside", "renamed"])
async def test_a_crash_while_a_suspect_log_is_copied_loses_nothing(fragile: SqliteStore, point: str) -> None:
    leader, _ = await suspect(fragile)
    await leader.log.close()
    crash_in_recovery(f"log.recovery.{point}", fragile.open)
    log = fragile.open()
    assert [read.last for read in await frames_of(log)][:2] == [3, 6]
    assert (await log.acquire("me")).unproven is None
    assert not (fragile.root / "leases.suspect").exists()
    await log.close()
