"""`omnirelay replication`, against a node that was configured with sinks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Relay
from tests.cli.processes import DevNode, spawned
from tests.patience import PATIENCE_S

CONFIG = """
[node]
port = 0
data = "data"

[shards.orders]
[shards.invoices]

[sinks.lake]
kind = "file"
linger = "0s"
required = true

[sinks.broken]
kind = "file"
path = "omnirelay.toml/x"
shards = ["orders"]
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("node")
    (directory / "omnirelay.toml").write_text(CONFIG)
    (directory / "data").mkdir()
    (directory / "data" / "omnirelay.toml").write_text("")
    process = spawned("serve", "--config", "omnirelay.toml", cwd=directory)
    try:
        yield started(process.stdout, directory)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def started(output: Iterator[str] | None, directory: Path) -> str:
    assert output is not None
    for _ in output:
        path = directory / "data" / "node.json"
        if path.exists():
            return str(json.loads(path.read_text())["url"])
    raise AssertionError("the node did not start")


@pytest.fixture
def relay(url: str) -> Relay:
    return Relay(url, "orders")


def caught_up(relay: Relay) -> None:
    """Wait until the sink that works has everything, and the one that does not has found out."""
    wanted = {"lake": "running", "broken": "failed"}
    with httpx.Client(base_url=relay.url, timeout=PATIENCE_S) as client:
        while any(
            each["state"] != wanted[each["sink"]] or (each["sink"] == "lake" and each["lagEvents"])
            for each in client.get("/omnirelay/control/replication").json()["sinks"]
        ):
            pass


def test_status_shows_every_sink_of_every_shard(relay: Relay) -> None:
    relay.enqueue()
    caught_up(relay)
    lines = relay.ok("replication", "status").out.splitlines()
    assert lines[0].split("  ")[0] == "sink"
    assert [line.split()[0] for line in lines[1:]] == ["broken", "lake", "lake"]
    said = relay.ok("replication", "status", "-o", "json").json["sinks"]
    states = {(each["sink"], each["shard"]): each["state"] for each in said}
    assert states == {
        ("lake", "orders"): "running",
        ("lake", "invoices"): "running",
        ("broken", "orders"): "failed",
    }
    [broken] = relay.ok("replication", "status", "broken", "-o", "jsonl").lines
    assert "cannot write to" in broken["lastError"]
    assert broken["lagEvents"] > 0


def test_a_sink_is_paused_and_resumed(relay: Relay) -> None:
    caught_up(relay)
    [paused] = relay.ok("replication", "pause", "lake", "--shard", "orders", "-o", "jsonl").lines
    assert (paused["state"], paused["shard"]) == ("paused", "orders")
    relay.enqueue()
    [behind] = relay.ok("replication", "status", "lake", "-s", "orders", "-o", "jsonl").lines
    assert behind["lagEvents"] == 1
    assert "paused" in relay.ok("replication", "status").out
    relay.ok("replication", "resume", "lake")
    caught_up(relay)


def test_a_sink_is_set_back_and_replayed(relay: Relay) -> None:
    relay.enqueue()
    caught_up(relay)
    [before] = relay.ok("replication", "status", "lake", "-s", "orders", "-o", "jsonl").lines
    relay.ok("replication", "replay", "lake", "--shard", "orders")
    caught_up(relay)
    [after] = relay.ok("replication", "status", "lake", "-s", "orders", "-o", "jsonl").lines
    assert after["events"] == before["events"] + before["checkpoint"]
    relay.ok("replication", "reset", "lake", "--shard", "orders", "--to", 1)
    caught_up(relay)
    [again] = relay.ok("replication", "status", "lake", "-s", "orders", "-o", "jsonl").lines
    assert again["events"] == after["events"] + before["checkpoint"] - 1


def test_what_makes_no_sense_is_refused(relay: Relay) -> None:
    said = relay.run("replication", "pause", "nothing")
    assert said.code == 4
    assert (
        "there is no sink 'nothing' of any shard; there are: broken of orders, lake of invoices, lake of orders"
        in said.err
    )
    known = "; there are: broken of orders, lake of invoices, lake of orders (replication.unknown_sink)\n"
    for arguments, words in (
        (("-s", "nosuch"), "there is no sink of a shard 'nosuch'"),
        (("",), "there is no sink '' of any shard"),
        (("lake", "-s", "nosuch"), "there is no sink 'lake' of a shard 'nosuch'"),
    ):
        said = relay.run("replication", "status", *arguments)
        assert (said.code, said.err) == (4, f"error: {words}{known}")
    assert relay.run("replication", "reset", "lake").code == 2
    assert relay.run("replication", "reset", "lake", "--to", 10**6).code == 2


def test_a_replay_from_behind_the_end_repeats_the_number_that_was_typed(relay: Relay) -> None:
    relay.enqueue()
    caught_up(relay)
    [status] = relay.ok("replication", "status", "lake", "-s", "orders", "-o", "jsonl").lines
    last = status["checkpoint"]
    said = relay.run("replication", "replay", "lake", "-s", "orders", "--from", last + 89)
    assert said.err == f"error: --from {last + 89} lies behind event {last}, where the log of orders ends\n"
    assert said.code == 2
    # The event that comes next may be the first: then nothing is delivered again.
    relay.ok("replication", "replay", "lake", "-s", "orders", "--from", last + 1)


def test_a_node_without_sinks_says_so(node: DevNode) -> None:
    said = Relay(node.url, "unused").ok("replication", "status")
    assert said.out == "no sinks: a node has those of [sinks.NAME] in its configuration\n"


def test_a_log_behind_what_its_sink_has_got_is_said_to_be_and_can_be_given_up(tmp_path: Path) -> None:
    data, namespace = tmp_path / "data", "resourcelease"
    (tmp_path / "omnirelay.toml").write_text(f'[node]\nport = 0\ndata = "{data}"\n[sinks.lake]\nkind = "file"\n')
    files = Relay("", namespace)
    for enqueued in (1, 20):
        process = spawned("serve", "--config", "omnirelay.toml", cwd=tmp_path)
        relay = Relay(started(process.stdout, tmp_path), namespace)
        for _ in range(enqueued):
            relay.enqueue()
        delivered(relay)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        if enqueued == 1:
            shutil.copytree(data / namespace, tmp_path / "older")
    shutil.rmtree(data / namespace)
    (tmp_path / "older").rename(data / namespace)
    process = spawned("serve", "--config", "omnirelay.toml", cwd=tmp_path)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 6
    assert f"`omnirelay log recover --data {data}` what can be kept" in err
    verified = files.run("log", "verify", "--data", data, "-o", "json")
    assert (verified.code, verified.json["code"]) == (6, "error.log.regressed")
    said = files.run("log", "recover", "--data", data)
    assert said.code == 6
    assert "the sink lake has got event" in said.err
    assert "kept: the events up to 2; lost: 3 to 23, and whatever came after that" in said.err
    recovered = files.ok("log", "recover", "--data", data, "--accept-loss", "--yes", "-o", "json").json
    assert (recovered["lastSequence"], recovered["fencesAbove"]) == (2, 23)
    process = spawned("serve", "--config", "omnirelay.toml", cwd=tmp_path)
    try:
        again = Relay(started(process.stdout, tmp_path), namespace)
        assert again.ok("lease", "-o", "json").json["ownershipToken"]["fence"] > 23 + 2**32
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def delivered(relay: Relay) -> None:
    """Wait until no sink is behind."""
    with httpx.Client(base_url=relay.url, timeout=PATIENCE_S) as client:
        while any(
            each["lagEvents"] or each["state"] != "running"
            for each in client.get("/omnirelay/control/replication").json()["sinks"]
        ):
            pass
