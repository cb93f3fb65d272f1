"""Arguments, input and streams that are not what a command can use: a line and an exit code, never a traceback."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Relay
from tests.cli.processes import command, environment
from tests.patience import PATIENCE_S

FOR_EVER = "999999999999999d"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("get", 1, "--wait", FOR_EVER), "(resourcelease.waitMs.invalid)"),
        (("lease", "--wait", FOR_EVER), "(resourcelease.waitMs.invalid)"),
        (("enqueue", "t", "a", "--wait", FOR_EVER), "(resourcelease.waitMs.invalid)"),
        (("enqueue", "t", "\udce4"), "error: this is not UTF-8 text: "),
        (("heartbeat", "1:1:a", "--data", "NaN"), "error: --data is not JSON: it has NaN"),
        (("heartbeat", "1:1:a", "--data", "[1e999]"), "error: --data is not JSON: it has 1e999"),
        (("heartbeat", "1:1:a", "--data", "[" * 9_000), "error: --data is not JSON: it nests too deep"),
        (("complete", "[" * 9_000), "error: the token is not JSON: "),
        (("deadletters", "redrive", "--all", "--rate", "nan"), "Invalid value for '--rate'"),
        (("deadletters", "redrive", "--all", "--rate", "inf"), "Invalid value for '--rate'"),
        (("log", "tail", "--types", " , "), "error: --types names no type of event"),
        (("request", "stats", "--header", "a b=c"), "error: --header wants NAME=VALUE"),
        (("request", "stats", "--header", "Content-Length=5"), "error: Content-Length follows from the body"),
        (("stats", "--url", "http://127.0.0.1:65536"), "is not an address such as"),
        (("stats", "--namespace", ""), "error: --namespace '' is no name of a shard"),
        (("stats", "--namespace", "a/b"), "error: --namespace 'a/b' is no name of a shard"),
        (("stats", "--namespace", "\udce4"), "is no name of a shard"),
        (("log", "tail", "--namespace", "x" * 99_999), "is no name of a shard"),
    ],
)
def test_an_argument_that_cannot_be_is_wrong_usage(relay: Relay, arguments: tuple[object, ...], complaint: str) -> None:
    said = relay.run(*arguments)
    assert (said.code, said.out) == (2, "")
    assert complaint in said.err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[" * 9_000, "is not JSON: it nests too deep"),
        ('{"resourceType": "t", "resourceId": "a", "body": [NaN]}', "is not JSON: it has NaN"),
        ('{"payload": {"resourceType": "t", "resourceId": "a"}, "delayMs": 1e999}', "is not JSON: it has 1e999"),
        ('{"resourceType": "t", "resourceId": "a", "priority": 0}', "has priority, which stands beside a payload"),
        ('{"resourceType": "t", "resourceId": "a", "DelayMs": 5}', "has DelayMs, which stands beside a payload"),
    ],
)
def test_a_line_that_no_node_would_read_as_meant_is_named(relay: Relay, line: str, why: str) -> None:
    good = '{"resourceType": "t", "resourceId": "x"}'
    said = relay.run("enqueue", "--from", "-", text=f"{good}\n{line}\n")
    assert said.code == 2
    assert f"error: line 2 of - {why}" in said.err
    assert relay.ok("stats", "-o", "json").json["stats"]["readyCount"] == 0


def test_a_node_may_take_for_ever(relay: Relay) -> None:
    assert "stats" in relay.ok("request", "stats", "--ttl", FOR_EVER).json


def ended(relay: Relay, *arguments: object, closed: list[str]) -> tuple[int, str]:
    """Run a command with some of its streams closed; its exit code, and what it said where it still could."""
    closing = " ".join({"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}[name] for name in closed)
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", *command(*arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=environment(OMNIRELAY_URL=relay.url, OMNIRELAY_NAMESPACE=relay.namespace),
    )
    return done.returncode, done.stdout


def test_a_stream_that_is_closed_is_an_empty_one(relay: Relay) -> None:
    assert ended(relay, "enqueue", "--from", "-", closed=["stdin"]) == (0, "enqueued 0 items\n")
    assert ended(relay, "deadletters", "purge", "--all", closed=["stdin"])[0] == 2
    assert ended(relay, "stats", closed=["stdout"]) == (0, "")
    assert ended(relay, "get", 99, closed=["stdin", "stdout", "stderr"]) == (4, "")


def test_what_is_printed_does_not_go_into_a_file_that_has_the_number_of_a_closed_stream(
    relay: Relay, tmp_path: Path
) -> None:
    file = tmp_path / "pending.jsonl"
    relay.enqueue()
    assert ended(relay, "drain", "--to", file, closed=["stdin", "stdout", "stderr"]) == (0, "")
    assert len(file.read_text().splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_encoding_of_stdout_lacks_is_escaped(relay: Relay, encoding: str) -> None:
    relay.enqueue("日本…😀")
    env = {"OMNIRELAY_URL": relay.url, "OMNIRELAY_NAMESPACE": relay.namespace, "PYTHONIOENCODING": encoding}

    def printed(*arguments: str) -> str:
        done = subprocess.run(
            command(*arguments), capture_output=True, check=False, timeout=PATIENCE_S, env=environment(**env)
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode(encoding)

    assert json.loads(printed("get", "1", "-o", "json"))["item"]["payload"]["resourceId"] == "日本…😀"
    event = printed("log", "tail", "--no-follow", "--types", "Enqueue", "-o", "jsonl")
    assert json.loads(event)["payload"]["resourceId"] == "日本…😀"
    assert ("日本…😀" if encoding == "utf-8" else r"\u65e5\u672c\u2026\U0001f600") in printed("peek")


def test_help_that_does_not_fit_is_said_in_a_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("--help"), stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
        )
    assert (done.returncode, done.stderr) == (1, "error: cannot write: No space left on device\n")
