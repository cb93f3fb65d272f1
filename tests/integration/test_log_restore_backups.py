"""Backups in object stores: whole or not there, one per place, and every part proved when it is fetched."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from omnirelay.errors import AlreadyExists, NotFound, Unavailable
from omnirelay.log import SqliteLog
from omnirelay.replication.origins import BackupOrigin
from omnirelay.replication.restoring import restore
from omnirelay.segments import backups
from omnirelay.segments.backups import BackupManifest, backup_key, fetch_backup, find_backup, put_backup
from omnirelay.segments.errors import SegmentsDamaged
from omnirelay.segments.finding import logs_at
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.store import ObjectStore
from tests.integration.restores import add_snapshot, contents, digest_in, segments_of, shard_with_past
from tests.integration.shards import NAMESPACE
from tests.segment_logs import FailingStore

ABOUT = BackupManifest(shard=NAMESPACE, log_id="x", last=1, chain="00", written_ms=1, files=())


@pytest.fixture
def store(object_store: ObjectStore) -> ObjectStore:
    return object_store


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "PART_BYTES", 50_000)


async def copied(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    await shard_with_past(data, steps=4)
    await add_snapshot(data)
    log = SqliteLog.open(data, NAMESPACE, read_only=True)
    await log.backup(tmp_path / "copy" / NAMESPACE)
    await log.close()
    return tmp_path / "copy" / NAMESPACE


@pytest.mark.usefixtures("small_parts")
async def test_a_backup_comes_back_byte_for_byte_and_restores(tmp_path: Path, store: ObjectStore) -> None:
    copy = await copied(tmp_path)
    seen: list[tuple[int, int]] = []
    manifest = await put_backup(store, copy, ABOUT, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (manifest.size, manifest.size)
    assert len(seen) > len(manifest.files)
    assert await logs_at(store) == {NAMESPACE: "backup"}
    await fetch_backup(store, NAMESPACE, tmp_path / "fetched" / NAMESPACE)
    assert contents(tmp_path / "fetched" / NAMESPACE) == contents(copy)
    back = await restore(BackupOrigin(tmp_path / "fetched", NAMESPACE), tmp_path / "new", marks=store)
    assert back.snapshots == 1
    assert back.digest == await digest_in(tmp_path / "data")
    again = await restore(BackupOrigin(tmp_path / "fetched", NAMESPACE), tmp_path / "second", marks=store)
    assert again.fences_above > back.fences_above


async def test_of_two_backups_to_one_place_one_wins_and_the_other_leaves_nothing(
    tmp_path: Path, store: ObjectStore
) -> None:
    copy = await copied(tmp_path)
    outcomes = await asyncio.gather(*(put_backup(store, copy, ABOUT) for _ in range(2)), return_exceptions=True)
    [won] = [each for each in outcomes if isinstance(each, BackupManifest)]
    [lost] = [each for each in outcomes if isinstance(each, AlreadyExists)]
    assert "is not overwritten" in lost.message
    keys = {part.key for file in won.files for part in file.parts}
    assert {each.key for each in await store.list("")} == {*keys, backup_key(NAMESPACE)}
    with pytest.raises(AlreadyExists):
        await put_backup(store, copy, ABOUT)
    await fetch_backup(store, NAMESPACE, tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == contents(copy)


@pytest.mark.usefixtures("small_parts")
async def test_a_backup_that_fails_on_the_way_is_none(tmp_path: Path) -> None:
    copy = await copied(tmp_path)
    inner = LocalObjectStore(tmp_path / "objects")
    broken = FailingStore(inner, lambda what, key: "before" if key.endswith("000001") and what == "put" else None)
    with pytest.raises(Unavailable):
        await put_backup(broken, copy, ABOUT)
    assert await inner.list("") == []
    with pytest.raises(NotFound, match="there is no backup of"):
        await fetch_backup(inner, NAMESPACE, tmp_path / "fetched")


async def test_a_backup_whose_last_answer_got_lost_is_one(tmp_path: Path) -> None:
    copy = await copied(tmp_path)
    inner = LocalObjectStore(tmp_path / "objects")
    silent = FailingStore(inner, lambda what, key: "after" if key == backup_key(NAMESPACE) and what == "put" else None)
    await put_backup(silent, copy, ABOUT)
    await fetch_backup(inner, NAMESPACE, tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == contents(copy)


async def test_a_backup_that_met_itself_is_one(tmp_path: Path) -> None:
    copy = await copied(tmp_path)

    class Repeating(LocalObjectStore):
        """Like a library that repeats what was not answered in time."""

        async def put_if_absent(self, key: str, data: bytes) -> bool:
            done = await super().put_if_absent(key, data)
            return done and await super().put_if_absent(key, data) if key == backup_key(NAMESPACE) else done

    store = Repeating(tmp_path / "objects")
    await put_backup(store, copy, ABOUT)
    await fetch_backup(store, NAMESPACE, tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == contents(copy)


async def test_parts_stay_while_nobody_knows_whether_they_are_a_backup(tmp_path: Path) -> None:
    copy = await copied(tmp_path)
    inner = LocalObjectStore(tmp_path / "objects")
    broken = FailingStore(inner, lambda what, key: "before" if key == backup_key(NAMESPACE) and what == "put" else None)
    with pytest.raises(Unavailable, match=r"was written is not known: .* remove what is below jobs/backup-"):
        await put_backup(broken, copy, ABOUT)
    assert all("/backup-" in each.key for each in await inner.list(""))
    with pytest.raises(NotFound, match="there is no backup of"):
        await fetch_backup(inner, NAMESPACE, tmp_path / "fetched")


async def test_a_part_that_does_not_read_back_is_noticed_before_the_backup_counts(tmp_path: Path) -> None:
    copy = await copied(tmp_path)

    class Rotting(LocalObjectStore):
        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            data = await super().get(key, start, end)
            return data[:-1] + bytes([data[-1] ^ 1]) if "/backup-" in key else data

    store = Rotting(tmp_path / "objects")
    with pytest.raises(SegmentsDamaged, match="000000 of the backup of 'jobs' is not what was written"):
        await put_backup(store, copy, ABOUT)
    assert await store.list("") == []


@pytest.mark.usefixtures("small_parts")
async def test_damage_is_named(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    manifest = await put_backup(store, await copied(tmp_path), ABOUT)
    victim = tmp_path / "objects" / manifest.files[0].parts[1].key
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1])
    with pytest.raises(SegmentsDamaged, match="000001 of the backup of 'jobs' is not what was written"):
        await fetch_backup(store, NAMESPACE, tmp_path / "one")
    victim.unlink()
    with pytest.raises(SegmentsDamaged, match="000001 of the backup of 'jobs' is missing"):
        await fetch_backup(store, NAMESPACE, tmp_path / "two")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "cannot be read"),
        (msgspec.json.encode(msgspec.structs.replace(ABOUT, format_version=9)), "has format 9"),
        (msgspec.json.encode(msgspec.structs.replace(ABOUT, shard="other")), "is of 'other'"),
    ],
)
async def test_a_list_that_is_none_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    store = LocalObjectStore(tmp_path)
    await store.put_if_absent(backup_key(NAMESPACE), content)
    with pytest.raises(SegmentsDamaged, match=words):
        await find_backup(store, NAMESPACE)


async def test_a_list_whose_words_are_not_those_that_were_written_is_refused(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    await put_backup(store, await copied(tmp_path), ABOUT)
    path = tmp_path / "objects" / backup_key(NAMESPACE)
    written = path.read_bytes()
    path.write_bytes(written.replace(b'"leases.db"', b'"leases.dc"'))
    with pytest.raises(SegmentsDamaged, match="its own digest is another"):
        await find_backup(store, NAMESPACE)
    path.write_bytes(written)
    assert await find_backup(store, NAMESPACE) is not None


async def test_a_list_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    evil = msgspec.structs.replace(ABOUT, files=(backups.BackedUpFile("../../evil", ()),))
    await store.put_if_absent(backup_key(NAMESPACE), msgspec.json.encode(evil))
    with pytest.raises(SegmentsDamaged, match="lies outside"):
        await fetch_backup(store, NAMESPACE, tmp_path / "fetched")


async def test_what_lies_somewhere_is_found_by_what_it_has(tmp_path: Path) -> None:
    frames = await shard_with_past(tmp_path / "here", steps=1)
    store = await segments_of(tmp_path / "lake", frames)
    assert await logs_at(store) == {NAMESPACE: "segments"}
    assert await logs_at(LocalObjectStore(tmp_path / "here")) == {NAMESPACE: "files"}
    assert await logs_at(LocalObjectStore(tmp_path / "here"), "other") == {}
    assert await logs_at(LocalObjectStore(tmp_path)) == {}
