"""Sinks into object stores: the conformance suite in every format on every store, behind followers and in a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow.dataset as ds
import pytest

from omnirelay.errors import InvalidArgument, OmniRelayError
from omnirelay.log.base import Frame
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.objects import ObjectPerEventSink, SegmentSink
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.segments.connecting import connect
from omnirelay.segments.reader import SegmentReader
from omnirelay.segments.verification import verify
from omnirelay.testing.clock import FakeClock
from omnirelay.testing.sinks import SHARD, SinkConformance, made_event, made_events
from tests.integration.nodes import Http
from tests.integration.shards import Place, frames_of, soon
from tests.integration.test_replication_following import caught_up as caught_up_with
from tests.integration.test_replication_following import following, trimmed, work
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.integration.test_replication_node import sink as settings_of
from tests.segment_logs import FrameLog, S3Server, log_of


async def sequences_in(address: str, options: dict[str, Any]) -> list[int]:
    store = await connect(address, options, writable=False)
    reader = SegmentReader(store, SHARD)
    if await reader.archive.newest() is None:
        return []
    await verify(store, SHARD)
    return [event.sequence for frame in [f async for f in reader.frames()] for event in events_of_frame(frame, "x")]


class TestParquet(SinkConformance):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return SegmentSink(str(directory), kind="parquet", compact_at=3)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return await sequences_in(str(directory), {})


class TestLines(SinkConformance):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return SegmentSink(f"file://{directory}", kind="jsonl", compact_at=0)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return await sequences_in(str(directory), {})


class TestObjectPerEvent(SinkConformance):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return ObjectPerEventSink(str(directory))

    async def read_back(self, directory: Path) -> Sequence[int]:
        names = sorted(path.name for path in (directory / SHARD).glob("*.json"))
        assert all(len(name) == 25 for name in names)
        documents = [msgspec.json.decode((directory / SHARD / name).read_bytes()) for name in names]
        assert [f"{each['sequenceNumber']:020d}.json" for each in documents] == names
        return [each["sequenceNumber"] for each in documents]


class OnS3(SinkConformance):
    __test__ = False
    server: S3Server

    @pytest.fixture(autouse=True)
    def _server(self, s3: S3Server) -> None:
        type(self).server = s3

    def address(self, directory: Path) -> str:
        return self.server.address("-".join(directory.parts[-2:]))


class TestParquetOnS3(OnS3):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return SegmentSink(self.address(directory), options=self.server.options, compact_at=3)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return await sequences_in(self.address(directory), self.server.options)


class TestLinesOnS3(OnS3):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return SegmentSink(self.address(directory), kind="jsonl", options=self.server.options)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return await sequences_in(self.address(directory), self.server.options)


class TestObjectPerEventOnS3(OnS3):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return ObjectPerEventSink(self.address(directory), options=self.server.options)

    async def read_back(self, directory: Path) -> Sequence[int]:
        store = await connect(self.address(directory), self.server.options, writable=False)
        return [int(each.key.rpartition("/")[2].removesuffix(".json")) for each in await store.list(SHARD)]


# OnS3 itself is no test: the suite marks every class that is derived from it.
OnS3.__test__ = False


# -- what the sinks refuse -----------------------------------------------------------------------


def events_of(frames: Sequence[Frame]) -> list[ReplicatedEvent]:
    return [event for frame in frames for event in events_of_frame(frame, "eu")]


async def test_a_delivery_that_ends_inside_a_frame_takes_the_frame_whole(tmp_path: Path) -> None:
    log = log_of(10, 10)
    sink = SegmentSink(str(tmp_path))
    await sink.open("jobs")
    events = events_of(log.frames)
    await sink.apply(events[:4])
    assert await sink.open("jobs") == 10
    await sink.apply(events[4:15])
    await sink.apply(events[15:])
    await sink.close()
    reader = SegmentReader(await connect(str(tmp_path)), "jobs")
    assert [frame async for frame in reader.frames()] == log.frames


async def test_segments_of_another_history_make_the_sink_unusable(tmp_path: Path) -> None:
    log = log_of(3)
    other = log.fork()
    log.commit(2)
    other.commit(2, time_ms=7)
    other.commit(1)
    stranger = FrameLog("log-2")
    for _ in range(3):
        stranger.commit(3)
    sink = SegmentSink(str(tmp_path))
    await sink.open("jobs")
    await sink.apply(events_of(log.frames))
    for frames, words in (
        (other.frames[:2], "event 5 of 'jobs' in .* has another history"),
        (other.frames[2:], "event 6 does not continue the segments"),
        (stranger.frames[2:], "are of the log log-1, this one is log-2"),
    ):
        with pytest.raises(SinkUnusable, match=words):
            await sink.apply(events_of(frames))
    log.epoch = 0
    log.commit(1)
    with pytest.raises(SinkUnusable, match="a writer with epoch 1 extended the segments"):
        await sink.apply(events_of(log.frames[2:]))
    await sink.close()
    assert (await verify(await connect(str(tmp_path)), "jobs")).events == 5


async def test_a_gap_is_refused(tmp_path: Path) -> None:
    log = log_of(3, 3, 3)
    sink = SegmentSink(str(tmp_path))
    await sink.open("jobs")
    await sink.apply(events_of(log.frames[:1]))
    with pytest.raises(SinkUnusable, match="does not continue the segments"):
        await sink.apply(events_of(log.frames[2:]))
    await sink.close()


async def test_events_without_their_frames_are_refused(tmp_path: Path) -> None:
    sink = SegmentSink(str(tmp_path))
    await sink.open(SHARD)
    with pytest.raises(SinkUnusable, match="made of frames"):
        await sink.apply([made_event(1)])
    await sink.close()


async def test_an_object_of_another_event_is_not_taken_for_it(tmp_path: Path) -> None:
    [event, *_] = made_events(3)
    sink = ObjectPerEventSink(str(tmp_path))
    await sink.open(SHARD)
    await sink.apply([event])
    await sink.apply([msgspec.structs.replace(event, region="moved")])  # The same event, told otherwise.
    data = event.data.replace(b'"timestamp":1', b'"timestamp":2')
    with pytest.raises(SinkUnusable, match="is another event"):
        await sink.apply([msgspec.structs.replace(event, data=data)])


@pytest.mark.parametrize("lost", [1, 2, 40])
async def test_objects_that_a_restored_log_does_not_have_are_noticed(tmp_path: Path, lost: int) -> None:
    """A log that was restored into a new directory has no checkpoint: all that it has left is delivered again."""
    before = made_events(45)[:45]
    sink = ObjectPerEventSink(str(tmp_path))
    await sink.open(SHARD)
    await sink.apply(before)
    await sink.close()
    kept = 45 - lost
    goes_on = made_event(1 << 33, previous=kept, event_type="GenerationStarted")
    restored = ObjectPerEventSink(str(tmp_path))
    await restored.open(SHARD)
    await restored.apply(before[:kept])
    with pytest.raises(SinkUnusable, match=f"{kept + 1:020d}.json .* does not have: it goes on with {1 << 33}"):
        await restored.apply([goes_on])
    for path in (tmp_path / SHARD).iterdir():
        if int(path.stem) > kept:
            path.unlink()
    await restored.apply([goes_on])
    await restored.close()
    assert (tmp_path / SHARD / f"{1 << 33:020d}.json").exists()


async def test_a_store_that_cannot_be_used_is_an_unusable_sink(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for sink in (SegmentSink(str(tmp_path / "file" / "x")), ObjectPerEventSink("gopher://x")):
        with pytest.raises(SinkUnusable):
            await sink.open(SHARD)
        await sink.close()


# -- in a node -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
async def test_a_node_writes_segments_that_are_its_log(tmp_path: Path, form: Any) -> None:
    logged: list[Frame] = []
    for _ in range(2):
        settings = settings_of("lake", "objects", format=form, compact_at=2)
        async with node_with(settings, data=tmp_path) as node, Http(node) as http:
            for count in (1, 30):
                await http.call("enqueue", {"items": [ITEM] * count})
                await caught_up(node)
            logged = await frames_of(node.components[0].shard().log)
    store = await connect(str(tmp_path / "sinks" / "lake"), writable=False)
    reader = SegmentReader(store, "resourcelease")
    # A node that ends says something last, which no sink has to have seen.
    held = [frame async for frame in reader.frames()]
    assert held[: len(logged)] == logged
    report = await verify(store, "resourcelease")
    assert report.anchored
    assert report.position.chain == held[-1].chain


async def test_a_follower_goes_on_while_the_store_fails_and_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "lake"
    target.write_text("in the way")
    settings = settings_of("lake", "objects", path=str(target))
    async with node_with(settings) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 3})
        [follower] = node.replication.find("lake")
        await soon(follower.wait_state("failed"))
        assert "cannot write in" in (follower.last_error or "")
        target.unlink()
        await follower.resume()
        await caught_up(node)
    assert (await verify(await connect(str(target)), "resourcelease")).events >= 3


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
async def test_a_reset_that_would_leave_a_gap_in_segments_is_refused_with_what_to_do(kind: str, tmp_path: Path) -> None:
    settings = settings_of("lake", "objects", path=str(tmp_path / "lake"), format=kind)
    async with node_with(settings) as node, Http(node) as http, Http(node, "replication") as operator:
        await http.call("enqueue", {"items": [ITEM] * 3})
        await caught_up(node)
        [follower] = node.replication.find("lake")
        await follower.pause()
        held = follower.checkpoint
        for _ in range(3):
            await http.call("enqueue", {"items": [ITEM] * 2})
        ahead = held + 4
        request = {"sink": "lake", "sequence": ahead}
        refusal = await operator.post("reset", request)
        assert refusal.status_code == 400
        assert f"reset lake --shard resourcelease --to {held};" in refusal.text
        assert f"pause it and move what it has of resourcelease away, then reset it to {ahead}" in refusal.text
        assert follower.checkpoint == held
        # Both of what it says to do is done.
        await operator.call("reset", {"sink": "lake", "sequence": held})
        await follower.resume()
        await caught_up(node)
        await follower.pause()
        (tmp_path / "lake").rename(tmp_path / "away")
        ahead = follower.checkpoint + 2
        await http.call("enqueue", {"items": [ITEM] * 2})
        await http.call("enqueue", {"items": [ITEM] * 2})
        await operator.call("reset", {"sink": "lake", "sequence": ahead})
        await follower.resume()
        await caught_up(node)
    assert (await verify(await connect(str(tmp_path / "away")), "resourcelease")).begin == 0
    assert (await verify(await connect(str(tmp_path / "lake")), "resourcelease")).begin == ahead


async def test_a_reset_of_segments_that_were_not_opened_yet_asks_what_is_there(tmp_path: Path) -> None:
    settings = settings_of("lake", "objects", path=str(tmp_path / "lake"))
    async with node_with(settings, data=tmp_path / "node") as node, Http(node) as http:
        await http.call("enqueue", ITEM)
        await caught_up(node)
        [follower] = node.replication.find("lake")
        await follower.pause()
    async with node_with(settings, data=tmp_path / "node") as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 2})
        [follower] = node.replication.find("lake")
        await soon(follower.wait_state("paused"))
        last = node.components[0].shard().last_sequence
        with pytest.raises(InvalidArgument, match="takes nothing behind a gap"):
            await follower.reset(last)
        assert node.replication.sink("lake", "resourcelease") is None


async def test_segments_that_a_trimmed_log_no_longer_continues_are_not_to_be_reset_but_moved_away(
    tmp_path: Path,
) -> None:
    async with await Place("sqlite", tmp_path).open(FakeClock()) as shard:
        checkpoints = Checkpoints(None)
        async with following(shard, SegmentSink(str(tmp_path / "lake")), checkpoints) as follower:
            await work(shard)
            await caught_up_with(follower, shard)
        anchor = await trimmed(shard)
        async with following(shard, SegmentSink(str(tmp_path / "lake")), checkpoints) as follower:
            await soon(follower.wait_state("failed"))
            assert "move what it has of jobs away" in (follower.last_error or "")
            with pytest.raises(InvalidArgument, match="takes nothing behind a gap"):
                await follower.reset(anchor)
            (tmp_path / "lake").rename(tmp_path / "away")
            await follower.reset(anchor)
            await caught_up_with(follower, shard)
        await checkpoints.close()
    assert (await verify(await connect(str(tmp_path / "lake")), "jobs")).begin == anchor


async def test_a_gap_in_segments_is_not_called_damage_of_the_log(tmp_path: Path) -> None:
    log = log_of(3, 3, 3)
    sink = SegmentSink(str(tmp_path))
    await sink.open("jobs")
    await sink.apply(events_of(log.frames[:1]))
    with pytest.raises(SinkUnusable, match="reset SINK --shard jobs --to 3") as caught:
        await sink.apply(events_of(log.frames[2:]))
    assert "recover" not in caught.value.message
    await sink.close()


# -- read by others ------------------------------------------------------------------------------


async def test_duckdb_and_pyarrow_read_what_the_manifest_lists(tmp_path: Path) -> None:
    log = log_of(5, 500, 5)
    log.commit_raw(b'{"eventType":"Teleported","sequenceNumber":511,"timestamp":1700000000000,"to":"moon"}', schema=2)
    sink = SegmentSink(str(tmp_path), compact_at=0)
    await sink.open("jobs")
    for frame in log.frames:
        await sink.apply(events_of([frame]))
    await sink.close()
    entries = await SegmentReader(await connect(str(tmp_path)), "jobs").segments()
    files = [str(tmp_path / "jobs" / "segments" / entry.name) for entry in entries]
    assert len(files) == 4
    with duckdb.connect() as database:
        counted = database.execute(
            "select count(*), min(sequence), max(sequence), count(frame) from read_parquet(?)", [files]
        ).fetchone()
        assert counted == (511, 1, 511, 4)
        enqueued = database.execute(
            "select payload_resource_id from read_parquet(?) where event_type = 'Enqueue' and sequence < 10", [files]
        ).fetchall()
        assert enqueued == [("orders-1",), ("orders-6",)]
        unknown = database.execute(
            "select extra->>'to' from read_parquet(?) where event_type = 'Teleported'", [files]
        ).fetchall()
        assert unknown == [("moon",)]
    dataset = ds.dataset(files)
    assert dataset.count_rows(filter=ds.field("event_type") == "Completed") == 102


async def test_duckdb_reads_lines(tmp_path: Path) -> None:
    log = log_of(5, 20)
    sink = SegmentSink(str(tmp_path), kind="jsonl")
    await sink.open("jobs")
    await sink.apply(events_of(log.frames))
    await sink.close()
    [path] = (tmp_path / "jobs" / "segments").iterdir()
    with duckdb.connect() as database:
        rows = database.execute(
            "select sequenceNumber, metadata->>'region' from read_json(?, format = 'newline_delimited',"
            " compression = 'zstd')",
            [str(path)],
        ).fetchall()
    assert [int(row[0]) for row in rows] == list(range(1, 26))
    assert {row[1] for row in rows} == {"eu"}


async def test_errors_of_the_store_are_ours(tmp_path: Path, s3: S3Server) -> None:
    sink = SegmentSink("s3://nowhere/x", options=s3.options)
    with pytest.raises(OmniRelayError, match="s3://nowhere/x"):
        await sink.open(SHARD)
    await sink.close()
