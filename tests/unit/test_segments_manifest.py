"""The manifest by itself: small whatever it lists, and read only when it is what was written."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.errors import NotFound
from omnirelay.segments.archive import Archive
from omnirelay.segments.errors import SegmentsDamaged
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.manifest import (
    FAN,
    Before,
    Entry,
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_key,
    version_of,
)
from omnirelay.segments.reader import SegmentReader, shards_in
from omnirelay.segments.upkeep import expire, purge, small_row, sweep
from tests.segment_logs import SHARD, quick_directory

CHAIN = "ab" * 32


def entry(number: int, *, raw_bytes: int = 10, extension: str = "parquet") -> Entry:
    """A segment of one event, which exists only as its entry."""
    return Entry(
        name=f"{number:020d}-{number:020d}-1-abababab-{number:016x}.{extension}",
        first=number,
        last=number,
        epoch=1,
        generation=1,
        chain=CHAIN,
        before=Before(number - 1, CHAIN, 1),
        events=1,
        frames=1,
        bytes=1,
        raw_bytes=raw_bytes,
        from_ms=number,
        to_ms=number,
        digest=CHAIN,
    )


def manifest(**fields: object) -> Manifest:
    known = {"version": 1, "shard": SHARD, "log_id": "x", "writer": "", "written_ms": 0, "epoch": 1}
    return Manifest(**{"anchor": Before(0, CHAIN, 1), **known, **fields})  # type: ignore[arg-type]


async def fill(archive: Archive, count: int, step: int) -> Manifest:
    newest = manifest()
    for first in range(1, count + 1, step):
        added = tuple(entry(number) for number in range(first, first + step))

        def longer(base: Manifest | None, added: tuple[Entry, ...] = added) -> Manifest:
            start = base or manifest()
            return start.with_recent((*start.recent, *added))

        changed = await archive.change(longer)
        assert changed is not None
        newest = changed
    return newest


def test_a_manifest_of_very_many_segments_is_small_and_lists_them_all() -> None:
    count = 3 * FAN * FAN

    async def play(directory: Path) -> None:
        archive = Archive(LocalObjectStore(directory), SHARD)
        newest = await fill(archive, count, FAN)
        assert newest.segments == count
        assert all(len(level) < 2 * FAN for level in newest.levels)
        assert len(newest.levels) == 3
        assert len(encode_manifest(newest)) < 100_000
        listed = [each.first async for each in archive.segments(newest)]
        assert listed == list(range(1, count + 1))
        some = [each.first async for each in archive.segments(newest, 5_000, 5_070)]
        assert some == list(range(5_000, 5_071))

    with quick_directory() as directory:
        asyncio.run(play(directory))


def test_retention_reaches_into_indexes_and_no_object_is_left_over() -> None:
    count = FAN * FAN + 5 * FAN

    async def play(directory: Path) -> None:
        archive = Archive(LocalObjectStore(directory), SHARD, clock=lambda: count)
        await fill(archive, count, FAN)
        dropped = 0
        for _ in range(2):
            dropped += await expire(archive, retention_ms=count - 300)
            await purge(archive, grace_ms=0)
        assert dropped == 299
        newest = await archive.newest()
        assert newest is not None
        assert newest.anchor == Before(299, CHAIN, 1)
        assert [each.first async for each in archive.segments(newest)] == list(range(300, count + 1))
        await sweep(archive, grace_ms=-(1 << 50))
        objects = {each.key.rpartition("/")[2] for each in await archive.store.list(f"{SHARD}/index")}
        assert objects == await indexes_of(archive, newest)

    with quick_directory() as directory:
        asyncio.run(play(directory))


async def indexes_of(archive: Archive, newest: Manifest) -> set[str]:
    names = set()
    waiting = [(level, each) for level, each in newest.oldest_first() if level]
    while waiting:
        level, each = waiting.pop()
        names.add(each.name)
        if level > 1:
            waiting += [(level - 1, inner) for inner in await archive.entries_in(each)]
    return names


@given(
    st.lists(st.tuples(st.integers(1, 120), st.sampled_from(["parquet", "jsonl.zst"])), max_size=20),
    st.integers(2, 5),
)
def test_what_is_merged_are_neighbours_of_one_format_that_fit(sizes: list[tuple[int, str]], at_least: int) -> None:
    entries = [entry(at, raw_bytes=size, extension=kind) for at, (size, kind) in enumerate(sizes, 1)]
    row = small_row(entries, 100, at_least)
    if not row:
        return
    assert len(row) >= at_least
    assert sum(each.raw_bytes for each in row) <= 100
    assert len({each.name.partition(".")[2] for each in row}) == 1
    at = entries.index(row[0])
    assert tuple(entries[at : at + len(row)]) == row


def test_a_long_enough_row_is_found_behind_large_segments() -> None:
    entries = [entry(1, raw_bytes=500), entry(2), entry(3, raw_bytes=500), *(entry(at) for at in range(4, 9))]
    assert [each.first for each in small_row(entries, 100, 4)] == [4, 5, 6, 7, 8]
    assert small_row(entries, 100, 6) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"{", "cannot be read"),
        (lambda data: data.replace(b'"version":1', b'"version":2'), "says that it is version 2"),
        (lambda data: data.replace(b'"shard":"jobs"', b'"shard":"jots"'), "of 'jots'"),
        (lambda data: data.replace(b'"formatVersion":1', b'"formatVersion":9'), "upgrade omnirelay"),
    ],
)
def test_a_manifest_that_is_not_what_was_written_is_refused(change: object, words: str) -> None:
    data = encode_manifest(manifest())
    key = manifest_key(SHARD, 1)
    assert decode_manifest(data, key=key, shard=SHARD) == manifest()
    assert callable(change)
    with pytest.raises(SegmentsDamaged, match=words):
        decode_manifest(change(data), key=key, shard=SHARD)


def test_no_bit_of_a_manifest_changes_unnoticed() -> None:
    written = manifest(levels=((entry(1),),), anchor=Before(0, "0f" * 32, 1))
    data, key = encode_manifest(written), manifest_key(SHARD, 1)
    for at in range(8 * len(data)):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        with suppress(SegmentsDamaged):
            found = decode_manifest(bytes(changed), key=key, shard=SHARD)
            assert found == written, f"bit {at % 8} of byte {at // 8}"


def test_a_manifest_from_before_there_were_seals_is_read() -> None:
    data = msgspec.json.encode(manifest())
    assert decode_manifest(data, key=manifest_key(SHARD, 1), shard=SHARD) == manifest()


async def test_an_index_that_is_not_what_was_written_is_refused(tmp_path: Path) -> None:
    archive = Archive(LocalObjectStore(tmp_path), SHARD)
    newest = await fill(archive, 2 * FAN, 2 * FAN)
    [path] = (tmp_path / SHARD / "index").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"epoch":1', b'"epoch":2', 1))
    with pytest.raises(SegmentsDamaged, match=r"the index .* is not what was written"):
        [each async for each in archive.segments(newest)]


async def test_a_manifest_that_somebody_removed_is_missed(tmp_path: Path) -> None:
    archive = Archive(LocalObjectStore(tmp_path), SHARD)
    await fill(archive, 2, 1)
    for path in (tmp_path / SHARD / "manifest").iterdir():
        path.unlink()
    with pytest.raises(SegmentsDamaged, match="manifest 2 of 'jobs' is gone"):
        await archive.newest()


async def test_a_shard_without_segments_is_said_to_have_none(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    with pytest.raises(NotFound, match="no segments of 'jobs'"):
        await SegmentReader(store, SHARD).manifest()
    await fill(Archive(store, SHARD), 1, 1)
    assert await shards_in(store) == [SHARD]


def test_only_names_of_manifests_are_taken_for_one() -> None:
    assert version_of(manifest_key(SHARD, 7)) == 7
    assert version_of("jobs/manifest/7.json") is None
    assert version_of("jobs/manifest/notes.txt") is None


def test_a_manifest_says_where_it_ends() -> None:
    empty = manifest()
    assert empty.last == 0
    assert msgspec.structs.replace(empty, anchor=Before(9, None, 1)).end is None
    assert empty.with_recent((entry(1), entry(2))).last == 2
    assert msgspec.structs.replace(empty, levels=((), (entry(7),))).last == 7
