"""Upkeep of segments where nothing is written: when a sink opens, and while it is idle."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from omnirelay.replication.objects import SegmentSink
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.keeping import Keeper, UpkeepSettings
from omnirelay.segments.upkeep import expire
from omnirelay.segments.writer import SegmentWriter
from tests.integration.shards import soon
from tests.integration.test_segments_sinks import events_of
from tests.segment_logs import SHARD, FrameLog, log_of

DAY_MS = 24 * 3_600_000


async def written(directory: Path) -> None:
    sink = SegmentSink(str(directory))
    await sink.open("jobs")
    await sink.apply(events_of(log_of(3, 4).frames))
    await sink.close()


async def emptied(directory: Path) -> None:
    """Return when the newest manifest lists no segment."""
    archive = Archive(await connect(str(directory)), "jobs")
    while (manifest := await archive.newest()) is None or manifest.recent:
        pass


async def test_what_is_too_old_goes_when_a_sink_opens(tmp_path: Path) -> None:
    await written(tmp_path)
    sink = SegmentSink(str(tmp_path), retention_ms=1)
    assert await sink.open("jobs") == 7
    await soon(emptied(tmp_path))
    await sink.close()
    assert await sink.open("jobs") == 7
    await sink.close()


async def test_what_grows_too_old_goes_though_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnirelay.segments.keeping._LOOK_EVERY_MS", 10)
    await written(tmp_path)
    store = await connect(str(tmp_path))
    manifest = await Archive(store, "jobs").newest()
    assert manifest is not None
    now = manifest.recent[-1].to_ms
    archive = Archive(store, "jobs", clock=lambda: now)
    keeper = Keeper(archive, UpkeepSettings(retention_ms=60_000))
    await keeper.run()
    keeper.start()
    manifest = await archive.newest()
    assert manifest is not None
    assert manifest.recent
    now += 60_001
    await soon(emptied(tmp_path))
    await keeper.close()
    await keeper.close()


async def test_a_wall_clock_that_is_set_ahead_makes_nothing_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await connect(str(tmp_path))
    archive, log = Archive(store, SHARD), FrameLog()
    await SegmentWriter(archive, kind="jsonl").append([log.commit(3, time_ms=archive.clock())])
    ahead_ns = time.time_ns() + 10 * DAY_MS * 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: ahead_ns)
    monkeypatch.setattr(time, "time", lambda: ahead_ns / 1e9)
    assert await expire(archive, retention_ms=7 * DAY_MS) == 0
    assert await expire(Archive(store, SHARD, clock=lambda: ahead_ns // 1_000_000), retention_ms=7 * DAY_MS) == 1
