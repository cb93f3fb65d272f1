"""Restoring a log: what comes back is what was, or nothing does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import apsw
import msgspec
import pytest

from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.core.snapshot import dump
from omnirelay.core.state import State
from omnirelay.engine.shard import Shard
from omnirelay.errors import FailedPrecondition, LogDamaged, LogLocked, LogUnavailable, NotFound
from omnirelay.log import SqliteLog
from omnirelay.log.files import WriterLock
from omnirelay.log.snapshots import write_snapshot
from omnirelay.replication.origins import BackupOrigin, Origin
from omnirelay.replication.proving import Restored
from omnirelay.replication.restoring import restore
from omnirelay.replication.segment_origin import SegmentOrigin
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.errors import SegmentsDamaged, SegmentStoreUnusable
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.segment import FORMATS, SegmentFormat
from omnirelay.segments.store import ObjectStore
from omnirelay.segments.upkeep import compact, expire
from omnirelay.segments.verification import verify
from tests.integration.nodes import Http
from tests.integration.restores import (
    add_snapshot,
    contents,
    digest_at,
    digest_in,
    segments_of,
    shard_with_past,
    trim,
    work,
)
from tests.integration.shards import NAMESPACE, enqueued, events_of, kinds_of, one_lease
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.integration.test_replication_node import sink as settings_of
from tests.patience import PATIENCE_S
from tests.segment_logs import S3Server

ROOT = Path(__file__).parents[2]


async def restored(store: ObjectStore, data: Path, base: Origin | None = None, above: int | None = None) -> Restored:
    return await restore(await SegmentOrigin.open(store, NAMESPACE, base), data, marks=store, above=above)


# -- what comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["file", "s3"])
@pytest.mark.parametrize("kind", FORMATS)
async def test_a_node_comes_back_from_what_its_sink_wrote(
    tmp_path: Path, kind: SegmentFormat, where: str, request: pytest.FixtureRequest
) -> None:
    server: S3Server | None = request.getfixturevalue("s3") if where == "s3" else None
    url = str(tmp_path / "lake") if server is None else server.address(f"{tmp_path.name}-{kind}")
    options = {} if server is None else server.options
    lake = settings_of("lake", "objects", url=url, format=kind, options=options, compact_at=3)
    async with node_with(lake, data=tmp_path / "data", namespaces=(NAMESPACE,)) as node, Http(node, NAMESPACE) as http:
        for _ in range(4):
            await http.call("enqueue", {"items": [ITEM] * 3})
            await http.call("lease", {})
            await caught_up(node)
        log = node.components[0].shard().log
        expected = await digest_at(log)
        last = (await log.head()).position
    store = await connect(url, options, writable=False)
    back = await restored(store, tmp_path / "new")
    assert (back.last, back.chain, back.digest) == (last.sequence, last.chain.hex(), expected)
    assert await digest_in(tmp_path / "new") == expected
    # The node goes on, and so do its segments, in one history.
    async with node_with(lake, data=tmp_path / "new", namespaces=(NAMESPACE,)) as node, Http(node, NAMESPACE) as http:
        await http.call("enqueue", ITEM)
        await caught_up(node)
        assert "GenerationStarted" in await kinds_of(node.components[0].shard().log, last.sequence + 1)
    report = await verify(store, NAMESPACE)
    assert (report.generation, report.begin) == (2, 0)
    assert report.position.sequence > last.sequence + GENERATION_JUMP


async def test_a_compacted_lake_restores_to_the_same_state(tmp_path: Path) -> None:
    frames = await shard_with_past(tmp_path / "data")
    store = await segments_of(tmp_path / "lake", frames, each=2)
    while await compact(Archive(store, NAMESPACE), segment_bytes=1 << 20, at_least=2):
        pass
    assert (await restored(store, tmp_path / "new")).digest == await digest_in(tmp_path / "data")


async def test_fences_rise_above_all_that_the_lost_node_gave_out(tmp_path: Path) -> None:
    """The segments lag: the node went on to grant leases of which they know nothing."""
    data = tmp_path / "data"
    early = await shard_with_past(data, steps=3)
    store = await segments_of(tmp_path / "lake", early)
    await shard_with_past(data, seed=2, steps=20)
    log = SqliteLog.open(data, NAMESPACE, read_only=True)
    lost = max(event.sequence_number for event in await events_of(log))
    await log.close()
    assert lost > early[-1].last
    back = await restored(store, tmp_path / "new")
    assert (back.last, back.digest) == (early[-1].last, await digest_in(data, early[-1].last))
    async with await Shard.open(SqliteLog.open(tmp_path / "new", NAMESPACE)) as shard:
        [item] = await enqueued(shard)
        lease = await one_lease(shard)
        assert item > GENERATION_JUMP
        assert lease.token.fence is not None
        assert lease.token.fence > lost + GENERATION_JUMP // 2
        assert "GenerationStarted" in await kinds_of(shard.log, early[-1].last + 1)


async def test_two_restores_from_one_source_never_share_a_fence(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    fences: list[set[int]] = []
    for name in ("one", "two", "three"):
        await restored(store, tmp_path / name)
        async with await Shard.open(SqliteLog.open(tmp_path / name, NAMESPACE)) as shard:
            begin = shard.last_sequence
            await work(shard)
            fences.append({event.sequence_number for event in await events_of(shard.log, begin)})
    for earlier, later in pairwise(fences):
        assert max(earlier) < min(later)


class ReadOnlyStore(LocalObjectStore):
    async def put_if_absent(self, key: str, data: bytes) -> bool:
        raise SegmentStoreUnusable("no right to write")


async def test_a_source_that_takes_no_mark_needs_the_word_of_the_operator(tmp_path: Path) -> None:
    await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    store = ReadOnlyStore(tmp_path / "lake")
    with pytest.raises(FailedPrecondition, match="--above"):
        await restored(store, tmp_path / "new")
    assert contents(tmp_path / "new") == {}
    assert (await restored(store, tmp_path / "new", above=10**9)).fences_above == 10**9
    async with await Shard.open(SqliteLog.open(tmp_path / "new", NAMESPACE)) as shard:
        assert shard.last_sequence > 10**9 + GENERATION_JUMP


async def test_what_sinks_of_the_lost_node_confirmed_counts_as_given_out(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    memory = settings_of("seen", "file")
    async with node_with(memory, data=tmp_path / "new", namespaces=("other", NAMESPACE)) as node:
        async with Http(node, NAMESPACE) as http:
            await http.call("enqueue", {"items": [ITEM] * 200})
        await caught_up(node)
        confirmed = node.components[1].shard().last_sequence
    for left in sorted((tmp_path / "new" / NAMESPACE).rglob("*"), reverse=True):
        left.unlink()
    back = await restored(store, tmp_path / "new")
    assert back.fences_above == confirmed > back.last
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "replication.db").write_bytes(b"no database" * 100)
    with pytest.raises(LogUnavailable, match="may know how far the lost log had come"):
        await restored(store, tmp_path / "three")


# -- segments without a beginning ----------------------------------------------------------------


async def trimmed_lake(tmp_path: Path, kept: int = 3) -> tuple[ObjectStore, int]:
    """Segments of which only the newest `kept` are there; where they begin."""
    frames = await shard_with_past(tmp_path / "data")
    store = await segments_of(tmp_path / "lake", frames, each=2)
    archive = Archive(store, NAMESPACE)
    manifest = await archive.newest()
    assert manifest is not None
    entries = manifest.recent
    old = {entry.name for entry in entries[:-kept]}
    changed = msgspec.structs.replace(manifest.with_recent(entries[-kept:]), anchor=entries[-kept].before)
    await archive.change(lambda newest: changed if newest == manifest else None)
    assert old
    return store, entries[-kept].before.sequence


async def test_segments_without_a_beginning_need_a_base(tmp_path: Path) -> None:
    store, begin = await trimmed_lake(tmp_path)
    with pytest.raises(FailedPrecondition, match=f"begin behind event {begin}: .* as the base"):
        await restored(store, tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_a_backup_and_the_segments_behind_it_are_the_whole_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await shard_with_past(data, steps=6)
    log = SqliteLog.open(data, NAMESPACE, read_only=True)
    await log.backup(tmp_path / "backup" / NAMESPACE)
    behind = (await log.head()).position.sequence
    await log.close()
    frames = await shard_with_past(data, seed=2)
    store = await segments_of(tmp_path / "lake", [frame for frame in frames if frame.last > behind - 10], each=2)
    base = BackupOrigin(tmp_path / "backup", NAMESPACE)
    back = await restored(store, tmp_path / "new", base)
    assert back.last == frames[-1].last > behind
    assert back.digest == await digest_in(data)


async def test_a_base_that_ends_before_the_segments_begin_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    early = await shard_with_past(data, steps=1)
    log = SqliteLog.open(data, NAMESPACE, read_only=True)
    await log.backup(tmp_path / "backup" / NAMESPACE)
    await log.close()
    frames = await shard_with_past(data, seed=2)
    store = await segments_of(tmp_path / "lake", frames[len(early) + 3 :])
    with pytest.raises(FailedPrecondition, match="the events between them are nowhere"):
        await restored(store, tmp_path / "new", BackupOrigin(tmp_path / "backup", NAMESPACE))
    await shard_with_past(tmp_path / "other")
    with pytest.raises(LogDamaged, match="do not belong together"):
        await restored(store, tmp_path / "new", BackupOrigin(tmp_path / "other", NAMESPACE))
    assert contents(tmp_path / "new") == {}


async def test_segments_that_expired_altogether_cannot_be_restored(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"), each=2)
    archive = Archive(store, NAMESPACE, clock=lambda: 1 << 50)
    while await expire(archive, retention_ms=1):
        pass
    with pytest.raises(FailedPrecondition, match="as the base"):
        await restored(store, tmp_path / "new")
    with pytest.raises(NotFound):
        await restored(LocalObjectStore(tmp_path / "nothing"), tmp_path / "new")


# -- backups -------------------------------------------------------------------------------------


async def test_a_trimmed_log_comes_back_with_its_snapshots(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await shard_with_past(data, steps=5)
    first = await add_snapshot(data)
    await shard_with_past(data, seed=2, steps=5)
    await add_snapshot(data)
    await shard_with_past(data, seed=3, steps=5)
    await trim(data, first)
    origin = BackupOrigin(data, NAMESPACE)
    back = await restore(origin, tmp_path / "new", marks=None)
    assert back.snapshots == 2
    assert 0 < back.horizon < first
    assert back.digest == await digest_in(data) == await digest_in(tmp_path / "new")
    async with await Shard.open(SqliteLog.open(tmp_path / "new", NAMESPACE)) as shard:
        await work(shard)


async def test_a_snapshot_that_is_another_state_than_the_events_lead_to_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await shard_with_past(data)
    sequence = await add_snapshot(data)
    header, chunks = dump(State())
    written = [header, *chunks]
    write_snapshot(data / NAMESPACE, sequence, header, written[1:])
    connection = apsw.Connection(str(data / NAMESPACE / "leases.db"))
    connection.execute("update snapshots set digest = ?", (sha256(b"".join(written)).hexdigest(),))
    connection.close()
    with pytest.raises(LogDamaged, match=f"the snapshot at event {sequence} .* another state"):
        await restore(BackupOrigin(data, NAMESPACE), tmp_path / "new", marks=None)
    assert contents(tmp_path / "new") == {}


def spoiled(data: Path, sequence: int) -> Path:
    path = data / NAMESPACE / "snapshots" / f"{sequence:020d}" / "header"
    path.write_bytes(path.read_bytes()[:-1])
    return path


async def test_a_snapshot_that_cannot_be_read_is_left_behind_as_long_as_the_log_can_do_without_it(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    await shard_with_past(data, steps=5)
    first = await add_snapshot(data)
    await shard_with_past(data, seed=2, steps=5)
    second = await add_snapshot(data)
    served = await digest_in(data)
    spoiled(data, first)
    back = await restore(BackupOrigin(data, NAMESPACE), tmp_path / "new", marks=None)
    assert (back.snapshots, back.digest) == (1, served)
    await trim(data, first)
    path = spoiled(data, second)
    with pytest.raises(LogDamaged, match=str(path)):
        BackupOrigin(data, NAMESPACE)


async def test_an_empty_log_can_be_restored(tmp_path: Path) -> None:
    await SqliteLog.open(tmp_path / "data", NAMESPACE).close()
    back = await restore(BackupOrigin(tmp_path / "data", NAMESPACE), tmp_path / "new", marks=None)
    assert (back.last, back.events) == (0, 0)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_flipped_bit_is_named_and_nothing_is_restored(tmp_path: Path, kind: SegmentFormat) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"), kind)
    [_, path, *_] = sorted((tmp_path / "lake" / NAMESPACE / "segments").iterdir())
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SegmentsDamaged, match=path.name):
        await restored(store, tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())


async def test_a_missing_segment_is_named_and_nothing_is_restored(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    [_, path, *_] = sorted((tmp_path / "lake" / NAMESPACE / "segments").iterdir())
    path.unlink()
    with pytest.raises(SegmentsDamaged, match=path.name):
        await restored(store, tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())


async def test_a_segment_left_out_of_the_manifest_is_a_gap(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    archive = Archive(store, NAMESPACE)
    manifest = await archive.newest()
    assert manifest is not None
    [first, _, *others] = manifest.recent
    gapped = manifest.with_recent((first, *others))
    await archive.change(lambda newest: gapped if newest == manifest else None)
    with pytest.raises(LogDamaged, match="frames are missing or out of order"):
        await restored(store, tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())


async def test_a_place_that_is_not_empty_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    await shard_with_past(tmp_path / "new", seed=2)
    before, marks = contents(tmp_path / "new"), contents(tmp_path / "lake")
    with pytest.raises(FailedPrecondition, match="is not empty"):
        await restored(store, tmp_path / "new")
    assert (contents(tmp_path / "new"), contents(tmp_path / "lake")) == (before, marks)
    # An empty directory is as good as none.
    (tmp_path / "bare" / NAMESPACE).mkdir(parents=True)
    await restored(store, tmp_path / "bare")


async def test_a_node_that_starts_meanwhile_keeps_its_place(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    origin = await SegmentOrigin.open(store, NAMESPACE)
    opened: list[SqliteLog] = []

    def start(what: str, done: int, total: int) -> None:
        if not opened:
            opened.append(SqliteLog.open(tmp_path / "new", NAMESPACE))

    with pytest.raises(FailedPrecondition, match="is not empty"):
        await restore(origin, tmp_path / "new", marks=store, progress=start)
    await opened[0].close()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [NAMESPACE]


async def test_two_restores_into_one_place_do_not_meet(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    building = tmp_path / "new" / f".{NAMESPACE}.restoring"
    building.mkdir(parents=True)
    held = WriterLock(building / "lock")
    with pytest.raises(LogLocked):
        await restored(store, tmp_path / "new")
    held.release()
    await restored(store, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == [NAMESPACE]


# -- kill -9 -------------------------------------------------------------------------------------


def _killed(lake: Path, data: Path, where: str) -> subprocess.CompletedProcess[bytes]:
    child = [sys.executable, "-m", "tests.integration.restore_child", str(lake), str(data), NAMESPACE, where]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(child, cwd=ROOT, env=env, capture_output=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("where", ["copy", "prove", "rename"])
async def test_a_restore_that_is_killed_leaves_nothing_to_serve_and_can_be_repeated(tmp_path: Path, where: str) -> None:
    frames = await shard_with_past(tmp_path / "data")
    store = await segments_of(tmp_path / "lake", frames)
    killed = await asyncio.to_thread(_killed, tmp_path / "lake", tmp_path / "new", where)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # What is left is no log, neither by the name that a node looks for nor by any that a tool would find.
    assert not (tmp_path / "new" / NAMESPACE).exists()
    assert list((tmp_path / "new").glob("*/leases.db")) == []
    assert contents(tmp_path / "new") != {}
    back = await restored(store, tmp_path / "new")
    assert back.last == frames[-1].last
    assert [path.name for path in (tmp_path / "new").iterdir()] == [NAMESPACE]
    assert await digest_in(tmp_path / "new") == await digest_in(tmp_path / "data")


async def test_a_restore_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    store = await segments_of(tmp_path / "lake", await shard_with_past(tmp_path / "data"))
    origin = await SegmentOrigin.open(store, NAMESPACE)
    begun = asyncio.Event()
    restoring = asyncio.create_task(
        restore(origin, tmp_path / "new", marks=store, progress=lambda what, done, total: begun.set())
    )
    await begun.wait()
    restoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    assert list((tmp_path / "new").iterdir()) == []
