"""Reading segments back and proving them: ranges, damage of every kind, and what is named then."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from omnirelay.errors import LogTrimmed
from omnirelay.log.base import Frame
from omnirelay.segments.archive import Archive
from omnirelay.segments.errors import SegmentsDamaged
from omnirelay.segments.lines import split_lines
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.manifest import FAN, Entry, Manifest
from omnirelay.segments.parquet import encode_table, read_table
from omnirelay.segments.reader import SegmentReader
from omnirelay.segments.segment import FORMATS, SegmentFormat
from omnirelay.segments.upkeep import compact, expire, purge
from omnirelay.segments.verification import verify
from omnirelay.segments.writer import SegmentWriter
from tests.segment_logs import SHARD, START_MS, FrameLog, log_of


async def written(root: Path, log: FrameLog, kind: SegmentFormat = "parquet", *, each: int = 2) -> LocalObjectStore:
    store = LocalObjectStore(root)
    writer = SegmentWriter(Archive(store, SHARD), kind=kind, region="eu")
    for at in range(0, len(log.frames), each):
        await writer.append(log.frames[at : at + each])
    return store


async def frames_of(reader: SegmentReader, first: int | None = None, last: int | None = None) -> list[Frame]:
    return [frame async for frame in reader.frames(first, last)]


@pytest.mark.parametrize("kind", FORMATS)
async def test_everything_is_read_back_and_proved(tmp_path: Path, kind: SegmentFormat) -> None:
    log = log_of(1, 5, 30, 2)
    log.commit(2, jump=1 << 32)
    log.commit_raw(
        b'{"eventType":"Teleported","sequenceNumber":%d,"timestamp":1700000000000}' % (log.last + 1), schema=9
    )
    store = await written(tmp_path, log, kind)
    seen: list[tuple[int, int]] = []
    report = await verify(store, SHARD, lambda done, total: seen.append((done, total)))
    assert await frames_of(SegmentReader(store, SHARD)) == log.frames
    assert (report.segments, report.frames, report.events) == (3, 6, 41)
    assert (report.position.sequence, report.position.chain) == (log.last, log.end.chain)
    assert (report.generation, report.anchored, report.begin) == (2, True, 0)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    names = sorted(path.name for path in (tmp_path / SHARD / "segments").iterdir())
    assert names[0].startswith(f"{1:020d}-{6:020d}-1-{log.frames[1].chain.hex()[:8]}-")


async def test_a_range_is_read_by_frames_and_by_events(tmp_path: Path) -> None:
    log = log_of(4, 4, 4, 4, 4)
    reader = SegmentReader(await written(tmp_path, log), SHARD)
    assert await frames_of(reader, 6, 13) == log.frames[1:4]
    assert await frames_of(reader, 20) == log.frames[4:]
    assert await frames_of(reader, 21) == []
    batches = [batch async for batch in reader.batches(6, 13, ["sequence", "event_type"])]
    table = pa.Table.from_batches(batches)
    assert table["sequence"].to_pylist() == list(range(6, 14))
    assert table.column_names == ["sequence", "event_type"]
    assert [(entry.first, entry.last) for entry in await reader.segments(6, 13)] == [(1, 8), (9, 16)]


@pytest.mark.parametrize("kind", FORMATS)
async def test_merged_segments_are_the_same_log_with_the_same_rows(tmp_path: Path, kind: SegmentFormat) -> None:
    log = log_of(3, 3, 3, 3)
    store = await written(tmp_path, log, kind, each=1)
    assert await compact(Archive(store, SHARD), segment_bytes=1 << 20, at_least=2) == 4
    assert await frames_of(SegmentReader(store, SHARD)) == log.frames
    report = await verify(store, SHARD)
    assert (report.segments, report.frames) == (1, 4)
    if kind == "parquet":
        [entry] = await SegmentReader(store, SHARD).segments()
        table = read_table(await store.get(f"{SHARD}/segments/{entry.name}"))
        assert set(table["region"].to_pylist()) == {"eu"}  # No frame says that, only the rows.


async def test_what_was_dropped_is_said_to_be_gone(tmp_path: Path) -> None:
    log = FrameLog()
    for at in range(6):
        log.commit(2, time_ms=START_MS + at)
    store = await written(tmp_path, log)
    archive = Archive(store, SHARD, clock=lambda: START_MS + 10)
    assert await expire(archive, retention_ms=8) == 1
    reader = SegmentReader(store, SHARD)
    with pytest.raises(LogTrimmed, match="begin behind event 4, 1 is not there"):
        await frames_of(reader, 1)
    assert await frames_of(reader) == log.frames[2:]
    assert (await verify(store, SHARD)).begin == 4


async def dropped_meanwhile(store: LocalObjectStore, retention_ms: int) -> None:
    """Retention drops segments, and their grace runs out at once."""
    assert await expire(Archive(store, SHARD, clock=lambda: START_MS + 10), retention_ms=retention_ms)
    assert await purge(Archive(store, SHARD, clock=lambda: 1 << 50), grace_ms=0)


@pytest.mark.parametrize("first", [None, 1])
async def test_what_is_dropped_while_somebody_reads_is_not_passed_over(tmp_path: Path, first: int | None) -> None:
    log = FrameLog()
    for at in range(6):
        log.commit(2, time_ms=START_MS + at)
    store = await written(tmp_path, log, each=1)
    reader = SegmentReader(store, SHARD)
    frames, batches = reader.frames(first), reader.batches(first)
    assert await anext(frames) == log.frames[0]
    await anext(batches)
    await dropped_meanwhile(store, 6)
    for reading in (frames, batches):
        with pytest.raises(LogTrimmed, match="begin behind event 8, 3 is not there") as caught:
            await anext(reading)
        assert (caught.value.details["sequence"], caught.value.details["found"]) == (3, 8)


async def test_what_is_dropped_behind_a_reader_does_not_stop_it(tmp_path: Path) -> None:
    log = FrameLog()
    for at in range(6):
        log.commit(2, time_ms=START_MS + at)
    store = await written(tmp_path, log, each=1)
    reading = SegmentReader(store, SHARD).frames(1)
    seen = [await anext(reading) for _ in range(4)]
    assert await compact(Archive(store, SHARD), segment_bytes=1 << 20, at_least=2) == 6
    assert await purge(Archive(store, SHARD, clock=lambda: 1 << 50), grace_ms=0)
    assert seen + [frame async for frame in reading] == log.frames


async def test_a_log_that_was_trimmed_before_is_followed_from_where_it_begins(tmp_path: Path) -> None:
    log = log_of(2, 3, 4)
    trimmed = FrameLog()
    trimmed.frames = log.frames[1:]
    store = await written(tmp_path, trimmed)
    report = await verify(store, SHARD)
    assert (report.anchored, report.begin, report.events) == (False, 2, 7)
    assert await frames_of(SegmentReader(store, SHARD)) == log.frames[1:]


# -- damage --------------------------------------------------------------------------------------


def second_segment(root: Path) -> Path:
    return sorted((root / SHARD / "segments").iterdir())[1]


@pytest.mark.parametrize("kind", FORMATS)
async def test_any_flipped_byte_of_a_segment_is_found_and_named(tmp_path: Path, kind: SegmentFormat) -> None:
    store = await written(tmp_path, log_of(2, 2, 2, 2), kind)
    path = second_segment(tmp_path)
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SegmentsDamaged, match="its digest differs") as caught:
            await verify(store, SHARD)
        assert (caught.value.details["segment"], caught.value.details["sequence"]) == (path.name, 5)
    path.write_bytes(whole)
    await verify(store, SHARD)


async def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    store = await written(tmp_path, log_of(2, 2, 2, 2))
    path = second_segment(tmp_path)
    path.unlink()
    with pytest.raises(SegmentsDamaged, match="is missing, although the manifest lists it") as caught:
        await verify(store, SHARD)
    assert caught.value.details["segment"] == path.name
    with pytest.raises(SegmentsDamaged, match="although the manifest"):
        await frames_of(SegmentReader(store, SHARD))


async def indexed(root: Path) -> tuple[LocalObjectStore, Path]:
    """So many segments that the first of them are listed by an index; where that lies."""
    store = await written(root, log_of(*[1] * 2 * FAN), "jsonl", each=1)
    [index] = (root / SHARD / "index").iterdir()
    return store, index


async def test_a_missing_index_is_damage_and_named(tmp_path: Path) -> None:
    store, index = await indexed(tmp_path)
    assert (await verify(store, SHARD)).segments == 2 * FAN
    index.unlink()
    with pytest.raises(SegmentsDamaged, match=f"index {index.name} of '{SHARD}' is missing, although") as caught:
        await verify(store, SHARD)
    assert (caught.value.details["segment"], caught.value.details["sequence"]) == (index.name, 1)
    with pytest.raises(SegmentsDamaged, match=f"{index.name}.*although the manifest of '{SHARD}' lists it"):
        await SegmentReader(store, SHARD).segments()


async def test_an_index_that_a_newer_manifest_does_without_is_no_damage(tmp_path: Path) -> None:
    """The manifest that a walk began with is the last one for a while: what it lists may be replaced and removed."""
    store, index = await indexed(tmp_path)
    replaced = False

    async def replace(key: str) -> None:
        nonlocal replaced
        if "/index/" in key and not replaced:
            replaced = True
            other = await Archive(store, SHARD).index(await Archive(store, SHARD).entries_in(entry))
            await forged(store, lambda newest: swapped(newest, other))
            index.unlink()

    def swapped(newest: Manifest, other: Entry) -> Manifest:
        return msgspec.structs.replace(newest, levels=(newest.levels[0], (other,)))

    [entry] = (await SegmentReader(store, SHARD).manifest()).levels[1]
    meddled = Meddled(tmp_path, replace)
    assert (await verify(meddled, SHARD)).segments == 2 * FAN
    assert replaced


class Meddled(LocalObjectStore):
    """A store in which somebody does something before an object is read."""

    def __init__(self, root: Path, before: Callable[[str], Awaitable[None]]) -> None:
        super().__init__(root)
        self._before = before

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        await self._before(key)
        return await super().get(key, start, end)


async def forged(store: LocalObjectStore, change: Callable[[Manifest], Manifest]) -> None:
    """Somebody rewrites the manifest, too."""

    def changed(newest: Manifest | None) -> Manifest:
        assert newest is not None
        return change(newest)

    await Archive(store, SHARD).change(changed)


async def test_a_segment_that_is_no_longer_listed_leaves_a_gap_that_is_found(tmp_path: Path) -> None:
    store = await written(tmp_path, log_of(2, 2, 2, 2, 2, 2))
    await forged(store, lambda newest: newest.with_recent((newest.recent[0], newest.recent[2])))
    with pytest.raises(SegmentsDamaged, match="follows event 8, but 4 comes before it"):
        await verify(store, SHARD)


def with_digest(newest: Manifest, at: int, data: bytes) -> Manifest:
    entry = msgspec.structs.replace(newest.recent[at], digest=hashlib.sha256(data).hexdigest(), bytes=len(data))
    return newest.with_recent((*newest.recent[:at], entry, *newest.recent[at + 1 :]))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("payload_resource_id", "forged", "column payload_resource_id of event 11 is 'forged', the frame says"),
        ("chain", b"x" * 32, "does not continue the chain"),
        ("frame_last", 99, "is damaged"),
    ],
)
async def test_rows_that_were_forged_with_their_digest_are_found(
    tmp_path: Path, column: str, value: object, words: str
) -> None:
    store = await written(tmp_path, log_of(5, 5, 5, 5))
    path = second_segment(tmp_path)
    table = read_table(path.read_bytes())
    field = table.schema.field(column)
    values = [value if each is not None else None for each in table[column].to_pylist()]
    at = table.schema.get_field_index(column)
    data = encode_table(table.set_column(at, field, pa.array(values, field.type)))
    path.write_bytes(data)
    await forged(store, lambda newest: with_digest(newest, 1, data))
    with pytest.raises(SegmentsDamaged, match=words) as caught:
        await verify(store, SHARD)
    assert caught.value.details["segment"] == path.name
    assert caught.value.code == "error.segments.damaged"


async def replaced(root: Path, store: LocalObjectStore, data: bytes) -> None:
    """Somebody rewrites the second segment, and its digest in the manifest."""
    second_segment(root).write_bytes(data)
    await forged(store, lambda newest: with_digest(newest, 1, data))


async def test_a_column_that_was_removed_is_found_unless_it_was_empty(tmp_path: Path) -> None:
    store = await written(tmp_path, log_of(5, 5, 5, 5))
    whole = read_table(second_segment(tmp_path).read_bytes())
    empty = [name for name in whole.column_names if whole[name].null_count == whole.num_rows]
    assert empty
    await replaced(tmp_path, store, encode_table(whole.drop_columns(empty)))  # As a version wrote it that had none.
    assert (await verify(store, SHARD)).events == 20
    for name in ("event_type", "peer_id", "payload_resource_id"):
        await replaced(tmp_path, store, encode_table(whole.drop_columns([name])))
        with pytest.raises(SegmentsDamaged, match=f"column {name} is missing, the frame of event") as caught:
            await verify(store, SHARD)
        assert caught.value.details["segment"] == second_segment(tmp_path).name


async def test_what_an_older_version_put_aside_as_unknown_is_there(tmp_path: Path) -> None:
    store = await written(tmp_path, log_of(5, 5, 5, 5))
    whole = read_table(second_segment(tmp_path).read_bytes())
    peers = whole["peer_id"].to_pylist()
    aside = [None if peer is None else f'{{"peerId":"{peer}"}}' for peer in peers]
    extra = whole.schema.get_field_index("extra")
    older = whole.set_column(extra, whole.schema.field(extra), pa.array(aside, pa.string()))
    # It had no such column, or had it for other events only.
    emptied = older.schema.get_field_index("peer_id")
    nulls = older.set_column(emptied, older.schema.field(emptied), pa.nulls(len(peers), pa.string()))
    for table in (older.drop_columns(["peer_id"]), nulls):
        await replaced(tmp_path, store, encode_table(table))
        assert (await verify(store, SHARD)).events == 20


async def test_a_line_that_was_forged_with_its_digest_is_found(tmp_path: Path) -> None:
    store = await written(tmp_path, log_of(5, 5, 5, 5), "jsonl")
    lines = split_lines(second_segment(tmp_path).read_bytes())
    lines[2] = msgspec.json.encode(msgspec.json.decode(lines[2]) | {"eventType": "Completed"})
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(b"\n".join([*lines, b""]))
    await replaced(tmp_path, store, out.getvalue().to_pybytes())
    with pytest.raises(SegmentsDamaged, match="the line of event 13 is not what its frame says: eventType") as caught:
        await verify(store, SHARD)
    assert (caught.value.details["segment"], caught.value.details["sequence"]) == (second_segment(tmp_path).name, 13)
