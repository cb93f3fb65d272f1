"""Exports, backups, restores and what `verify` says of them, as people type them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirelay.segments.archive import Archive
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.manifest import FAN
from omnirelay.segments.schema import arrow_schema
from omnirelay.segments.writer import SegmentWriter
from tests.cli.conftest import Relay
from tests.cli.processes import at_terminal, command, environment, omnirelay, spawned
from tests.integration.restores import contents, digest_in, segments_of, shard_with_past
from tests.integration.shards import NAMESPACE as JOBS
from tests.patience import PATIENCE_S
from tests.segment_logs import SHARD, S3Server, log_of

NAMESPACE = "resourcelease"
CONFIG = """
[node]
port = 0
[shards.resourcelease]
[sinks.lake]
kind = "objects"
path = "{lake}"
linger = "0s"
"""


def options_of(server: S3Server) -> list[str]:
    return [word for name, value in server.options.items() for word in ("--option", f"{name}={value}")]


class Lost:
    """What is left of a node that wrote segments and was killed: its directory, its segments, and a command line."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self.lake = root / "lake"
        config = root / "omnirelay.toml"
        config.write_text(CONFIG.format(lake=self.lake))
        self._process = spawned("serve", "--config", config, "--data", self.data, cwd=root)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.relay = Relay(line.split(" at ")[1].split(",")[0], NAMESPACE)
        for name in "abcdefgh":
            self.relay.enqueue(name)
        self.relay.ok("complete", self.relay.lease())
        self.relay.lease()
        self._wait_until_replicated()
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=PATIENCE_S)

    def _wait_until_replicated(self) -> None:
        # Each call is a round trip to the node; it answers as soon as it can, and the sink lingers not at all.
        status = None
        for _ in range(2_000):
            [status] = self.relay.ok("replication", "status", "-o", "jsonl").lines
            if status["checkpoint"] >= 12:
                return
        raise AssertionError(f"the sink did not get there: {status}")


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    return Lost(tmp_path_factory.mktemp("lost"))


def state(relay: Relay, data: Path, sequence: int) -> Any:
    return relay.ok("log", "at", sequence, "--data", data, "-o", "json").json


# -- export --------------------------------------------------------------------------------------


def events_of(lost: Lost) -> list[Any]:
    return lost.relay.ok("log", "export", "--data", lost.data, "--to-file", "-").lines


def test_every_format_holds_the_log(lost: Lost, tmp_path: Path) -> None:
    events = events_of(lost)
    assert [event["sequenceNumber"] for event in events] == list(range(1, len(events) + 1))
    for name in ("x.jsonl", "x.parquet", "x.arrow"):
        said = lost.relay.ok("log", "export", "--data", lost.data, "--to-file", tmp_path / name)
        assert said.err == f"exported {len(events)} events up to {len(events)}\n"
        assert said.out == ""
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == events
    parquet = pq.read_table(tmp_path / "x.parquet")
    with pa.OSFile(str(tmp_path / "x.arrow")) as file:
        arrow = pa.ipc.open_file(file).read_all()
    assert parquet.equals(arrow)
    assert parquet.schema.equals(arrow_schema(), check_metadata=True)
    expected = [(event["sequenceNumber"], event["eventType"], event.get("sequenceId")) for event in events]
    query = f"select sequence, event_type, sequence_id from '{tmp_path}/x.parquet' order by sequence"
    assert duckdb.connect().execute(query).fetchall() == expected
    resources = [event["payload"]["resourceId"] for event in events if event["eventType"] == "Enqueue"]
    assert [each for each in arrow["payload_resource_id"].to_pylist() if each is not None] == resources
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.arrow", "x.jsonl", "x.parquet"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_any_range_goes_into_a_directory(lost: Lost, tmp_path: Path, kind: str) -> None:
    lost.relay.ok("log", "export", "--data", lost.data, "--from", 3, "--to", 6, "--format", kind, "--to-file", tmp_path)
    [path] = tmp_path.iterdir()
    assert path.name.startswith(f"{NAMESPACE}-")
    assert path.suffix == f".{kind}"
    if kind == "jsonl":
        found = [json.loads(line)["sequenceNumber"] for line in path.read_text().splitlines()]
    elif kind == "parquet":
        found = pq.read_table(path)["sequence"].to_pylist()
    else:
        found = pa.ipc.open_file(path.read_bytes()).read_all()["sequence"].to_pylist()
    assert found == [3, 4, 5, 6]


def test_an_export_goes_into_a_bucket_and_replaces_nothing(lost: Lost, s3: S3Server, tmp_path: Path) -> None:
    address = s3.address(f"{tmp_path.name}/events.parquet")
    arguments = ["log", "export", "--data", lost.data, "--to-file", address, *options_of(s3)]
    lost.relay.ok(*arguments)
    again = lost.relay.run(*arguments)
    assert (again.code, "exists already and is not overwritten" in again.err) == (2, True)


def test_exports_that_cannot_be_say_why(lost: Lost, tmp_path: Path) -> None:
    (tmp_path / "there.parquet").write_text("mine")
    for arguments, words in (
        (["--to-file", tmp_path / "x.parquet"], "say --data DIR"),
        (["--to-file", "-", "--format", "arrow", "--data", lost.data], "arrow needs a file"),
        (["--to-file", tmp_path / "there.parquet", "--data", lost.data], "exists already"),
        (["--to-file", tmp_path / "no" / "x.jsonl", "--data", lost.data], "cannot write"),
        (["--to-file", "-", "--data", lost.data, "--from", 5, "--to", 4], "lies before"),
        (["--to-file", "-", "--data", lost.data, "--from", 1 << 63], "--from"),
        (["--to-file", "-", "--data", lost.data, "--to", 1 << 63], "--to"),
        (["--to-file", "s3://b/x", "--data", lost.data, "--option", "region"], "--option wants KEY=VALUE"),
    ):
        said = lost.relay.run("log", "export", *arguments)
        assert (said.code, words in said.err) == (2, True), said
    assert (tmp_path / "there.parquet").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there.parquet"]


def test_an_ending_that_promises_another_format_is_refused_unless_the_format_is_said(
    lost: Lost, tmp_path: Path
) -> None:
    for name in ("e.csv", "e.JSON", "e.jsonl.gz"):
        said = lost.relay.run("log", "export", "--data", lost.data, "--to-file", tmp_path / name)
        assert (said.code, "what is written is jsonl, parquet, arrow" in said.err) == (2, True), said
    said = lost.relay.run("log", "export", "--data", lost.data, "--to-file", "s3://lake/e.csv")
    assert (said.code, "ends with .csv" in said.err) == (2, True)
    assert list(tmp_path.iterdir()) == []
    lost.relay.ok("log", "export", "--data", lost.data, "--format", "jsonl", "--to-file", tmp_path / "e.json")
    # What is no name of a format is a part of the file's.
    (tmp_path / "of.csv").mkdir()
    for name in ("of.csv/e", "e.2026-01-31", "e"):
        lost.relay.ok("log", "export", "--data", lost.data, "--to-file", tmp_path / name)
        assert json.loads((tmp_path / name).read_text().splitlines()[0])["sequenceNumber"] == 1
    lost.relay.ok("log", "export", "--data", lost.data, "--to-file", tmp_path / "of.csv")
    lost.relay.ok("log", "export", "--data", lost.data, "--to-file", tmp_path / "e.PARQUET")
    assert pq.read_table(tmp_path / "e.PARQUET").num_rows == len(events_of(lost))


def test_an_export_of_what_the_log_does_not_have_says_so_and_leaves_no_file(lost: Lost, tmp_path: Path) -> None:
    last = len(events_of(lost))
    for name in ("-", tmp_path / "x.jsonl", tmp_path / "x.parquet"):
        arguments = ["log", "export", "--data", lost.data, "--from", last + 1, "--to", last + 9, "--to-file", name]
        said = lost.relay.run(*arguments)
        assert (said.code, said.out) == (4, "")
        assert f"has no event from {last + 1} on up to {last + 9}; nothing was exported" in said.err
    assert list(tmp_path.iterdir()) == []
    said = lost.relay.ok(
        "log", "export", "--data", lost.data, "--from", last, "--to", last + 9, "--to-file", tmp_path / "x"
    )
    assert said.err == f"exported 1 events up to {last}\nthe log ended at {last} then, before --to {last + 9}\n"


def test_an_export_that_breaks_off_leaves_no_file(lost: Lost, tmp_path: Path) -> None:
    said = lost.relay.run("log", "export", "--to-file", tmp_path / "x.jsonl", "--url", "http://127.0.0.1:9")
    assert said.code == 3
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_does_not_fit_on_the_disk_has_failed(relay: Relay, tmp_path: Path) -> None:
    for number in range(9):
        relay.enqueue(f"t{number}")
    file = tmp_path / "events.jsonl"
    export = command("log", "export", "--to-file", file, "--url", relay.url, "-n", relay.namespace)
    process = subprocess.run(
        ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *export],  # No file may grow beyond 512 bytes.
        capture_output=True,
        text=True,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        check=False,
    )
    assert (process.returncode, process.stderr) == (1, f"error: cannot write {file}: File too large\n")
    assert list(tmp_path.iterdir()) == []


def test_damage_on_the_way_leaves_no_file_and_one_line(lost: Lost, tmp_path: Path) -> None:
    lost.relay.ok("log", "backup", tmp_path / "copy", "--data", lost.data)
    connection = apsw.Connection(str(tmp_path / "copy" / NAMESPACE / "leases.db"))
    connection.execute("UPDATE frames SET data = replace(data, 'table', 'cable') WHERE first = 5")
    connection.close()
    for kind in ("jsonl", "parquet", "arrow"):
        arguments = ["--data", tmp_path / "copy", "--to-file", tmp_path / f"x.{kind}"]
        said = lost.relay.run("log", "export", *arguments)
        assert said.code == 6
        assert "frame 5..5" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_an_export_shows_at_a_terminal_how_far_it_is(lost: Lost, tmp_path: Path) -> None:
    last = len(events_of(lost))
    for name in ("x.jsonl", "x.parquet"):
        arguments = ("log", "export", "--data", lost.data, "--to-file", tmp_path / name)
        code, out, shown = at_terminal(*arguments)
        assert (code, out) == (0, "")
        assert f"export {NAMESPACE} " in shown
        assert f" {last}/{last} " in shown
        # The bar makes way for what stays.
        assert shown.splitlines()[-1].endswith(f"exported {last} events up to {last}")
        assert shown.rindex(f"{last}/{last}") < shown.rindex("\x1b[2K") < shown.rindex("exported")


# -- restore -------------------------------------------------------------------------------------


def test_a_killed_node_comes_back_from_its_segments(lost: Lost, tmp_path: Path) -> None:
    said = lost.relay.ok("log", "restore", "--from", lost.lake, "--data", tmp_path / "new", "-o", "json")
    report = said.json
    last = report["lastSequence"]
    assert (report["namespace"], report["result"], report["horizon"]) == (NAMESPACE, "restored", 0)
    assert report["digest"] == state(lost.relay, lost.data, last)["digest"]
    assert f"omnirelay serve --data {tmp_path / 'new'}" in said.err
    node = spawned("dev", "--port", 0, "--data", tmp_path / "new")
    assert node.stdout is not None
    url = next(line.split()[1] for line in node.stdout if line.split()[:1] == ["url"])
    again = Relay(url, NAMESPACE)
    fence = int(again.lease().split(":")[3])
    node.send_signal(signal.SIGTERM)
    node.communicate(timeout=PATIENCE_S)
    assert fence > report["fencesAbove"] + (1 << 32)


def test_a_restore_shows_at_a_terminal_how_far_each_shard_is(lost: Lost, tmp_path: Path) -> None:
    lake, new = lake_of_two(lost, tmp_path), tmp_path / "new"
    code, out, shown = at_terminal("log", "restore", "--from", lake, "--data", new, "-o", "json")
    logs = json.loads(out)["logs"]
    assert (code, [each["namespace"] for each in logs]) == (0, [JOBS, NAMESPACE])
    for each in logs:
        # Every event is copied, and proved.
        steps = 2 * each["events"]
        assert shown.index(f"restore {each['namespace']} ") < shown.index(f" {steps}/{steps} ")
    assert shown.splitlines()[-1].endswith(
        f"start it with `omnirelay serve --data {new}`; it goes on in a new generation"
    )


def test_what_is_not_empty_stays_as_it_is(lost: Lost, tmp_path: Path) -> None:
    lost.relay.ok("log", "restore", "--from", lost.lake, "--data", tmp_path / "new")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = lost.relay.run("log", "restore", "--from", lost.lake, "--data", tmp_path / "new")
    assert said.code == 5
    assert "is not empty" in said.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_number_that_leaves_no_room_for_fences_is_refused(lost: Lost, tmp_path: Path) -> None:
    copy, new = tmp_path / "lake", tmp_path / "new"
    shutil.copytree(lost.lake, copy)
    before = sorted(copy.rglob("*"))
    said = lost.relay.run("log", "restore", "--from", copy, "--data", new, "--above", (1 << 63) - 1)
    assert (said.code, "--above" in said.err) == (2, True)
    assert sorted(copy.rglob("*")) == before
    # Such a mark that is there already stops what comes after it, and says so.
    mark = copy / NAMESPACE / "restores" / f"{(1 << 63) - 1:020d}.json"
    mark.parent.mkdir(exist_ok=True)
    mark.write_text("{}")
    said = lost.relay.run("log", "restore", "--from", copy, "--data", new)
    assert (said.code, f"{NAMESPACE}/restores" in said.err) == (5, True)
    assert not (new / NAMESPACE).exists()


def test_damaged_segments_end_with_6_and_are_named(lost: Lost, tmp_path: Path) -> None:
    copy = tmp_path / "lake"
    done = [path for path in lost.lake.rglob("*") if path.is_file()]
    for path in done:
        target = copy / path.relative_to(lost.lake)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    assert lost.relay.ok("log", "verify", copy, "-o", "json").json["result"] == "whole"
    manifest = json.loads(max((copy / NAMESPACE / "manifest").iterdir()).read_text())
    victim = copy / NAMESPACE / "segments" / manifest["levels"][0][-1]["name"]
    data = bytearray(victim.read_bytes())
    data[len(data) // 3] ^= 4
    victim.write_bytes(data)
    for arguments in (["verify", copy], ["restore", "--from", copy, "--data", tmp_path / "new"]):
        said = lost.relay.run("log", *arguments)
        assert said.code == 6
        assert victim.name in said.err
        assert said.err.endswith("(error.segments.damaged)\n")
    victim.unlink()
    said = lost.relay.run("log", "verify", copy, "-o", "json")
    assert (said.code, said.json["result"]) == (6, "damaged")
    assert f"{victim.name} of '{NAMESPACE}' is missing" in said.err
    assert not (tmp_path / "new" / NAMESPACE).exists()


def lake_of_two(lost: Lost, root: Path) -> Path:
    """Segments of the lost node and of a shard whose name comes before that."""
    lake = root / "lake"
    shutil.copytree(lost.lake, lake)
    asyncio.run(segments_of(lake, asyncio.run(shard_with_past(root / "data"))))
    assert JOBS < NAMESPACE
    return lake


def test_damage_in_one_shard_leaves_every_place_empty_and_can_be_mended(lost: Lost, tmp_path: Path) -> None:
    lake, new = lake_of_two(lost, tmp_path), tmp_path / "new"
    victim = max((lake / NAMESPACE / "segments").iterdir())
    whole = victim.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 4
    victim.write_bytes(damaged)
    said = omnirelay("log", "restore", "--from", lake, "--data", new)
    assert (said.returncode, said.stdout, victim.name in said.stderr) == (6, "", True)
    assert contents(new) == {}
    assert not (lake / JOBS / "restores").exists()
    victim.write_bytes(whole)
    logs = json.loads(omnirelay("log", "restore", "--from", lake, "--data", new, "-o", "json").stdout)["logs"]
    assert [(each["namespace"], each["result"]) for each in logs] == [(JOBS, "restored"), (NAMESPACE, "restored")]
    assert logs[0]["digest"] == asyncio.run(digest_in(tmp_path / "data"))
    assert sorted(os.listdir(new)) == [JOBS, NAMESPACE]


def test_what_was_restored_before_a_disk_failed_is_named_and_the_rest_can_follow(lost: Lost, tmp_path: Path) -> None:
    lake, new = lake_of_two(lost, tmp_path), tmp_path / "new"
    new.mkdir()
    (tmp_path / "elsewhere").mkdir()
    # It passes for an empty directory until something is to have its name.
    (new / NAMESPACE).symlink_to(tmp_path / "elsewhere")
    said = omnirelay("log", "restore", "--from", lake, "--data", new)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith(f"restored {JOBS} up to event ")
    digest = asyncio.run(digest_in(new))
    assert f", digest {digest}\nnot restored: {NAMESPACE}; go on with --namespace\nerror: " in said.stderr
    (new / NAMESPACE).unlink()
    rest = ["--from", lake, "--data", new, "--namespace", NAMESPACE]
    assert lost.relay.ok("log", "restore", *rest, "-o", "json").json["result"] == "restored"


def test_a_lost_index_ends_with_6_and_other_shards_are_verified_all_the_same(lost: Lost, tmp_path: Path) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(lost.lake, copy)

    async def write() -> None:
        writer = SegmentWriter(Archive(LocalObjectStore(copy), SHARD), kind="jsonl")
        for frame in log_of(*[1] * 2 * FAN).frames:
            await writer.append([frame])

    asyncio.run(write())
    [index] = (copy / SHARD / "index").iterdir()
    index.unlink()
    said = omnirelay("log", "verify", copy, "-o", "json")
    assert said.returncode == 6, said
    assert [(each["namespace"], each["result"]) for each in json.loads(said.stdout)["logs"]] == [
        (SHARD, "damaged"),
        (NAMESPACE, "whole"),
    ]
    assert f"index {index.name} of '{SHARD}' is missing, although the manifest lists it" in said.stderr
    said = omnirelay("log", "restore", "--from", copy, "--namespace", SHARD, "--data", tmp_path / "new")
    assert said.returncode == 6, said
    assert index.name in said.stderr
    assert not (tmp_path / "new" / SHARD).exists()


def test_segments_whose_manifests_are_gone_are_damaged_and_not_nothing(lost: Lost, tmp_path: Path) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(lost.lake, copy)
    shutil.rmtree(copy / NAMESPACE / "manifest")
    # A node that was slow has put everything into one; only their names are looked at.
    (copy / NAMESPACE / "segments" / f"{98:020d}-{99:020d}-1-abcdef00-0.parquet").touch()
    for arguments in (["verify", copy], ["restore", "--from", copy, "--data", tmp_path / "new"]):
        said = lost.relay.run("log", *arguments)
        assert said.code == 6
        assert f"{NAMESPACE}/manifest is empty" in said.err
        assert said.err.endswith("(error.segments.damaged)\n")
    segments = sorted((copy / NAMESPACE / "segments").iterdir())
    for path in segments[1:]:
        path.unlink()
    # A single one may never have been committed; who has it verified is told all the same.
    assert lost.relay.run("log", "verify", copy).code == 6
    said = lost.relay.run("log", "restore", "--from", copy, "--data", tmp_path / "new")
    assert (said.code, "only a segment that was never committed" in said.err) == (4, True)
    segments[0].unlink()
    assert lost.relay.run("log", "verify", copy).code == 4
    assert not (tmp_path / "new").exists()


def test_of_two_places_neither_is_left_out_in_silence(lost: Lost, tmp_path: Path) -> None:
    said = lost.relay.run("log", "verify", tmp_path / "monday", "--data", lost.data)
    assert (said.code, said.out) == (2, "")
    assert "say one place to verify" in said.err


@pytest.mark.parametrize("arguments", [("verify",), ("restore", "--data", "new", "--from")])
def test_where_nothing_is_ends_with_4(lost: Lost, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    for address in (tmp_path / "nowhere", lost.lake.parent):
        said = lost.relay.run("log", *arguments, address, "--namespace", "none")
        assert said.code == 4
        assert "say the address above NAMESPACE" in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("verify",), ("restore", "--data", "new", "--from")])
def test_who_goes_too_deep_is_told_where_the_log_is(lost: Lost, arguments: tuple[str, ...]) -> None:
    segment = max((lost.lake / NAMESPACE / "segments").iterdir())
    for address in (lost.lake / NAMESPACE / "segments", segment):
        said = lost.relay.run("log", *arguments, address)
        assert (said.code, said.err.endswith(f"; say {lost.lake}\n")) == (4, True), said
    # Of which shard it is the place is not to be doubted.
    said = lost.relay.run("log", *arguments, lost.lake / NAMESPACE, "--namespace", "orders")
    assert (said.code, "there is no log of 'orders'" in said.err, said.err.endswith(f"; say {lost.lake}\n")) == (
        4,
        True,
        True,
    )
    for place in (lost.data / NAMESPACE, lost.data / NAMESPACE / "leases.db"):
        said = lost.relay.run("log", "verify", "--data", place)
        assert (said.code, said.err.endswith(f"; say --data {lost.data}\n")) == (4, True), said


def test_a_log_is_verified_at_its_own_place_too(lost: Lost, s3: S3Server, tmp_path: Path) -> None:
    monday, bucket = tmp_path / "monday", s3.address(tmp_path.name)
    lost.relay.ok("log", "backup", monday, "--data", lost.data)
    lost.relay.ok("log", "backup", bucket, "--data", lost.data, *options_of(s3))
    expected = lost.relay.ok("log", "verify", monday, "-o", "json").json
    for address in (monday / NAMESPACE, monday / NAMESPACE / "leases.db", f"file://{monday}/{NAMESPACE}/"):
        assert lost.relay.ok("log", "verify", address, "-o", "json").json == expected
        assert omnirelay("log", "verify", address).returncode == 0
    assert omnirelay("log", "verify", "leases.db", cwd=monday / NAMESPACE).returncode == 0
    segments = lost.relay.ok("log", "verify", lost.lake, "-o", "json").json
    assert lost.relay.ok("log", "verify", lost.lake / NAMESPACE, "-o", "json").json == segments
    remote = lost.relay.ok("log", "verify", f"{bucket}/{NAMESPACE}", *options_of(s3), "-o", "json").json
    assert remote == expected | {"witnessed": remote["witnessed"]}
    back = lost.relay.ok("log", "restore", "--from", lost.lake / NAMESPACE, "--data", tmp_path / "new", "-o", "json")
    assert back.json["lastSequence"] == segments["lastSequence"]


# -- backup --------------------------------------------------------------------------------------


def test_a_backup_in_a_bucket_is_verified_and_restored(lost: Lost, s3: S3Server, tmp_path: Path) -> None:
    address, options = s3.address(tmp_path.name), options_of(s3)
    said = lost.relay.ok("log", "backup", address, "--data", lost.data, *options)
    assert said.err.startswith(f"copied {lost.data / NAMESPACE} to {address}/{NAMESPACE}, ")
    whole = lost.relay.ok("log", "verify", address, *options, "-o", "json").json
    assert (whole["result"], whole["snapshots"]) == ("whole", 0)
    again = lost.relay.run("log", "backup", address, "--data", lost.data, *options)
    assert (again.code, f"{address}/{NAMESPACE} exists already and is not overwritten" in again.err) == (2, True)
    back = lost.relay.ok("log", "restore", "--from", address, "--data", tmp_path / "new", *options, "-o", "json").json
    assert back["digest"] == state(lost.relay, lost.data, back["lastSequence"])["digest"]


def test_a_store_is_reached_with_what_the_environment_says(lost: Lost, s3: S3Server, tmp_path: Path) -> None:
    env: dict[str, Any] = {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ALLOW_HTTP": "true",
    }
    done = omnirelay("log", "backup", s3.address(tmp_path.name), "--data", lost.data, **env)
    assert done.returncode == 0, done.stderr
    assert omnirelay("log", "verify", s3.address(tmp_path.name), **env).returncode == 0


def test_a_backup_and_later_segments_are_restored_together(lost: Lost, tmp_path: Path) -> None:
    lost.relay.ok("log", "backup", tmp_path / "monday", "--data", lost.data)
    assert os.listdir(tmp_path / "monday") == [NAMESPACE]
    assert lost.relay.ok("log", "verify", tmp_path / "monday", "-o", "json").json["result"] == "whole"
    arguments = ["--from", lost.lake, "--base", tmp_path / "monday", "--data", tmp_path / "new", "-o", "json"]
    back = lost.relay.ok("log", "restore", *arguments).json
    assert back["digest"] == state(lost.relay, lost.data, back["lastSequence"])["digest"]
    wrong = ["--from", lost.lake, "--base", lost.lake, "--data", tmp_path / "other"]
    said = lost.relay.run("log", "restore", *wrong)
    assert (said.code, "--base wants a backup" in said.err) == (4, True)


def test_a_base_below_a_backup_is_refused(lost: Lost, tmp_path: Path) -> None:
    """It was passed over: what came back was the backup alone."""
    lost.relay.ok("log", "backup", tmp_path / "monday", "--data", lost.data)
    arguments = ["--from", tmp_path / "monday", "--base", tmp_path / "nowhere", "--data", tmp_path / "new"]
    said = lost.relay.run("log", "restore", *arguments)
    assert (said.code, "--base is for segments" in said.err) == (2, True)
    assert not (tmp_path / "new").exists()


def test_a_file_in_place_of_a_directory_is_wrong_usage(lost: Lost, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("mine")
    for place in (file, file / "below"):
        for arguments in (["backup", place, "--data", lost.data], ["restore", "--from", lost.lake, "--data", place]):
            said = lost.relay.run("log", *arguments)
            assert (said.code, said.out) == (2, "")
            assert said.err == f"error: {place} cannot be a directory: {file} is a file; say another place\n"
    assert file.read_text() == "mine"


def test_a_backup_is_not_overwritten(lost: Lost, tmp_path: Path) -> None:
    lost.relay.ok("log", "backup", tmp_path / "monday", "--data", lost.data)
    again = lost.relay.run("log", "backup", tmp_path / "monday", "--data", lost.data)
    assert (again.code, "exists already and is not overwritten" in again.err) == (2, True)
    said = lost.relay.run("log", "backup", tmp_path / "x", "--data", lost.data, "--option", "region=x")
    assert (said.code, "a directory has none" in said.err) == (2, True)


@pytest.mark.parametrize("name", ["export", "restore", "backup", "verify"])
def test_help_has_examples(lost: Lost, name: str) -> None:
    out = lost.relay.ok("log", name, "--help").out
    assert f"omnirelay log {name} " in out
    assert "Examples:" in out


# -- libraries that are missing ------------------------------------------------------------------

WITHOUT = """
import json, sys
sys.modules["obstore"] = None
sys.modules["pyarrow"] = None
from typer.testing import CliRunner
from omnirelay.cli.app import app
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, ["log", *arguments])
    print(json.dumps([result.exit_code, result.stderr]))
"""


def test_what_needs_no_library_works_without_and_the_rest_says_what_to_install(lost: Lost, tmp_path: Path) -> None:
    working = [
        ["backup", tmp_path / "backup", "--data", lost.data],
        ["verify", tmp_path / "backup"],
        ["restore", "--from", tmp_path / "backup", "--data", tmp_path / "new"],
        ["export", "--data", lost.data, "--to-file", tmp_path / "x.jsonl"],
    ]
    refused = [
        ["verify", lost.lake],
        ["restore", "--from", lost.lake, "--data", tmp_path / "other"],
        ["export", "--data", lost.data, "--to-file", tmp_path / "x.parquet"],
        ["backup", "s3://lake/x", "--data", lost.data],
    ]
    script = [sys.executable, "-c", WITHOUT, json.dumps([*working, *refused], default=str)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment())
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in said] == [0] * 4 + [5] * 4, (said, done.stderr)
    assert all("pip install 'omnirelay[segments]'" in err for _, err in said[4:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "new", "x.jsonl"]
