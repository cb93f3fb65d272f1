"""Object stores by themselves: a directory, and a real S3 server."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from omnirelay.errors import Unavailable, Unimplemented
from omnirelay.segments.connecting import connect
from omnirelay.segments.errors import ObjectMissing, SegmentStoreUnusable
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.remote import RemoteObjectStore
from omnirelay.segments.store import ObjectStore, prove_one_winner
from tests.patience import PATIENCE_S
from tests.segment_logs import S3Server


@pytest.fixture
def store(object_store: ObjectStore) -> ObjectStore:
    return object_store


@pytest.mark.parametrize(
    ("address", "options", "store"),
    [
        ("s3://lake/leases", {"region": "eu-1"}, S3Store),
        ("gs://lake/leases", {}, GCSStore),
        ("az://lake/leases", {"account_name": "omni", "access_key": "aGlkZGVu"}, AzureStore),
        ("abfs://lake@omni.dfs.core.windows.net/leases", {}, AzureStore),
        ("abfs://lake/leases", {"account_name": "omni"}, AzureStore),
    ],
)
async def test_addresses_of_every_cloud_make_a_store_without_a_network(
    address: str, options: dict[str, Any], store: type[Any]
) -> None:
    """Reading them is left to who has such a cloud; what is made of an address and options is ours."""
    made = await connect(address, options, writable=False)
    assert made.address == address
    assert isinstance(made, RemoteObjectStore)
    assert isinstance(made._store, store)
    assert made._store.prefix == "leases"
    config: dict[str, Any] = dict(made._store.config)
    assert config.get("bucket", config.get("container_name")) == "lake"
    assert config.get("account_name") == ("omni" if store is AzureStore else None)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://me:hidden@lake/leases", "s3://lake/leases"),
        ("abfs://lake:hidden@omni.dfs.core.windows.net/x?sig=hidden", "abfs://lake@omni.dfs.core.windows.net/x"),
    ],
)
async def test_an_address_is_shown_without_what_is_secret(address: str, shown: str) -> None:
    assert (await connect(address, {"region": "eu-1"} if "s3" in address else {}, writable=False)).address == shown


@pytest.mark.parametrize("address", ["az://lake/leases", "az://lake:hidden@omni/leases?sig=hidden"])
async def test_an_address_of_azure_that_says_too_little_is_refused(address: str) -> None:
    with pytest.raises(SegmentStoreUnusable, match=r"az://lake.* cannot be used") as caught:
        await connect(address, writable=False)
    assert "hidden" not in caught.value.message


async def test_an_object_is_created_once_and_never_overwritten(store: ObjectStore) -> None:
    assert await store.put_if_absent("a/b/c", b"first")
    assert not await store.put_if_absent("a/b/c", b"second")
    assert await store.get("a/b/c") == b"first"


async def test_one_of_many_wins(store: ObjectStore) -> None:
    won = await asyncio.gather(*(store.put_if_absent("race", b"%d" % each) for each in range(12)))
    assert won.count(True) == 1
    assert await store.get("race") == b"%d" % won.index(True)


async def test_parts_of_an_object_can_be_read(store: ObjectStore) -> None:
    await store.put_if_absent("x", b"0123456789")
    assert await store.get("x", 3) == b"3456789"
    assert await store.get("x", 3, 5) == b"34"


async def test_a_listing_is_sorted_and_goes_on_behind_a_key(store: ObjectStore) -> None:
    for name in ("c", "a", "deep/b", "b"):
        await store.put_if_absent(f"dir/{name}", name.encode())
    await store.put_if_absent("dirty/a", b"")
    assert [each.key for each in await store.list("dir")] == ["dir/a", "dir/b", "dir/c", "dir/deep/b"]
    assert [each.key for each in await store.list("dir", "dir/b")] == ["dir/c", "dir/deep/b"]
    assert await store.list("nothing") == []
    [first, *_] = await store.list("dir")
    assert first.size == 1
    assert first.modified_ms > 1_700_000_000_000


async def test_folders_are_told_without_what_lies_below_them(store: ObjectStore) -> None:
    odd = "it's 007 % é+~"
    for key in ("b/x", "b/y", "a/deep/x", f"{odd}/x", "file"):
        await store.put_if_absent(f"dir/{key}", b"")
    assert await store.folders("dir") == ["a", "b", odd]
    assert await store.folders("dir/a") == ["deep"]
    assert "dir" in await store.folders("")
    assert await store.folders("nothing") == await store.folders("dir/file") == []


async def test_more_folders_than_a_page_holds_are_all_told(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    names = [f"{each:04d}" for each in range(35)]
    await asyncio.gather(*(store.put_if_absent(f"many/{name}/x", b"") for name in names))
    assert await store.folders("many") == names


async def test_a_listing_is_longer_than_a_page(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    names = [f"many/{each:04d}" for each in range(35)]
    await asyncio.gather(*(store.put_if_absent(name, b"") for name in names))
    assert [each.key for each in await store.list("many")] == names
    assert [each.key for each in await store.list("many", names[17])] == names[18:]


async def test_what_is_deleted_is_gone_and_can_be_deleted_again(store: ObjectStore) -> None:
    await store.put_if_absent("x", b"1")
    await store.delete("x")
    await store.delete("x")
    with pytest.raises(ObjectMissing, match="there is no x in"):
        await store.get("x")
    assert await store.put_if_absent("x", b"2")


async def test_a_bucket_swaps_what_is_unchanged_and_a_directory_says_that_it_cannot(store: ObjectStore) -> None:
    await store.put_if_absent("x", b"1")
    [listed] = await store.list("x") or await store.list("")
    if isinstance(store, LocalObjectStore):
        with pytest.raises(Unimplemented):
            await store.compare_and_swap("x", b"2", "v")
        return
    assert listed.version is not None
    newer = await store.compare_and_swap("x", b"2", listed.version)
    assert newer is not None
    assert await store.compare_and_swap("x", b"3", listed.version) is None
    assert await store.get("x") == b"2"


async def test_the_proof_leaves_nothing_behind(store: ObjectStore) -> None:
    await prove_one_winner(store)
    assert await store.list("probes") == []


# -- stores that are refused ---------------------------------------------------------------------


class Overwriting(LocalObjectStore):
    """What a server does that passes over the condition of a put."""

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        await self.delete(key)
        await super().put_if_absent(key, data)
        return True


class Forgetting(LocalObjectStore):
    """What a server does that answers before it knows."""

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        won = await super().put_if_absent(key, data)
        await self.delete(key)
        return won


class Swapping(LocalObjectStore):
    """Tells the right one that it won, and keeps what the last one sent."""

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        won = await super().put_if_absent(key, data)
        await self.delete(key)
        await super().put_if_absent(key, b"late")
        return won and data != b"late"


class LookingFirst(LocalObjectStore):
    """What a server does that looks, and then writes: the second one that came in the same moment hears that it won."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._one_at_a_time = asyncio.Lock()

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        async with self._one_at_a_time:
            return await super().put_if_absent(key, data) or data == b"1"


@pytest.mark.parametrize("kind", [Overwriting, Forgetting, Swapping, LookingFirst])
async def test_a_store_without_one_winner_is_refused(tmp_path: Path, kind: type[LocalObjectStore]) -> None:
    with pytest.raises(SegmentStoreUnusable, match="has no put-if-absent to rely on"):
        await prove_one_winner(kind(tmp_path))
    assert list((tmp_path / "probes").iterdir()) == []


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        ("ftp://me:secret@x/y", {}, "no store for 'ftp' addresses"),
        ("file://host/path", {}, "no address of a directory"),
        ("file://", {}, "no address of a directory"),
        ("/tmp", {"region": "x"}, "takes no options, got region"),
        ("s3://lake/x", {"colour": "red"}, "colour"),
        ("s3://lake/x", {"region": ["a"]}, "option region of s3://lake/x must be text"),
        ("s3://lake/x", {"access_key_id": "only"}, "s3://lake/x cannot be used"),
    ],
)
async def test_an_address_that_cannot_be_is_refused(address: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SegmentStoreUnusable, match=words) as caught:
        await connect(address, options)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("address", "option", "path", "words"),
    [
        ("s3://lake/x", "metadata_endpoint", "", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the options access_"),
        ("abfs://lake@us.dfs.core.windows.net/x", "msi_endpoint", "/metadata/identity/oauth2/token", "AZURE_STORAGE_"),
    ],
    ids=["s3", "azure"],
)
async def test_who_has_no_credentials_is_told_where_to_set_them(
    address: str, option: str, path: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    # Nobody listens there; it stands for the service that a cloud's machine has and others have not.
    options = {option: f"http://127.0.0.1:9{path}", "allow_http": True}
    with pytest.raises(Unavailable, match=f"^{address}: there are no credentials, .* set {words}"):
        await connect(address, options)


async def test_a_bucket_that_is_not_there_is_named(s3: S3Server) -> None:
    with pytest.raises(SegmentStoreUnusable, match="there is no bucket s3://nowhere/x"):
        await connect("s3://nowhere/x", s3.options)


async def test_who_gives_a_proof_up_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    class Hanging(LocalObjectStore):
        async def put_if_absent(self, key: str, data: bytes) -> bool:
            asked.set()
            await asyncio.Event().wait()
            return True

        async def delete(self, key: str) -> None:
            await asyncio.Event().wait()

    asked = asyncio.Event()
    proof = asyncio.create_task(prove_one_winner(Hanging(tmp_path)))
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    proof.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(proof, PATIENCE_S)


async def test_a_proof_that_fails_says_why_and_not_what_failed_behind_it(tmp_path: Path) -> None:
    class Broken(LocalObjectStore):
        async def put_if_absent(self, key: str, data: bytes) -> bool:
            raise Unavailable("no put")

        async def delete(self, key: str) -> None:
            raise Unavailable("no delete")

    with pytest.raises(Unavailable, match="no put"):
        await prove_one_winner(Broken(tmp_path))


async def test_a_server_that_is_down_is_worth_another_try() -> None:
    options = {"endpoint": "http://127.0.0.1:9", "region": "x", "access_key_id": "a", "secret_access_key": "hidden"}
    with pytest.raises(Unavailable) as caught:
        await connect("s3://lake/x", {**options, "allow_http": True, "connect_timeout": "1s"})
    assert "hidden" not in caught.value.message


async def test_whoever_only_reads_needs_no_right_to_write(tmp_path: Path) -> None:
    store = await connect(f"file://{tmp_path}/not-there", writable=False)
    assert await store.list("x") == []
    assert not (tmp_path / "not-there").exists()


async def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SegmentStoreUnusable, match="cannot write in"):
        await connect(str(tmp_path / "file" / "below"))


@pytest.mark.parametrize("key", ["../x", "/etc/x", "a/../../x"])
async def test_a_key_cannot_lead_out_of_the_directory(tmp_path: Path, key: str) -> None:
    store = LocalObjectStore(tmp_path / "inside")
    with pytest.raises(SegmentStoreUnusable, match="is no key"):
        await store.put_if_absent(key, b"")


# -- what survives a power cut -------------------------------------------------------------------


async def test_a_file_is_synced_before_it_has_a_name_and_the_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalObjectStore(tmp_path)
    await store.put_if_absent("a/first", b"")
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        steps.append("sync directory" if os.path.isdir(path) else "sync file")
        fsync(descriptor)

    def linked(source: Path, target: Path) -> None:
        steps.append(f"link {Path(target).name}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    assert await store.put_if_absent("a/b", b"data")
    assert steps == ["sync file", "link b", "sync directory"]
    steps.clear()
    assert not await store.put_if_absent("a/b", b"data")
    assert steps[-1] == "sync directory"  # The loser may build on it.


async def test_what_a_crash_left_without_a_name_is_never_listed_and_goes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, age in (("old", 200_000), ("new", 0)):
        left = tmp_path / "a" / f".staging-{name}"
        left.write_bytes(b"half")
        os.utime(left, (left.stat().st_mtime - age,) * 2)
    store = LocalObjectStore(tmp_path)
    await store.put_if_absent("a/b", b"")
    assert [each.key for each in await store.list("a")] == ["a/b"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [".staging-new", "b"]


# -- libraries that are missing ------------------------------------------------------------------

_WITHOUT = """
import asyncio, sys
sys.modules["obstore"] = None
sys.modules["pyarrow"] = None
from pathlib import Path
from omnirelay.replication.kinds import SinkPlace, make_sink
from omnirelay.replication.settings import SinkSettings
from omnirelay.segments.connecting import connect
from omnirelay.errors import OmniRelayError
place = SinkPlace("lake", "jobs", Path(sys.argv[1]), lambda item, lease: None)
for work in (
    lambda: make_sink(SinkSettings(name="lake", kind="objects"), place),
    lambda: asyncio.run(connect("s3://a/b")),
):
    try:
        work()
    except OmniRelayError as error:
        sys.stdout.write(error.message + "\\n")
"""


def test_a_library_that_is_missing_is_named_with_what_brings_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("pip install 'omnirelay[segments]'" in line for line in lines)


def test_nobody_imports_the_libraries_who_does_not_use_them() -> None:
    script = (
        "import sys, omnirelay, omnirelay.node.running, omnirelay.cli.app, omnirelay.replication.kinds;"
        "sys.exit(any(name.partition('.')[0] in ('pyarrow', 'obstore', 'httpx') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_S, check=False).returncode == 0


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EROFS, SegmentStoreUnusable), (errno.EACCES, SegmentStoreUnusable), (errno.ENOSPC, Unavailable)],
)
async def test_a_directory_that_is_not_to_be_written_is_told_from_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(kind, match=os.strerror(number)):
        await LocalObjectStore(tmp_path).put_if_absent("a/b", b"")
