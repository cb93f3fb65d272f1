"""Commands that are pointed at a place without segments, or without tables: one exit code, and a word on where to look.

Nothing here starts Spark, and neither do the commands.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from omnirelay.cli.app import app
from omnirelay.errors import NotFound
from omnirelay.lakehouse.bronze_source import find_new, look_at
from omnirelay.lakehouse.shards import shards_at, shards_of
from omnirelay.lakehouse.source import LogReader
from omnirelay.lakehouse.source_options import read_options
from omnirelay.lakehouse.waiting import waited
from omnirelay.segments.errors import SegmentsDamaged
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.store import StoredObject
from tests.patience import PATIENCE_S
from tests.segment_logs import SHARD, FrameLog
from tests.spark.logs import segments_of, write_segments

if TYPE_CHECKING:
    from tests.segment_logs import S3Server


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "--source", "nosuch", "--warehouse", "lake"), "error.segments.none"),
        (("run", "--continuous", "--source", "nosuch", "--warehouse", "lake"), "error.segments.none"),
        (("rebuild", "--yes", "--source", "nosuch", "--warehouse", "lake"), "error.segments.none"),
        (("audit", "--source", "nosuch"), "error.segments.none"),
        (("report", "--warehouse", "nosuch"), "error.lakehouse.tables_missing"),
        (("optimize", "--warehouse", "nosuch"), "error.lakehouse.tables_missing"),
        (("vacuum", "--warehouse", "nosuch"), "error.lakehouse.tables_missing"),
        (("vacuum", "--keep-hours", "0", "--force", "--warehouse", "nosuch"), "error.lakehouse.tables_missing"),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_what_is_not_there_ends_every_command_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str, empty: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if empty:
        (tmp_path / "nosuch" / "bronze" / "events").mkdir(parents=True)
    done = CliRunner(env={"NO_COLOR": "1"}).invoke(app, ["lakehouse", *words])
    assert done.exit_code == 4, done.stderr
    assert code in done.stderr
    assert "nosuch" in done.stderr
    assert "starting Spark" not in done.stderr
    assert not (tmp_path / "lake").exists()


def said_of(address: str | Path) -> str:
    with pytest.raises(NotFound) as caught:
        waited(shards_at(str(address)))
    assert caught.value.code == "error.segments.none"
    return caught.value.message


def test_address_that_is_a_directory_off_is_told_the_right_one(tmp_path: Path) -> None:
    lake = tmp_path / "a lake" / "segments"
    segments_of(lake, 3)
    assert waited(shards_at(str(lake))) == [SHARD]
    assert waited(shards_at(lake.as_uri())) == [SHARD]
    looked = "looked for SHARD/manifest/*.json below it"
    assert said_of(lake.parent) == f"there are no segments in {lake.parent}: {looked}; they are in {lake}"
    assert said_of(tmp_path) == f"there are no segments in {tmp_path}: {looked}; they are in {lake}"
    below = lake / SHARD
    assert said_of(below) == (
        f"there are no segments in {below}: {looked}; this is the directory of the shard 'jobs', say {lake}"
    )
    assert said_of(below / "segments").endswith("a sink of kind `objects` writes them")
    assert said_of(lake / "nosuch").endswith("nosuch: there is no such directory")
    # Beside shards, what lies deeper is somebody else's.
    segments_of(lake / "copies" / "monday", 3)
    assert waited(shards_at(str(lake))) == [SHARD]


def test_prefix_of_a_bucket_that_is_one_off_is_told_the_right_one(s3: S3Server) -> None:
    log = FrameLog()
    write_segments(s3.address("off/events"), [log.commit(2)], **s3.options)

    def said(address: str) -> str:
        with pytest.raises(NotFound) as caught:
            waited(shards_at(address, s3.options))
        return caught.value.message

    assert said(s3.address("off")).endswith(f"; they are in {s3.address('off/events')}")
    assert said(s3.address("off/events/jobs")).endswith(f"'jobs', say {s3.address('off/events')}")


def test_shard_that_has_lost_its_manifests_is_not_left_out(tmp_path: Path) -> None:
    segments_of(tmp_path, 3, 4)
    (tmp_path / "other" / "manifest").mkdir(parents=True)
    (tmp_path / "other" / "manifest" / f"{1:020d}.json").write_text("{}")
    shutil.rmtree(tmp_path / SHARD / "manifest")
    assert waited(shards_at(str(tmp_path))) == [SHARD, "other"]
    shutil.rmtree(tmp_path / "other")
    [planned] = waited(find_new(str(tmp_path), {}, tmp_path / "staging"))
    assert planned.refused is not None
    assert "somebody removed the manifests" in planned.refused.reason
    with pytest.raises(SegmentsDamaged, match="somebody removed the manifests"):
        LogReader(read_options({"address": str(tmp_path)})).partitions()
    # One segment may be the first, which a crash left before its manifest; and others may have folders of that name.
    [_, second] = sorted((tmp_path / SHARD / "segments").iterdir())
    second.rename(second.with_name("mine.parquet"))
    assert "looked for SHARD/manifest/*.json below it" in said_of(tmp_path)


class Listing(LocalObjectStore):
    """Says what was listed, and lets nobody have a manifest before several are asked for."""

    def __init__(self, root: Path, waiting: int = 1) -> None:
        super().__init__(root)
        self.listed: list[str] = []
        self.together = asyncio.Barrier(waiting)

    async def list(self, prefix: str, after: str | None = None) -> Sequence[StoredObject]:
        self.listed.append(prefix)
        return await super().list(prefix, after)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if "/manifest/" in key:
            await self.together.wait()
        return await super().get(key, start, end)


async def test_a_run_lists_manifests_only_and_reads_those_of_several_shards_at_a_time(tmp_path: Path) -> None:
    """What a log leaves behind grows with it; how many shards there are should not be waited for one by one."""
    names = ["a", "b", "c"]
    await asyncio.to_thread(segments_of, tmp_path / "one", 3, 4)
    for name in names:
        shutil.copytree(tmp_path / "one" / SHARD, tmp_path / "all" / name)
    store = Listing(tmp_path / "all", len(names))
    assert await shards_of(store) == names
    assert sorted(store.listed) == [f"{name}/manifest" for name in names]
    async with asyncio.timeout(PATIENCE_S):
        plans = await look_at(store, names, {}, tmp_path / "staging")
    assert [plan.shard for plan in plans] == names
