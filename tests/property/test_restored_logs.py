"""Whatever a shard did, and however its log was cut into segments: what is restored is the same state, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirelay.engine.shard import Shard
from omnirelay.errors import LogDamaged
from omnirelay.log import MemoryLog
from omnirelay.replication.proving import Restored
from omnirelay.replication.restoring import restore
from omnirelay.replication.segment_origin import SegmentOrigin
from omnirelay.segments.archive import Archive
from omnirelay.segments.segment import FORMATS, SegmentFormat
from omnirelay.segments.store import ObjectStore
from omnirelay.segments.upkeep import compact
from tests.integration.restores import digest_at, segments_of, work
from tests.integration.shards import NAMESPACE, frames_of
from tests.segment_logs import quick_directory, run


async def lake(root: Path, seed: int, steps: int, kind: SegmentFormat, each: int) -> tuple[ObjectStore, str]:
    """The segments of a shard, and the digest of what it was in the end."""
    log = MemoryLog(NAMESPACE)
    async with await Shard.open(log) as shard:
        await work(shard, seed, steps)
        frames = await frames_of(log)
        expected = await digest_at(log)
    return await segments_of(root / "lake", frames, kind, each), expected


async def restored(store: ObjectStore, data: Path) -> Restored:
    return await restore(await SegmentOrigin.open(store, NAMESPACE), data, marks=store)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 16), st.integers(0, 8), st.sampled_from(FORMATS), st.integers(1, 9), st.booleans())
def test_what_is_restored_is_what_was(seed: int, steps: int, kind: SegmentFormat, each: int, merged: bool) -> None:
    async def check() -> None:
        with quick_directory() as root:
            store, expected = await lake(root, seed, steps, kind, each)
            while merged and await compact(Archive(store, NAMESPACE), segment_bytes=1 << 16, at_least=2):
                pass
            assert (await restored(store, root / "new")).digest == expected

    run(check)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(FORMATS), st.integers(1, 9), st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_one_flipped_bit_anywhere_in_a_segment_and_nothing_is_restored(
    kind: SegmentFormat, each: int, which: int, where: int
) -> None:
    async def check() -> None:
        with quick_directory() as root:
            store, _ = await lake(root, 1, 4, kind, each)
            paths = sorted((root / "lake" / NAMESPACE / "segments").iterdir())
            path = paths[which % len(paths)]
            content = bytearray(path.read_bytes())
            at = where % (len(content) * 8)
            content[at // 8] ^= 1 << at % 8
            path.write_bytes(content)
            with pytest.raises(LogDamaged, match=path.name):
                await restored(store, root / "new")
            assert list((root / "new").iterdir()) == []

    run(check)
