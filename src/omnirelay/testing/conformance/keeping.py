"""Snapshots, trimming, backups, and histories that are not proven complete."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from omnirelay.errors import InvalidArgument, LogFenced, LogTrimmed
from omnirelay.log import (
    FIRST_GENERATION,
    LogSize,
    SnapshotRecord,
)
from omnirelay.log.failpoints import armed
from omnirelay.testing.conformance.leader import Leader, SimulatedCrash, frames_of
from omnirelay.testing.conformance.store import LogStore


@pytest.mark.asyncio
class KeepingConformance:
    """Part of `EventLogConformance`."""

    # ------------------------------------------------------------------- snapshots and trimming

    async def test_snapshots_are_listed_newest_first_and_belong_to_this_history(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        first = await leader.snapshot(highest_fence=2)
        await leader.append()
        second = await leader.snapshot(highest_fence=5)
        await leader.snapshot(highest_fence=5)
        assert await leader.log.snapshots() == [second, first]
        foreign = SnapshotRecord(3, bytes(32), "d", "p", 0, 0, 0, 0)
        inside = SnapshotRecord(2, first.chain, "d", "p", 0, 0, 0, 0)
        for record in (foreign, inside):
            with pytest.raises(InvalidArgument):
                await leader.log.add_snapshot(record, leader.epoch)
        with pytest.raises(LogFenced):
            await leader.log.add_snapshot(first, leader.epoch - 1)
        store.crash(leader.log)
        log = store.open()
        assert await log.snapshots() == [second, first]
        assert (await log.verify()).snapshots == 2
        await log.close()

    async def test_snapshots_that_are_dropped_are_forgotten_and_the_two_newest_stay(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        records: list[SnapshotRecord] = []
        for _ in range(4):
            await leader.append()
            records.insert(0, await leader.snapshot())
        for sequences in ([records[0].sequence], [records[3].sequence, records[1].sequence]):
            with pytest.raises(InvalidArgument) as refusal:
                await leader.log.drop_snapshots(sequences, leader.epoch)
            assert refusal.value.details["field"] == "sequences"
        with pytest.raises(LogFenced):
            await leader.log.drop_snapshots([records[3].sequence], leader.epoch - 1)
        assert await leader.log.snapshots() == records
        await leader.log.drop_snapshots([records[2].sequence, 77], leader.epoch)
        left = [records[0], records[1], records[3]]
        assert await leader.log.snapshots() == left
        store.crash(leader.log)
        log = store.open()
        assert await log.snapshots() == left
        assert (await log.verify()).snapshots == 3
        await log.close()

    async def test_trimming_moves_the_anchor_and_keeps_the_rest_provable(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        fences = {}
        for fence in (5, 14, 20):
            await leader.append_many(3)  # 9 events each
            fences[leader.position.sequence] = await leader.snapshot(highest_fence=fence)
        written = await frames_of(leader.log)
        anchor = await leader.log.trim(14, leader.epoch)
        dropped = written[3]  # 10..12, the last one below 14
        assert (anchor.sequence, anchor.chain) == (12, dropped.chain)
        assert (anchor.time_ms, anchor.generation) == (dropped.time_ms, dropped.generation)
        # No fence up to 12 is above what the next snapshot, at 18, knows.
        assert anchor.highest_fence == 14
        assert await leader.log.anchor() == anchor
        assert [record.sequence for record in await leader.log.snapshots()] == [27, 18]
        for gone in (1, 12):
            with pytest.raises(LogTrimmed) as refusal:
                await frames_of(leader.log, gone)
            assert refusal.value.details["anchor"] == 12
        assert await frames_of(leader.log, 13) == written[4:]
        report = await leader.log.verify()
        assert (report.anchor, report.frames, report.position) == (anchor, 5, leader.position)
        await leader.append()
        store.crash(leader.log)
        successor = await Leader.of(store.open())
        assert successor.position == leader.position
        assert await successor.log.anchor() == anchor
        await successor.append()
        await successor.log.close()

    async def test_the_size_behind_an_event_is_that_of_the_frames_that_are_left(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        frames = await leader.append_many(4)  # 1..3, 4..6, 7..9, 10..12
        sizes = [len(frame.data) for frame in frames]
        assert await leader.log.size_after(0) == LogSize(12, sum(sizes))
        assert await leader.log.size_after(3) == LogSize(9, sum(sizes[1:]))
        assert await leader.log.size_after(4) == LogSize(8, sum(sizes[1:]))
        assert await leader.log.size_after(4, 9) == LogSize(5, sum(sizes[1:3]))
        assert await leader.log.size_after(12) == LogSize(0, 0)
        jump = await leader.append(leader.generation_start())
        assert await leader.log.size_after(11) == LogSize(1 + jump.count, sizes[3] + len(jump.data))
        await leader.log.close()

    async def test_trimming_beyond_the_second_newest_snapshot_changes_nothing(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(2)
        before = await frames_of(leader.log)

        async def refused(below: int) -> None:
            with pytest.raises(InvalidArgument) as refusal:
                await leader.log.trim(below, leader.epoch)
            assert refusal.value.details["field"] == "below"
            assert await frames_of(leader.log) == before

        await refused(1)
        await leader.snapshot()
        await refused(1)
        await leader.append()
        await leader.snapshot()
        before = await frames_of(leader.log)
        await refused(7)
        with pytest.raises(LogFenced):
            await leader.log.trim(6, leader.epoch - 1)
        assert await frames_of(leader.log) == before
        assert (await leader.log.trim(6, leader.epoch)).sequence == 3
        assert (await leader.log.trim(6, leader.epoch)).sequence == 3
        await leader.log.close()

    async def test_a_crash_between_the_slices_of_a_trim_leaves_a_log_that_can_be_led(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        for _ in range(2):
            await leader.append_many(60)
            await leader.snapshot()

        def crash() -> None:
            raise SimulatedCrash("log.trim.slice")

        with armed("log.trim.slice", crash), pytest.raises(SimulatedCrash):
            await leader.log.trim(180, leader.epoch)
        store.crash(leader.log)
        successor = await Leader.of(store.open())
        assert successor.position == leader.position
        assert (await successor.log.anchor()).sequence < 180
        assert (await successor.log.verify()).position == leader.position
        assert (await successor.log.trim(180, successor.epoch)).sequence == 177
        await successor.append()
        await successor.log.close()

    # ------------------------------------------------------------------- backups and unproven histories

    async def test_a_backup_taken_while_appending_is_a_prefix_and_starts_a_generation(
        self, store: LogStore, tmp_path: Path
    ) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(30)
        destination = tmp_path / "backups" / "copy"
        backup = asyncio.create_task(leader.log.backup(destination))
        while not backup.done():
            await leader.append()
            await asyncio.sleep(0)
        await backup
        await leader.append_many(3)
        written = [frame.data for frame in await frames_of(leader.log)]
        await leader.log.close()

        copy = await Leader.of(store.open_backup(destination))
        copied = [frame.data for frame in await frames_of(copy.log)]
        assert 30 <= len(copied) < len(written)
        assert copied == written[: len(copied)]
        assert copy.unproven is not None
        assert copy.highest_known == copy.position.sequence
        with pytest.raises(InvalidArgument) as refusal:
            await copy.append()
        assert refusal.value.details["field"] == "generation"
        await copy.append(copy.generation_start())
        await copy.append()
        assert (await copy.log.verify()).generation == FIRST_GENERATION + 1
        await copy.log.close()

    async def test_an_unproven_history_stays_so_until_a_generation_was_started(
        self, store: LogStore, tmp_path: Path
    ) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(2)
        await leader.log.backup(tmp_path / "copy")
        await leader.log.close()
        log = store.open_backup(tmp_path / "copy")
        first = await log.acquire("first")
        again = await log.acquire("again")
        assert first.unproven is not None
        assert again.unproven == first.unproven
        leader = Leader(log, again)
        await leader.append(leader.generation_start())
        assert (await log.acquire("third")).unproven is None
        await log.close()

    async def test_a_backup_never_overwrites(self, store: LogStore, tmp_path: Path) -> None:
        leader = await Leader.of(store.open())
        (tmp_path / "taken").write_text("mine")
        with pytest.raises(InvalidArgument):
            await leader.log.backup(tmp_path / "taken")
        assert (tmp_path / "taken").read_text() == "mine"
        await leader.log.close()
