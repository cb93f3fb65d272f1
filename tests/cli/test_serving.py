"""Nodes that the command line runs: how they start, what they say, how they end."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Relay
from tests.cli.processes import DevNode, omnirelay, spawned
from tests.patience import PATIENCE_S

DEFAULT = "resourcelease"


def test_dev_says_what_it_serves_where_the_data_is_and_what_to_try(tmp_path: Path) -> None:
    with DevNode(cwd=tmp_path) as node:
        text = "\n".join(node.printed)
        assert "Not for production: no authentication, loopback only." in text
        assert f"namespaces  {DEFAULT}" in text
        assert f"{node.url}/docs" in text
        assert f"{node.url}/metrics" in text
        assert str(tmp_path / "omnirelay-data") in text
        tries = [line.strip() for line in node.printed if line.startswith("  omnirelay ")]
        assert len(tries) == 3
        assert all(each.endswith(f" --url {node.url}") for each in tries)
        about = json.loads((tmp_path / "omnirelay-data" / "node.json").read_text())
        assert (about["url"], about["pid"]) == (node.url, node.process.pid)
        assert node.stop() == 0
    assert not (tmp_path / "omnirelay-data" / "node.json").exists()


def test_dev_in_memory_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    with DevNode("--ephemeral", "--namespace", "one", "--namespace", "two", cwd=tmp_path) as node:
        text = "\n".join(node.printed)
        assert "everything is lost at exit" in text
        assert "one, two" in text
        assert f"omnirelay lease --url {node.url} --namespace one" in text
        assert node.stop(signal.SIGINT) == 0
    assert list(tmp_path.iterdir()) == []


def test_everything_is_there_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with DevNode("--data", data) as node:
        relay = Relay(node.url, DEFAULT)
        for name in ("a", "b", "c"):
            relay.enqueue(name, "--body", name)
        token = relay.lease()
        before = relay.ok("peek", "-o", "json").json
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
    with DevNode("--data", data) as node:
        relay = Relay(node.url, DEFAULT)
        assert relay.ok("peek", "-o", "json").json == before
        relay.ok("complete", token)
        assert relay.ok("stats", "-o", "json").json["stats"]["completedCount"] == 1


def test_port_that_is_taken_is_one_line_and_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = omnirelay("dev", "--ephemeral", "--port", taken.getsockname()[1], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: cannot listen on 127.0.0.1:")
    assert done.stderr.endswith("(node.port_taken)\n")
    assert "Traceback" not in done.stderr


def test_directory_of_a_running_node_is_refused(tmp_path: Path) -> None:
    with DevNode("--data", tmp_path / "data"):
        done = omnirelay("dev", "--port", 0, "--data", tmp_path / "data")
    assert done.returncode == 1
    assert done.stderr.endswith("(error.log.locked)\n")
    assert "Traceback" not in done.stderr


def test_log_that_lost_its_end_is_refused_with_6(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with DevNode("--data", data) as node:
        Relay(node.url, DEFAULT).enqueue()
        assert node.stop() == 0
    witness = data / DEFAULT / "leases.witness"
    seen = json.loads(witness.read_text())
    witness.write_text(json.dumps({**seen, "sequence": seen["sequence"] + 5}))
    done = omnirelay("dev", "--port", 0, "--data", data)
    assert done.returncode == 6
    assert done.stderr.endswith("(error.log.regressed)\n")
    assert f"omnirelay log verify --data {data}" in done.stderr
    assert "Traceback" not in done.stderr
    verified = omnirelay("log", "verify", "--data", data)
    assert verified.returncode == 6


@pytest.mark.parametrize("arguments", [("--data", "x", "--ephemeral"), ("--namespace", "a/b"), ("--port", "70000")])
def test_wrong_usage_of_dev_ends_with_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = omnirelay("dev", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_serve_follows_its_file_and_flags_go_before_it(tmp_path: Path) -> None:
    config = tmp_path / "omnirelay.toml"
    config.write_text('[node]\nport = 1\ndata = "elsewhere"\n[shards.orders]\ncapacity = 7\n')
    node = spawned("serve", "--config", config, "--port", 0, "--data", tmp_path / "here", cwd=tmp_path)
    assert node.stdout is not None
    line = node.stdout.readline()
    assert line.startswith("OmniRelay serves orders at http://127.0.0.1:")
    url = line.split(" at ")[1].split(",")[0]
    Relay(url, "orders").enqueue()
    assert (tmp_path / "here" / "orders" / "leases.db").exists()
    node.send_signal(signal.SIGTERM)
    _, err = node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 0
    assert all(json.loads(each)["event"] for each in err.splitlines())


def test_serve_reads_the_environment(tmp_path: Path) -> None:
    env = {"OMNIRELAY_NODE__PORT": "0", "OMNIRELAY_LOG__URL": "memory:"}
    node = spawned("serve", cwd=tmp_path, **env)
    assert node.stdout is not None
    assert node.stdout.readline().startswith("OmniRelay serves resourcelease at ")
    node.send_signal(signal.SIGTERM)
    node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 0


def test_serve_stays_on_loopback_unless_told_to_be_insecure(tmp_path: Path) -> None:
    done = omnirelay("serve", "--host", "0.0.0.0", "--port", 0, cwd=tmp_path)
    assert done.returncode == 2
    assert "no authentication" in done.stderr
    assert "--insecure" in done.stderr
    node = spawned("serve", "--host", "0.0.0.0", "--port", 0, "--insecure", cwd=tmp_path)
    assert node.stdout is not None
    assert node.stdout.readline().startswith("OmniRelay serves ")
    node.send_signal(signal.SIGTERM)
    _, err = node.communicate(timeout=PATIENCE_S)
    assert err.startswith("warning: ")


def test_bad_configuration_names_all_problems_and_ends_with_2(tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text("[node]\nprt = 1\n[shards.a]\ncapacity = 0\n")
    for arguments in (("serve", "--config", config), ("config", "validate", "--config", config)):
        done = omnirelay(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("error (config.invalid):\n")
        assert "node.prt" in done.stderr
        assert "shards.a.capacity" in done.stderr


def test_a_data_directory_that_takes_no_node_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "node.json").mkdir()
    said = omnirelay("serve", "--port", 0, "--data", tmp_path)
    assert said.returncode == 2
    assert f"cannot use the data directory {tmp_path}: cannot write node.json: " in said.stderr
    assert "Traceback" not in said.stderr
    assert not list(tmp_path.glob("node.json.*"))
