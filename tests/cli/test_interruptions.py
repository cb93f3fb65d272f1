"""Signals and broken pipes while items are between two places: none of them is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Relay
from tests.cli.processes import command, environment, omnirelay, spawned
from tests.cli.scripted import Answer, server
from tests.patience import PATIENCE_S

SIGNALS = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


def page(*ids: int, left: int) -> bytes:
    return json.dumps({"items": [{"sequenceId": number} for number in ids], "remainingCount": left}).encode()


def ids_in(text: str) -> list[int]:
    return [json.loads(line)["sequenceId"] for line in text.splitlines()]


class Signalled:
    """A command that is sent a signal while the server makes up an answer."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: object, cwd: Path | None = None) -> None:
        self.process = spawned(*arguments, cwd=cwd)

    def at(self, number: int, answer: bytes) -> Callable[[], bytes]:
        def give() -> bytes:
            assert self.process is not None
            self.process.send_signal(number)
            return answer

        return give

    def end(self) -> tuple[int, str, str]:
        assert self.process is not None
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@SIGNALS
def test_page_that_was_asked_for_is_in_the_file_when_drain_is_interrupted(
    number: int, code: int, tmp_path: Path
) -> None:
    file = tmp_path / "pending.jsonl"
    drain = Signalled()
    with server(b"{}", page(1, 2, left=4), drain.at(number, page(3, 4, left=2))) as node:
        drain.start("drain", "--to", file, "--url", node.url)
        ended, _, err = drain.end()
    assert ids_in(file.read_text()) == [1, 2, 3, 4]
    assert ended == code
    assert err == f"error: interrupted; 4 drained items are safe in {file}, 2 pending items remain in the shard\n"


def test_drain_that_is_interrupted_before_it_took_anything_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "pending.jsonl"
    drain = Signalled()
    with server(drain.at(signal.SIGTERM, b"{}")) as node:
        drain.start("drain", "--to", file, "--url", node.url)
        ended, _, _ = drain.end()
    assert ended == 143
    assert not file.exists()


@SIGNALS
def test_interrupted_restore_says_how_many_are_in(number: int, code: int, tmp_path: Path) -> None:
    file = tmp_path / "pending.jsonl"
    file.write_bytes(b'{"sequenceId": 1}\n{"sequenceId": 2}\n')
    restore = Signalled()
    with server(b"{}", restore.at(number, b'{"restoredCount": 1, "duplicateCount": 0}')) as node:
        restore.start("restore", "--from", file, "--batch", 1, "--url", node.url)
        ended, _, err = restore.end()
    assert ended == code
    assert err == (
        "error: interrupted; 1 were restored before it and 0 were there already; repeat with the whole file\n"
    )


def test_restore_from_a_pipe_takes_everything_in_before_an_interruption_ends_it() -> None:
    restored = b'{"restoredCount": 1, "duplicateCount": 0}'
    sent: list[subprocess.Popen[bytes]] = []

    def interrupt() -> bytes:
        sent[0].send_signal(signal.SIGINT)
        return restored

    with server(b"{}", interrupt, restored) as node:
        process = subprocess.Popen(
            command("restore", "--from", "-", "--batch", 1, "--url", node.url),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        sent.append(process)
        _, err = process.communicate(b'{"sequenceId": 1}\n{"sequenceId": 2}\n', timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err.decode() == (
        "error: interrupted; the input is in to its end, 2 were restored and 0 were there already\n"
    )


@SIGNALS
def test_interrupted_enqueue_says_with_which_line_to_go_on(number: int, code: int, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text('{"resourceType": "t", "resourceId": "x"}\n' * 3)
    accepted = json.dumps({"results": [{"sequenceId": 1, "duplicate": False}], "stats": {}}).encode()
    enqueue = Signalled()
    with server(accepted, enqueue.at(number, accepted)) as node:
        enqueue.start("enqueue", "--from", file, "--batch", 1, "--url", node.url)
        ended, _, err = enqueue.end()
    assert ended == code
    assert err == "error: interrupted; 2 items up to line 2 were accepted and stay, go on from line 3\n"


def test_an_interruption_while_the_commands_are_being_loaded_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = omnirelay("stats", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_enqueue_that_waits_for_its_input_is_interrupted_at_once(relay: Relay) -> None:
    process = subprocess.Popen(
        command("enqueue", "--from", "-", "--batch", 1, "-o", "jsonl", "--url", relay.url, "-n", relay.namespace),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED="1"),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"resourceType": "t", "resourceId": "x"}\n')
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE_S)
    _, err = process.communicate()
    assert process.returncode == 130
    assert b"1 items up to line 1 were accepted and stay, go on from line 2" in err


def test_enqueue_that_lost_the_node_says_which_lines_may_be_there_twice() -> None:
    accepted = json.dumps({"results": [{"sequenceId": 1, "duplicate": False}], "stats": {}}).encode()
    with server(accepted, None) as node:
        said = node.run("enqueue", "--from", "-", "--batch", 1, text='{"resourceType": "t", "resourceId": "x"}\n' * 2)
    assert said.code == 3
    assert "those without a requestId are there twice then" in said.err


# -- pipes ---------------------------------------------------------------------------------------


def test_items_that_nobody_reads_are_in_a_file(relay: Relay, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        relay.enqueue(name)
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        command("drain", "--to", "-", "--url", relay.url, "-n", relay.namespace),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    os.close(writer)
    _, err = process.communicate(timeout=PATIENCE_S)
    [file] = tmp_path.iterdir()
    assert process.returncode == 1
    assert err == (
        f"error: nobody reads stdout any more; all 3 drained items are safe in {file}, those that were passed on, too\n"
    )
    assert relay.ok("restore", "--from", file).out == "restored 3 items, 0 were there already\n"


def test_what_a_reader_took_and_dropped_is_in_a_file(relay: Relay, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        relay.enqueue(name)
    drained = omnirelay("drain", "--to", "-", "--url", relay.url, "-n", relay.namespace, cwd=tmp_path)
    [file] = tmp_path.iterdir()
    assert drained.returncode == 0
    assert drained.stderr.startswith("drained 3 items to stdout, 0 pending items remain; all of them are in ")
    assert str(file) in drained.stderr
    assert file.read_text() == drained.stdout
    assert file.stat().st_mode & 0o077 == 0


def test_drain_into_a_redirected_file_or_of_nothing_leaves_no_second_file(relay: Relay, tmp_path: Path) -> None:
    relay.enqueue()
    place = tmp_path / "here"
    place.mkdir()
    for count in (1, 0):
        with (tmp_path / "out.jsonl").open("wb") as out:
            process = subprocess.run(
                command("drain", "--to", "-", "--url", relay.url, "-n", relay.namespace),
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                cwd=place,
                env=environment(),
                check=True,
            )
        assert process.stderr == f"drained {count} items to stdout, 0 pending items remain\n"
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == count
        assert list(place.iterdir()) == []


def test_stdout_that_takes_no_more_costs_no_item(relay: Relay, tmp_path: Path) -> None:
    relay.enqueue()
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            command("drain", "--to", "-", "--url", relay.url, "-n", relay.namespace),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
            check=False,
        )
    [file] = tmp_path.iterdir()
    assert process.returncode == 1
    assert process.stderr.startswith(
        "error: cannot write stdout: No space left on device; all 1 drained items are safe"
    )
    assert len(file.read_text().splitlines()) == 1


def test_restore_reads_nothing_while_its_node_is_away(relay: Relay, tmp_path: Path) -> None:
    file = tmp_path / "pending.jsonl"
    file.write_text('{"sequenceId": 1}\n')
    with file.open("rb") as source:
        process = subprocess.run(
            command("restore", "--from", "-", "--url", "http://127.0.0.1:1"),
            stdin=source,
            capture_output=True,
            env=environment(),
            check=False,
        )
        assert source.tell() == 0  # They share the position in the file.
    assert process.returncode == 3


def test_page_that_does_not_fit_on_the_disk_is_put_back(relay: Relay, tmp_path: Path) -> None:
    lines = "".join(f'{{"resourceType": "t", "resourceId": "r{number}"}}\n' for number in range(1_100))
    relay.ok("enqueue", "--from", "-", text=lines)
    before = relay.ok("peek", "--max", 2_000, "-o", "json").json["items"]
    file = tmp_path / "pending.jsonl"
    drain = command("drain", "--to", file, "--url", relay.url, "-n", relay.namespace)
    process = subprocess.run(
        # No file may grow beyond 64 times 512 bytes: half a page, in the middle of a line.
        ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *drain],
        capture_output=True,
        text=True,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr == (
        f"error: cannot write {file}: File too large; the 1000 items drained last were put back; no item was drained\n"
    )
    assert not file.exists()
    after = relay.ok("peek", "--max", 2_000, "-o", "json").json["items"]
    assert sorted(after, key=lambda item: int(item["sequenceId"])) == before  # They went to the end of the line.


def test_page_that_can_neither_be_kept_nor_put_back_is_named(tmp_path: Path) -> None:
    items = [{"sequenceId": number, "text": "x" * 1000} for number in range(100)]
    taken: Answer = json.dumps({"items": items, "remainingCount": 0}).encode()
    file = tmp_path / "pending.jsonl"
    with server(b"{}", taken, None) as node:
        process = subprocess.run(
            ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *command("drain", "--to", file, "--url", node.url)],
            capture_output=True,
            text=True,
            env=environment(PYTHONDONTWRITEBYTECODE="1"),
            check=False,
        )
        put_back: list[tuple[str, Any]] = node.asked[2:]
    assert put_back == [("restore", {"items": items})]
    assert process.returncode == 1
    assert "the 100 items drained last could not be put back" in process.stderr
    assert "are in the node's log only (omnirelay log export)" in process.stderr


# -- stdout that takes nothing -------------------------------------------------------------------


def test_full_disk_under_stdout_is_said_in_a_line(relay: Relay) -> None:
    relay.enqueue()
    arguments = ["--url", relay.url, "-n", relay.namespace]
    for name, code in (("stats", 1), ("peek", 1), ("why", 4)):
        more = ["99"] if name == "why" else []
        with Path("/dev/full").open("wb") as full:
            process = subprocess.run(
                command(name, *more, *arguments),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                check=False,
            )
        assert process.returncode == code
        if code == 1:
            assert process.stderr == "error: cannot write: No space left on device\n"


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_leases_that_cannot_be_printed_are_named(relay: Relay, output: str) -> None:
    relay.enqueue()
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            command("lease", "-o", output, "--url", relay.url, "-n", relay.namespace),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    said, error = process.stderr.splitlines()
    assert process.returncode == 1
    assert error == "error: cannot write: No space left on device"
    head, _, token = said.rpartition(" ")
    assert head == "leased, but not shown:"
    relay.ok("complete", token)


@SIGNALS
def test_interrupted_bench_takes_its_items_out_again(number: int, code: int, relay: Relay) -> None:
    bench = spawned(
        *("bench", "--connections", 4, "--batch", 50, "--seconds", 10 * PATIENCE_S),
        *("--url", relay.url, "-n", relay.namespace),
    )
    try:
        while relay.ok("stats", "-o", "json").json["stats"]["completedCount"] < 200:
            assert bench.poll() is None
        bench.send_signal(number)
        out, err = bench.communicate(timeout=PATIENCE_S)
    finally:
        bench.kill()
    assert bench.returncode == code
    assert "cycles/s" in out
    assert err == "error: interrupted; all items are taken out again\n"
    stats = relay.ok("stats", "-o", "json").json["stats"]
    assert (stats["pendingCount"], stats["activeLeaseCount"]) == (0, 0)
