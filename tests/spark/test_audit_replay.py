"""The parts of the audit that need no Spark: files, the replay, and what a node knows of its own states."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirelay.core import events as ev
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.errors import InvalidArgument, NotFound
from omnirelay.lakehouse.audit_digests import Known, known_of
from omnirelay.lakehouse.audit_plan import ShardPlan, plan
from omnirelay.lakehouse.audit_replay import Replay
from omnirelay.lakehouse.audit_rules import Findings, Opined, Replayed
from omnirelay.lakehouse.audit_segments import SegmentCheck
from omnirelay.lakehouse.audit_tasks import SegmentDone, SegmentWork
from omnirelay.log import MemoryLog
from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_frame
from omnirelay.log.sqlite import SqliteLog
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.lines import split_lines
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.manifest import segment_key
from omnirelay.segments.parquet import encode_table, read_table
from omnirelay.segments.segment import SegmentFormat
from omnirelay.segments.writer import SegmentWriter
from omnirelay.testing.clock import FakeClock
from tests.property.strategies import LONG
from tests.spark import audit_odd_plants as odd
from tests.spark import audit_plants as plants
from tests.spark.workload import OPTIONS, Recorded, recorded, write_segments

LIMITS = [Limit(by="type", match="ta*", max=3), Limit(by="key", max=2), Limit(by="tenant", max=5)]


async def looked_at(directory: Path, planned: ShardPlan, known: Known | None = None) -> tuple[Replayed, list[Findings]]:
    """The opinions of files and replay on one shard."""
    store = await connect(str(directory), writable=False)
    files = Findings("files", planned.shard, planned.first, planned.last)
    for entry in planned.entries:
        check = SegmentCheck(files, entry, planned.log_id)
        check.run(await store.get(segment_key(planned.shard, entry.name)))
        assert check.usable
    replay = Findings("replay", planned.shard, planned.first, planned.last)
    return await Replay(store, planned, known, replay).run(), [files, replay]


def only_plan(directory: Path) -> ShardPlan:
    [planned], [found] = asyncio.run(plan(str(directory)))
    assert found.named == []
    return planned


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    ordering=st.sampled_from(["none", "exclusive", "fifo"]),
    key=st.sampled_from(["resource", "partition"]),
    limits=st.lists(st.sampled_from(LIMITS), max_size=3, unique=True),
)
def test_whatever_the_engine_writes_is_clean(seed: int, ordering: str, key: str, limits: list[Limit]) -> None:
    options = msgspec.structs.replace(OPTIONS, ordering=ordering, key=key, limits=limits)
    log = recorded("jobs", seed=seed, steps=80, options=options)
    with TemporaryDirectory() as name:
        write_segments(Path(name), log, pieces=2)
        replayed, found = asyncio.run(looked_at(Path(name), only_plan(Path(name))))
    assert [finding for each in found for finding in each.named] == []
    assert replayed.remark is None
    assert (replayed.last, replayed.events) == (log.frames[-1].last, len(log.events))


def test_segments_of_lines_are_audited_too(tmp_path: Path) -> None:
    log = recorded("jobs", seed=3, steps=60)
    asyncio.run(_append(tmp_path, log, "jsonl"))
    replayed, found = asyncio.run(looked_at(tmp_path, only_plan(tmp_path)))
    assert [finding for each in found for finding in each.named] == []
    assert replayed.last == log.frames[-1].last


async def _append(directory: Path, log: Recorded, kind: SegmentFormat, first: int = 0) -> None:
    store = await connect(str(directory))
    await SegmentWriter(Archive(store, log.shard), kind=kind).append(log.frames[first:])


async def _with_snapshots(directory: Path) -> Recorded:
    """A log of a node with two snapshots, and events behind them."""
    log = SqliteLog.open(directory, "jobs")
    clock = FakeClock()
    shard = await Shard.open(log, clock=clock)
    for _ in range(2):
        items = [NewItem(payload=Payload(resource_type="table", resource_id="r"))] * 3
        await shard.enqueue(items)
        [lease] = await shard.lease(Caller(peer_id="ada"))
        await shard.snapshot()
        await shard.complete(lease.token, caller=Caller(peer_id="ada"))
    frames = [frame async for frame in log.read(1)]
    await shard.close()
    return Recorded("jobs", frames, log.log_id)


def test_the_states_of_a_replay_are_those_that_the_node_recorded(tmp_path: Path) -> None:
    log = asyncio.run(_with_snapshots(tmp_path / "node"))
    write_segments(tmp_path / "segments", log)
    planned = only_plan(tmp_path / "segments")
    known = asyncio.run(known_of(tmp_path / "node", "jobs", anchor=0, last=planned.last))
    assert len(known.digests) == 3, "two snapshots and the end"
    replayed, found = asyncio.run(looked_at(tmp_path / "segments", planned, known))
    assert [finding for each in found for finding in each.named] == []
    assert replayed.snapshots == 3
    assert replayed.digest == known.digests[planned.last]


def test_segments_without_their_beginning_are_replayed_from_the_state_of_the_node(tmp_path: Path) -> None:
    log = asyncio.run(_with_snapshots(tmp_path / "node"))
    asyncio.run(_append(tmp_path / "segments", log, "parquet", first=len(log.frames) // 2))
    planned = only_plan(tmp_path / "segments")
    assert not planned.whole
    known = asyncio.run(known_of(tmp_path / "node", "jobs", anchor=planned.anchor.sequence, last=planned.last))
    replayed, found = asyncio.run(looked_at(tmp_path / "segments", planned, known))
    assert [finding for each in found for finding in each.named] == []
    assert (replayed.begun, replayed.last) == (planned.anchor.sequence, planned.last)
    assert replayed.digest == known.digests[planned.last]


def test_a_node_that_has_not_come_so_far_is_compared_where_it_is(tmp_path: Path) -> None:
    log = asyncio.run(_with_snapshots(tmp_path))
    known = asyncio.run(known_of(tmp_path, "jobs", anchor=log.frames[-1].last + 1, last=log.frames[-1].last + 9))
    assert (known.digests, known.start) == ({}, None)
    known = asyncio.run(known_of(tmp_path, "jobs", anchor=0, last=log.frames[-1].last + 9))
    assert len(known.digests) == 2, "its snapshots"


def test_a_manifest_that_skips_a_segment_is_named(tmp_path: Path) -> None:
    log = plants.short_log("jobs")
    plants.write(tmp_path, log, pieces=3)

    async def skip() -> None:
        archive = Archive(await connect(str(tmp_path)), "jobs")
        await archive.change(lambda newest: newest and newest.with_recent((newest.recent[0], newest.recent[2])))

    asyncio.run(skip())
    [planned], [found] = asyncio.run(plan(str(tmp_path)))
    [finding] = found.named
    assert (finding.rule, finding.sequence) == ("contiguity", planned.entries[1].first)


def test_a_manifest_that_cannot_be_read_is_named_and_other_shards_are_planned(tmp_path: Path) -> None:
    for shard in ("bad", "good"):
        plants.write(tmp_path, plants.short_log(shard))
    for path in (tmp_path / "bad" / "manifest").glob("*.json"):
        path.write_text("{")
    [planned], found = asyncio.run(plan(str(tmp_path)))
    assert planned.shard == "good"
    assert [(each.shard, list(each.counts)) for each in found] == [("bad", ["segments"]), ("good", [])]


def test_a_shard_without_segments_is_refused_by_name(tmp_path: Path) -> None:
    plants.write(tmp_path, plants.short_log("jobs"))
    with pytest.raises(NotFound, match=r"'orders'.*it has jobs"):
        asyncio.run(plan(str(tmp_path), shards=["orders"]))


def test_a_stretch_behind_the_end_is_refused_and_not_called_clean(tmp_path: Path) -> None:
    log = recorded("jobs", seed=5, steps=20)
    write_segments(tmp_path, log)
    with pytest.raises(InvalidArgument, match=f"end at {len(log.events)}"):
        asyncio.run(plan(str(tmp_path), first=len(log.events) + 1))


def test_damage_to_a_segment_counts_from_wherever_in_it_the_audit_begins() -> None:
    findings = Findings("files", "jobs", first=5_000)
    findings.add("segments", 4_000, "is missing", upto=4_999)
    assert not findings.named
    findings.add("segments", 4_000, "is missing", upto=6_000)
    assert [finding.sequence for finding in findings.named] == [5_000]


def _files_opinion(directory: Path, planned: ShardPlan, at: int) -> Opined:
    done, *_ = SegmentWork(str(directory), None, [planned], [(0, at)]).run(0)
    return msgspec.json.decode(done["done"][0].as_py(), type=SegmentDone).opined


def test_segments_that_were_merged_since_are_not_missing_but_not_seen(tmp_path: Path) -> None:
    plants.write(tmp_path, plants.short_log("jobs"), pieces=4)
    planned = only_plan(tmp_path)
    plants.merge(tmp_path, "jobs")
    opined = _files_opinion(tmp_path, planned, 1)
    assert (opined.named, opined.usable, opined.replaced) == ([], False, True)


def test_a_segment_that_the_newest_manifest_lists_is_missing_whatever_else_changed(tmp_path: Path) -> None:
    log = recorded("jobs", seed=3, steps=60)
    half = len(log.frames) // 2
    write_segments(tmp_path, log, last=half, pieces=3)
    planned = only_plan(tmp_path)
    write_segments(tmp_path, log, first=half)
    plants.segment_paths(tmp_path, "jobs")[1].unlink()
    opined = _files_opinion(tmp_path, planned, 1)
    assert [finding.rule for finding in opined.named] == ["segments"]
    assert not opined.replaced
    # Nobody can say that it was replaced when what lists it is gone, too.
    for path in (tmp_path / "jobs" / "manifest").glob("*.json"):
        path.write_text("{")
    assert _files_opinion(tmp_path, planned, 1).named == opined.named


# -- the command -----------------------------------------------------------------------------------


def audit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omnirelay.cli", "lakehouse", "audit", *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )


@pytest.mark.timeout(900)
@pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")
def test_the_command_names_a_violation_and_ends_with_6(tmp_path: Path) -> None:
    log = plants.short_log("jobs")
    frame, sequence = plants.second_lease(log)
    plants.write(tmp_path, log, frame)
    done = audit("--source", str(tmp_path), "--shard", "jobs", "--master", "local[1]", "-o", "json")
    assert done.returncode == 6, done.stderr
    answer = json.loads(done.stdout)
    assert answer["clean"] is False
    [rule] = [each for each in answer["rules"] if each["id"] == "one-lease"]
    assert rule["opinions"] == {"replay": 1, "sql": 1}
    assert [(each["shard"], each["sequence"]) for each in rule["first"]] == [("jobs", sequence)] * 2
    assert "replay:" in done.stderr


@pytest.mark.timeout(900)
@pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")
def test_the_command_says_what_was_not_seen_and_with_strict_ends_with_1(tmp_path: Path) -> None:
    log = recorded("jobs", seed=3, steps=60)
    asyncio.run(_append(tmp_path, log, "parquet", first=len(log.frames) // 2))
    done = audit("--source", str(tmp_path), "--master", "local[1]", "--strict")
    assert done.returncode == 1, done.stderr
    assert "NOT EVERYTHING WAS SEEN by replay, sql:" in done.stdout
    assert "Clean as far as it could be seen" in done.stdout
    assert "--strict" in done.stderr
    assert "jobs" in done.stderr


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    plants.write(tmp_path, plants.short_log("jobs"))
    both = audit("--source", str(tmp_path), "--data", "x", "--backup", "y")
    assert both.returncode == 2
    assert "--backup" in both.stderr
    backwards = audit("--source", str(tmp_path), "--from", "7", "--to", "6")
    assert backwards.returncode == 2
    assert "--from 7" in backwards.stderr
    missing = audit("--source", str(tmp_path), "--shard", "orders")
    assert missing.returncode == 4
    assert "orders" in missing.stderr


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_what_readers_see_beside_the_frames_is_compared_with_them(tmp_path: Path, kind: SegmentFormat) -> None:
    """A line that was edited, or a column that is gone; the manifest agrees with either."""
    log = plants.short_log("jobs")
    frames = log.frames
    asyncio.run(SegmentWriter(Archive(LocalObjectStore(tmp_path), "jobs"), kind=kind, region="eu").append(frames))
    planned = only_plan(tmp_path)
    [entry] = planned.entries
    data = (tmp_path / segment_key("jobs", entry.name)).read_bytes()

    def found_in(data: bytes) -> list[tuple[str, int | None, str]]:
        findings = Findings("files", "jobs")
        digest = hashlib.sha256(data).hexdigest()
        SegmentCheck(findings, msgspec.structs.replace(entry, digest=digest), planned.log_id).run(data)
        return [(each.rule, each.sequence, each.what) for each in findings.named]

    assert found_in(data) == []
    if kind == "parquet":
        table = read_table(data)
        whole = found_in(encode_table(table.drop_columns(["event_type", "peer_id"])))
        empty = [name for name in table.column_names if table[name].null_count == table.num_rows]
        assert found_in(encode_table(table.drop_columns(empty))) == []
        assert [rule for rule, _, _ in whole] == ["columns", "columns"]
        assert "column event_type is missing" in whole[0][2]
    else:
        lines = split_lines(data)
        lines[2] = msgspec.json.encode(msgspec.json.decode(lines[2]) | {"eventType": "Completed"})
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, "zstd") as stream:
            stream.write(b"\n".join([*lines, b""]))
        [(rule, sequence, what)] = found_in(out.getvalue().to_pybytes())
        assert (rule, sequence) == ("columns", 3)
        assert "the line of event 3 is not what its frame says: eventType" in what


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (plants.other_attempt, "owner"),
        (plants.time_goes_back, "follows"),
        (plants.number_given_out_before, "life"),
        (plants.attempt_skipped, "limits"),
        (plants.paused_leased, "follows"),
        (partial(plants.paused_leased, resource_type="table"), "follows"),
        (partial(plants.paused_leased, tenant="t1"), "follows"),
        (plants.earlier_epoch, "fences"),
    ],
)
def test_the_replay_names_what_no_node_would_have_decided(tmp_path: Path, plant: plants.Plant, rule: str) -> None:
    log = plants.short_log("jobs")
    frame, expected = plant(log)
    plants.write(tmp_path, log, frame)
    _, [files, replay] = asyncio.run(looked_at(tmp_path, only_plan(tmp_path)))
    assert files.named == []
    assert [(finding.rule, finding.sequence) for finding in replay.named] == [(rule, expected)]


@pytest.mark.parametrize("name", odd.ODD)
def test_the_replay_names_commands_that_nobody_gave(tmp_path: Path, name: str) -> None:
    plant, rule = odd.ODD[name]
    log = plants.short_log("jobs")
    frame, expected = plant(log)
    plants.write(tmp_path, log, frame)
    replayed, [files, replay] = asyncio.run(looked_at(tmp_path, only_plan(tmp_path)))
    assert files.named == []
    assert [(finding.rule, finding.sequence) for finding in replay.named] == [(rule, expected)]
    assert replayed.remark is None


@pytest.mark.parametrize("plant", odd.GOOD)
def test_the_replay_says_nothing_of_what_a_node_may_decide(
    tmp_path: Path, plant: Callable[[plants.Log], Frame]
) -> None:
    log = plants.short_log("jobs")
    frame = plant(log)
    plants.write(tmp_path, log, frame)
    replayed, [files, replay] = asyncio.run(looked_at(tmp_path, only_plan(tmp_path)))
    assert files.named == replay.named == []
    assert replayed.last == frame.last


def test_what_follows_a_failure_is_not_missed_where_the_audit_ends_before_it(tmp_path: Path) -> None:
    log = plants.short_log("jobs")
    plants.write(tmp_path, log, odd.dead_with_its_letter(log))
    planned = msgspec.structs.replace(only_plan(tmp_path), last=log.next)
    replayed, [_, replay] = asyncio.run(looked_at(tmp_path, planned))
    assert replayed.last == log.next
    assert replay.named == []


@pytest.mark.parametrize(
    ("options", "plant", "rule"),
    [
        (plants.LIMITED, plants.ready_leased, "limits"),
        (plants.BY_TENANT, plants.same_tenant_leased, "limits"),
        (plants.EXCLUSIVE, plants.same_key_leased, "exclusive-key"),
        (plants.EXCLUSIVE, plants.out_of_turn, "follows"),
        (plants.OPTIONS, plants.paused_leased, "follows"),
    ],
)
def test_a_grant_that_the_schedule_keeps_back_is_named_and_the_replay_goes_on_with_it(
    tmp_path: Path, options: QueueOptions, plant: plants.Plant, rule: str
) -> None:
    log = plants.short_log("jobs", options)
    frame, expected = plant(log)
    *before, granted = decode_frame(frame, shard="jobs", log_id=log.log_id)
    assert isinstance(granted, ev.LeaseGranted)
    completed = ev.Completed(sequence_number=expected + 1, timestamp=granted.timestamp + 1, ownership=granted.ownership)
    plants.write(tmp_path, log, log.frame([*before, granted, completed]))
    replayed, [_, replay] = asyncio.run(looked_at(tmp_path, only_plan(tmp_path)))
    assert [(each.rule, each.sequence, each.item) for each in replay.named] == [
        (rule, expected, granted.ownership.sequence_id)
    ]
    assert (replayed.remark, replayed.last) == (None, expected + 1)
    assert replayed.states["completed"] == 2


@pytest.mark.parametrize("scope", [{"resource_type": "file"}, {"tenant": "t7"}, {"resource_type": "t0"}])
def test_a_pause_of_others_is_not_held_against_a_grant(tmp_path: Path, scope: dict[str, str]) -> None:
    log = plants.short_log("jobs")
    plants.write(tmp_path, log, plants.paused_leased(log, **scope)[0])
    _, [_, replay] = asyncio.run(looked_at(tmp_path, only_plan(tmp_path)))
    assert replay.named == []


async def test_grants_behind_pauses_and_takeovers_are_clean(tmp_path: Path) -> None:
    log = MemoryLog("jobs")
    clock = FakeClock()
    payloads = [
        Payload(resource_type=kind, resource_id="r", attributes={"tenant": tenant})
        for kind in ("table", "file")
        for tenant in ("t0", "t1")
    ]
    frames = []
    for resource_type, tenant in (("file", None), (None, "t0"), (None, None)):
        async with await Shard.open(log, clock=clock, options=OPTIONS) as shard:
            await shard.enqueue([NewItem(payload=payload) for payload in payloads])
            await shard.pause(resource_type=resource_type, tenant=tenant, until_ms=clock.wall_ms() + 5_000)
            held = await shard.lease(Caller(peer_id="ada"), max_items=10)
            await clock.advance(6_000)
            held += await shard.lease(Caller(peer_id="ada"), max_items=10)
            assert len(held) == len(payloads)
            for lease in held:
                await shard.complete(lease.token, caller=Caller(peer_id="ada"))
            frames = [frame async for frame in log.read(1)]
        log = log.reopen()
    await asyncio.to_thread(write_segments, tmp_path, Recorded("jobs", frames, log.log_id))
    [planned], _ = await plan(str(tmp_path))
    replayed, found = await looked_at(tmp_path, planned)
    assert [finding for each in found for finding in each.named] == []
    assert replayed.last == frames[-1].last
