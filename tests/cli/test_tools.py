"""The program as a whole, and its tools: help, completion, `request`, `config`, `bench`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import omnirelay
from omnirelay.cli.app import app
from tests.cli.conftest import Relay
from tests.cli.processes import command, environment
from tests.cli.processes import omnirelay as run_omnirelay
from tests.patience import PATIENCE_S

HEAVY = ["asyncio", "apsw", "httpx", "msgspec", "rich", "uvicorn", "omnirelay.engine", "omnirelay.node"]


def paths(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """Every command, as it is called."""
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from paths(each, *before, name)
        else:
            yield (*before, name)


COMMANDS = sorted(paths(get_command(app)))


def test_all_commands_are_there() -> None:
    running = ["dev", "serve", "bench", "introspect", "request"]
    working = ["enqueue", "lease", "heartbeat", "complete", "fail", "release"]
    handling = ["cancel", "get", "drain", "restore", "pause", "resume", "stats", "peek", "why", "backpressure"]
    letters = [("deadletters", name) for name in ("list", "show", "edit", "redrive", "purge")]
    log = [("log", name) for name in ("tail", "verify", "at", "export", "backup")]
    config = [("config", name) for name in ("show", "validate", "schema")]
    assert set(COMMANDS) >= {*((name,) for name in running + working + handling), *letters, *log, *config}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_examples_of_it(relay_without_node: Relay, path: tuple[str, ...]) -> None:
    shown = relay_without_node.ok(*path, "--help").out
    assert f"omnirelay {' '.join(path)}" in shown.partition("Examples:")[2]


@pytest.fixture
def relay_without_node() -> Relay:
    return Relay("http://127.0.0.1:1", "none")


def test_help_comes_at_once_because_nothing_heavy_is_loaded() -> None:
    script = (
        "import sys; sys.argv = ['omnirelay', '--help']\n"
        "from omnirelay.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    shown, _, loaded = done.stdout.partition("LOADED")
    assert "Run a node:" in shown
    assert "Exit codes: 0 done" in shown
    assert set(loaded.split()).isdisjoint(HEAVY)


def test_version(relay_without_node: Relay) -> None:
    assert relay_without_node.ok("--version").out == f"omnirelay {omnirelay.__version__}\n"


def test_unknown_commands_and_options_end_with_2(relay_without_node: Relay) -> None:
    assert relay_without_node.run("nonsense").code == 2
    assert relay_without_node.run("stats", "--nonsense").code == 2


def test_shells_can_complete() -> None:
    done = run_omnirelay(_OMNIRELAY_COMPLETE="complete_bash", COMP_WORDS="omnirelay dea", COMP_CWORD="1")
    assert done.stdout.split() == ["deadletters"]


def test_pipe_that_is_closed_early_is_no_traceback(relay: Relay) -> None:
    lines = "".join(f'{{"resourceType": "t", "resourceId": "r{number}"}}\n' for number in range(2_000))
    relay.ok("enqueue", "--from", "-", text=lines)
    env = environment(OMNIRELAY_URL=relay.url, OMNIRELAY_NAMESPACE=relay.namespace)
    peek = subprocess.Popen(
        command("peek", "--max", 2_000, "-o", "jsonl"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    assert peek.stdout is not None
    assert peek.stderr is not None
    peek.stdout.readline()
    peek.stdout.close()
    assert peek.stderr.read() == b""
    peek.stderr.close()
    assert peek.wait(timeout=PATIENCE_S) == 1


def read_terminal(here: int) -> bytes:
    """All that is drawn until nobody has the other side any more. It holds little: who draws waits for who reads."""
    shown = []
    with open(here, "rb", buffering=0) as terminal, suppress(OSError):  # That is how a terminal says that it is over.
        while data := terminal.read(1 << 16):
            shown.append(data)
    return b"".join(shown)


@pytest.mark.parametrize("plain", [True, False])
def test_colours_are_for_terminals_that_want_them(relay: Relay, plain: bool) -> None:
    env = {**environment(OMNIRELAY_URL=relay.url, OMNIRELAY_NAMESPACE=relay.namespace), "TERM": "xterm-256color"}
    if not plain:
        del env["NO_COLOR"]
    here, there = pty.openpty()
    done = subprocess.Popen(command("stats"), stdin=there, stdout=there, stderr=there, env=env)
    os.close(there)
    shown = read_terminal(here)
    assert done.wait(timeout=PATIENCE_S) == 0
    assert b"ready" in shown
    assert (b"\x1b[1m" in shown) is not plain


def test_progress_is_drawn_at_terminals_only(relay: Relay, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text('{"resourceType": "t", "resourceId": "x"}\n' * 100)
    env = {**environment(OMNIRELAY_URL=relay.url, OMNIRELAY_NAMESPACE=relay.namespace), "TERM": "xterm-256color"}
    here, there = pty.openpty()
    done = subprocess.Popen(command("enqueue", "--from", file), stdout=subprocess.PIPE, stderr=there, env=env)
    os.close(there)
    drawn = read_terminal(here).decode()
    out, _ = done.communicate(timeout=PATIENCE_S)
    assert out == b"enqueued 100 items\n"
    assert "4.1/4.1 kB" in drawn
    assert relay.ok("enqueue", "--from", file).err == ""


# -- request -------------------------------------------------------------------------------------


def test_request_calls_any_procedure(relay: Relay, tmp_path: Path) -> None:
    body = {"payload": {"resourceType": "t", "resourceId": "x"}}
    assert relay.ok("request", "enqueue", "--body", json.dumps(body)).json["sequenceId"] == 1
    file = tmp_path / "request.json"
    file.write_text('{"sequenceId": 1}')
    assert relay.ok("request", f"{relay.namespace}::get", "--body", f"@{file}").json["item"]["state"] == "ready"
    leased = relay.ok("request", "lease", "--caller", "me", "--ttl", "5s", "--header", "Rpc-Shard-Key=a").json
    assert leased["ownerPeerId"] == "me"
    assert relay.run("request", "stats", "--header", "novalue").code == 2


def test_refused_request_prints_the_body_and_the_status(relay: Relay) -> None:
    said = relay.run("request", "get", "--body", '{"sequenceId": 99}')
    assert said.code == 4
    assert said.json["code"] == "error.resourcelease.unknown_item"
    assert said.err == "refused: HTTP 404 NotFound (error.resourcelease.unknown_item)\n"
    assert relay.run("request", "get", "--body", "{").code == 2
    assert relay.run("request", "nonsense").code == 1
    assert relay.run("request", "stats", "--caller", "Zoë").code == 2


def test_ttl_that_has_passed_is_a_deadline(relay: Relay) -> None:
    said = relay.run("request", "lease", "--ttl", "0s")
    assert said.code == 1
    assert "deadline-exceeded" in said.err


# -- config --------------------------------------------------------------------------------------


def test_config_shows_values_and_where_they_come_from(relay_without_node: Relay, tmp_path: Path) -> None:
    config = tmp_path / "omnirelay.toml"
    config.write_text('[node]\nname = "east"\n')
    rows = relay_without_node.ok("config", "show", "--config", config, "-o", "jsonl").lines
    by_key = {row["key"]: row for row in rows}
    assert by_key["node.name"] == {"key": "node.name", "value": '"east"', "origin": f"file {config}:2"}
    assert by_key["node.port"]["origin"] == "default"
    done = run_omnirelay("config", "show", OMNIRELAY_NODE__PORT="7171")
    [line] = [line.split() for line in done.stdout.splitlines() if line.startswith("node.port ")]
    assert line == ["node.port", "7171", "environment", "OMNIRELAY_NODE__PORT"]


def test_config_obeys_the_same_environment_as_serve(tmp_path: Path) -> None:
    config = tmp_path / "omnirelay.toml"
    config.write_text("[node]\nport = 7272\n")
    shown = run_omnirelay("config", "show", OMNIRELAY_CONFIG=str(config))
    assert f"file {config}:2" in shown.stdout
    validated = run_omnirelay("config", "validate", OMNIRELAY_CONFIG=str(config))
    assert "7272" in validated.stdout
    without = run_omnirelay("config", "validate")
    assert without.returncode == 2
    assert without.stderr == "error: say which configuration: --config FILE, or OMNIRELAY_CONFIG\n"


def test_config_validates_and_has_a_schema(relay_without_node: Relay, tmp_path: Path) -> None:
    config = tmp_path / "omnirelay.toml"
    config.write_text("[node]\nport = 7171\n")
    assert "7171" in relay_without_node.ok("config", "validate", "--config", config).out
    config.write_text('[node]\nport = "x"\n')
    assert relay_without_node.run("config", "validate", "--config", config).code == 2
    assert relay_without_node.run("config", "validate", "--config", tmp_path / "nowhere").code == 2
    assert "node" in relay_without_node.ok("config", "schema").json["properties"]


# -- bench ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 20])
def test_bench_measures_and_leaves_nothing_behind(relay: Relay, batch: int) -> None:
    relay.enqueue("mine")
    report = relay.ok("bench", "--connections", 2, "--batch", batch, "--seconds", 0.3, "-o", "json").json
    assert report["errors"] == 0
    assert report["cycles"] >= batch
    assert report["cyclesPerSecond"] > 0
    assert report["enqueue"]["p99Ms"] >= report["enqueue"]["p50Ms"] > 0
    assert report["lease"]["p50Ms"] > 0
    stats = relay.ok("stats", "-o", "json").json["stats"]
    assert (stats["readyCount"], stats["activeLeaseCount"]) == (1, 0)


def test_bench_prints_a_table_and_needs_a_node(relay: Relay) -> None:
    shown = relay.ok("bench", "--connections", 1, "--seconds", 0.1).out
    assert "cycles/s" in shown
    assert "0 errors" in shown
    assert relay.run("bench", "--url", "http://127.0.0.1:1").code == 3
    relay.ok("pause", "--intake")
    said = relay.run("bench", "--connections", 1, "--seconds", 0.1)
    assert said.code == 1
    assert "not one cycle succeeded" in said.err
    report = relay.run("bench", "--connections", 1, "--seconds", 0.1, "-o", "json").json
    assert report["lease"]["calls"] > 0
    assert report["complete"] == {"calls": 0, "p50Ms": None, "p99Ms": None}


def test_bench_on_a_paused_shard_says_why_nothing_went_round_and_what_it_leaves(relay: Relay) -> None:
    relay.ok("pause")
    said = relay.run("bench", "--connections", 1, "--seconds", 0.1)
    assert said.code == 1
    assert "not one cycle succeeded: no item could be leased" in said.err
    pending = relay.ok("stats", "-o", "json").json["stats"]["pendingCount"]
    assert pending > 0
    assert f"items of the type omnirelay-bench stay in the shard ({pending} ready)" in " ".join(said.err.split())
    relay.ok("resume")
    relay.ok("bench", "--connections", 1, "--seconds", 0.1)
    assert relay.ok("stats", "-o", "json").json["stats"]["pendingCount"] == 0
