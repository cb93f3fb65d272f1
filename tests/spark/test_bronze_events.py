"""Bronze: every event once, only new files are read, and what is damaged stops its shard and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.lakehouse import bronze
from omnirelay.lakehouse.bronze_source import find_new
from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.progress import End, decode_progress, events_between, events_in
from omnirelay.lakehouse.tables import EVENTS, QUARANTINE
from omnirelay.segments import parquet
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.manifest import Before, segment_key
from omnirelay.segments.reader import SegmentReader
from omnirelay.segments.segment import entry_of
from omnirelay.segments.upkeep import compact, expire
from tests.segment_logs import SHARD, START_MS, FrameLog
from tests.spark.logs import write_segments as write_to
from tests.spark.workload import Recorded, recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def log() -> Recorded:
    return recorded("jobs", seed=17, steps=60)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Pipeline:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    return Pipeline(spark, str(tmp_path / "segments"), str(tmp_path / "warehouse"))


def sequences(pipeline: Pipeline, shard: str = "jobs") -> list[int]:
    rows = pipeline.tables.read(EVENTS).where(f"shard = '{shard}'").select("sequence").orderBy("sequence").collect()
    return [row[0] for row in rows]


def numbers(log: Recorded, frames: int | None = None) -> list[int]:
    return [event.sequence_number for event in log.events][: sum(frame.count for frame in log.frames[:frames])]


def segment_files(directory: Path, shard: str = "jobs") -> list[Path]:
    return sorted((directory / "segments" / shard / "segments").glob("*.parquet"))


def test_an_incremental_run_scans_only_new_files(place: Pipeline, log: Recorded, tmp_path: Path) -> None:
    segments = tmp_path / "segments"
    write_segments(segments, log, last=20, pieces=4)
    assert place.ingest().segments == 4
    after = place.tables.progress(EVENTS)
    write_segments(segments, log, first=20, last=30, pieces=2)
    plans = asyncio.run(find_new(str(segments), after, tmp_path))
    rows = bronze.new_events(place.tables.spark, plans, after)
    assert rows is not None
    newest = {path.name for path in segment_files(tmp_path)[-2:]}
    assert {name.rpartition("/")[2] for name in rows.inputFiles()} == newest
    summary = place.ingest()
    assert (summary.segments, summary.events) == (2, len(numbers(log, 30)) - len(numbers(log, 20)))
    assert sequences(place) == numbers(log, 30)


def test_merged_segments_bring_only_what_is_new(place: Pipeline, log: Recorded, tmp_path: Path) -> None:
    segments = tmp_path / "segments"
    write_segments(segments, log, last=20, pieces=4)
    place.ingest()
    write_segments(segments, log, first=20, pieces=2)

    async def merge() -> None:
        merged = await compact(Archive(await connect(str(segments)), log.shard), segment_bytes=1 << 20, at_least=2)
        assert merged > 4

    asyncio.run(merge())
    assert place.ingest().events == len(log.events) - len(numbers(log, 20))
    assert sequences(place) == numbers(log)
    assert events_in(place.tables.progress(EVENTS)) == len(log.events)
    assert not place.ingest().changed


def test_a_new_generation_does_not_make_a_short_log_look_long(spark: SparkSession, tmp_path: Path) -> None:
    """What is read and written how depends on how many events there are, not on how far their numbers reach."""
    log = FrameLog()
    log.commit(3)
    log.commit(4, jump=GENERATION_JUMP)
    write_to(str(tmp_path / "segments"), *([frame] for frame in log.frames))
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    pipeline = Pipeline(spark, str(tmp_path / "segments"), str(tmp_path / "warehouse"))
    pipeline.ingest()
    progress = pipeline.tables.progress(EVENTS)
    assert progress["jobs"].sequence > GENERATION_JUMP
    assert events_in(progress) == 7
    log.commit(2, jump=GENERATION_JUMP)
    write_to(str(tmp_path / "segments"), log.frames[-1:])
    pipeline.ingest()
    newest = pipeline.tables.progress(EVENTS)
    assert events_in(newest) == 9
    assert events_between(progress, newest) == 2
    assert pipeline.tables.spark.conf.get("spark.sql.shuffle.partitions") == "1", "as it is for few events"


def test_progress_of_tables_that_do_not_say_how_many_events_they_hold_is_taken_from_its_numbers() -> None:
    said = '{"a": {"sequence": 40, "chain": "c0", "log_id": "l"}, "b": {"sequence": 2}}'
    older = decode_progress(f'{{"omnirelay": 1, "shards": {said}}}')
    assert older == {"a": End(40, "c0", "l"), "b": End(2)}
    assert events_in(older) == 42
    assert events_between(older, {**older, "a": End(50, "c1", "l", events=45)}) == 5


def test_a_segment_that_comes_twice_or_that_no_manifest_lists_changes_nothing(
    place: Pipeline, log: Recorded, tmp_path: Path
) -> None:
    write_segments(tmp_path / "segments", log, last=20, pieces=2)
    first, last = segment_files(tmp_path)
    # What a writer left that was killed before the manifest: the same events under another name.
    last.with_name(last.name.replace(last.stem[-16:], "0" * 16)).write_bytes(last.read_bytes())
    first.with_name("late.parquet").write_bytes(first.read_bytes())
    assert place.ingest().events == len(numbers(log, 20))
    versions = place.tables.version(EVENTS)
    assert not place.ingest().changed
    assert place.tables.version(EVENTS) == versions
    assert sequences(place) == numbers(log, 20)


def test_a_damaged_segment_stops_its_shard_and_nothing_else_until_it_is_mended(
    place: Pipeline, log: Recorded, tmp_path: Path
) -> None:
    other = recorded("other", seed=5, steps=30)
    write_segments(tmp_path / "segments", log, pieces=5)
    write_segments(tmp_path / "segments", other, pieces=2)
    third = segment_files(tmp_path)[2]
    whole = third.read_bytes()
    third.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    summary = place.ingest()
    [refused] = summary.refused
    assert (refused.shard, refused.segment) == ("jobs", third.name)
    assert "digest" in refused.reason
    assert sequences(place) == list(range(1, refused.sequence))
    assert sequences(place, "other") == numbers(other)
    [row] = place.tables.read(QUARANTINE).collect()
    assert (row.segment, row.reason) == (third.name, refused.reason)
    # It is reported every time, and put down once.
    version = place.tables.version(QUARANTINE)
    again = place.ingest()
    assert (len(again.refused), again.newly_refused, again.changed) == (1, 0, False)
    assert place.tables.version(QUARANTINE) == version
    third.unlink()
    assert "although it is listed" in place.ingest().refused[0].reason
    third.write_bytes(whole)
    assert place.ingest().refused == []
    assert sequences(place) == numbers(log)


def test_shard_that_the_source_has_no_longer_is_named_and_the_others_go_on(
    place: Pipeline, log: Recorded, tmp_path: Path
) -> None:
    other = recorded("other", seed=5, steps=30)
    write_segments(tmp_path / "segments", log, last=20)
    write_segments(tmp_path / "segments", other)
    place.ingest()
    (tmp_path / "segments" / "other").rename(tmp_path / "away")
    write_segments(tmp_path / "segments", log, first=20)
    summary = place.ingest()
    [refused] = summary.refused
    assert (refused.shard, refused.segment, refused.sequence) == ("other", "other/manifest", len(other.events) + 1)
    assert f"tables hold it up to event {len(other.events)}" in refused.reason
    assert "--gone other" in refused.reason
    assert sequences(place) == numbers(log)
    accepting = Pipeline(place.tables.spark, str(tmp_path / "segments"), str(tmp_path / "warehouse"), gone=["other"])
    assert accepting.ingest().refused == []
    (tmp_path / "away").rename(tmp_path / "segments" / "other")
    assert place.ingest().refused == []
    assert sequences(place, "other") == numbers(other)


async def test_segments_that_do_not_reach_to_the_table_are_refused_when_none_is_new(tmp_path: Path) -> None:
    log = FrameLog()
    for _ in range(3):
        log.commit(2)
    await asyncio.to_thread(write_to, str(tmp_path / "segments"), *([frame] for frame in log.frames[:2]))

    async def refused(behind: int) -> str | None:
        chain = log.frames[behind // 2 - 1].chain.hex()
        after = {SHARD: End(behind, chain, log.log_id)}
        [plan] = await find_new(str(tmp_path / "segments"), after, tmp_path)
        assert plan.events == 0
        return None if plan.refused is None else plan.refused.reason

    assert await refused(4) is None
    assert await refused(6) == "the segments end before event 6, which the table holds: is it an old copy?"
    archive = Archive(await connect(str(tmp_path / "segments")), SHARD, clock=lambda: START_MS + 2_000_000)
    assert await expire(archive, retention_ms=1_000_000) == 2
    assert await refused(4) is None, "what was dropped was taken before"
    assert await refused(2) == "events 3 to 4 were dropped before they were taken"


def test_another_history_is_refused(place: Pipeline, log: Recorded, tmp_path: Path) -> None:
    write_segments(tmp_path / "segments", log, last=20)
    place.ingest()
    for file in (tmp_path / "segments" / "jobs").rglob("*.*"):
        file.unlink()
    write_segments(tmp_path / "segments", recorded("jobs", seed=18, steps=60))
    [refused] = place.ingest().refused
    assert "another log" in refused.reason
    assert sequences(place) == numbers(log, 20)


def test_columns_of_a_newer_version_are_added(place: Pipeline, log: Recorded, tmp_path: Path) -> None:
    segments = tmp_path / "segments"
    write_segments(segments, log, last=10)
    place.ingest()
    frames = log.frames[10:20]

    async def newer() -> None:
        store = await connect(str(segments))
        manifest = await SegmentReader(store, "jobs").manifest()
        columns = parquet.read_table(parquet.encode_parquet(frames, None))
        data = parquet.encode_table(columns.append_column("mood", pa.array(["good"] * columns.num_rows)))
        assert manifest.end is not None
        entry = entry_of(frames, Before.of(manifest.end), "parquet", data)
        await store.put_if_absent(segment_key("jobs", entry.name), data)
        await Archive(store, "jobs").change(
            lambda base: None if base is None or entry in base.recent else base.with_recent((*base.recent, entry))
        )

    asyncio.run(newer())
    assert place.ingest().refused == []
    moods = [row[0] for row in place.tables.read(EVENTS).orderBy("sequence").select("mood").collect()]
    old = len(numbers(log, 10))
    assert moods == [None] * old + ["good"] * (len(numbers(log, 20)) - old)
    assert sequences(place) == numbers(log, 20)
