"""`omnirelay work`: a worker as a process."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Relay
from tests.cli.processes import DevNode
from tests.patience import PATIENCE_S

JOBS = """
import asyncio
import multiprocessing
import sqlite3
import threading
from pathlib import Path
from omnirelay import GiveUp, Handlers

handlers = Handlers()
not_handlers = 1

@handlers.handle("table")
def compact(job):
    return {"of": job.resource_id}

@handlers.handle("bad")
async def bad(job):
    raise GiveUp("no such bucket", error_code="jobs.bucket")

def wait_for_ever():
    threading.Event().wait()

@handlers.handle("child")
def end_a_child(job):
    child = multiprocessing.get_context("fork").Process(target=wait_for_ever)
    child.start()
    child.terminate()
    child.join(20)
    child.kill()
    return str(child.exitcode)

@handlers.handle("stuck")
def get_stuck(job):
    Path("begun").touch()
    wait_for_ever()

@handlers.handle("blocked")
async def block_the_loop(job):
    Path("begun").touch()
    wait_for_ever()

@handlers.handle("native")
async def block_the_loop_in_native_code(job):
    Path("begun").touch()
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    sqlite3.connect(":memory:").execute(numbers).fetchone()

@handlers.handle("idle")
async def wait_idly(job):
    Path("idle").touch()
    await asyncio.Event().wait()

@handlers.handle("until")
async def wait_for_a_file(job):
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.05)

@handlers.handle("stubborn")
async def do_not_end(job):
    Path("begun").touch()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""


def start_worker(relay: Relay, directory: Path, *arguments: str) -> subprocess.Popen[str]:
    (directory / "jobs.py").write_text(JOBS)
    return subprocess.Popen(
        [sys.executable, "-m", "omnirelay.cli", "work", *arguments],
        cwd=directory,
        env={**os.environ, "OMNIRELAY_URL": relay.url, "OMNIRELAY_NAMESPACE": relay.namespace},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_worker_works_shows_that_it_lives_and_stops_on_sigterm(relay: Relay, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    worker = start_worker(relay, tmp_path, "jobs:handlers", "--peer", "w-1", "--liveness-file", str(alive))
    good, bad = relay.enqueue("a"), relay.ok("enqueue", "bad", "b", "-o", "json").json["sequenceId"]
    done = relay.ok("get", good, "--wait", "2m", "-o", "json").json["item"]
    assert (done["state"], done["result"]) == ("completed", "eyJvZiI6ImEifQ==")
    dead = relay.ok("get", bad, "--wait", "2m", "-o", "json").json["item"]
    assert (dead["state"], dead["lastError"]["code"]) == ("dead", "jobs.bucket")
    wait_for(alive, worker)
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, said
    assert "w-1 works on table, bad" in said
    assert "completed 1, failed 1" in said


def wait_for(file: Path, worker: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert worker.poll() is None
        threading.Event().wait(0.05)


def test_a_signal_to_a_child_of_a_handler_ends_the_child_and_not_the_worker(relay: Relay, tmp_path: Path) -> None:
    worker = start_worker(relay, tmp_path, "jobs:handlers")
    child = relay.ok("enqueue", "child", "c", "-o", "json").json["sequenceId"]
    done = relay.ok("get", child, "--wait", "2m", "-o", "json").json["item"]
    assert base64.b64decode(done["result"]) == b"-15"
    after = relay.enqueue("a")
    assert relay.ok("get", after, "--wait", "2m", "-o", "json").json["item"]["state"] == "completed"
    worker.terminate()
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, "completed 2" in said) == (0, True), said


@pytest.mark.parametrize("kind", ["blocked", "native"])
def test_a_second_signal_ends_a_worker_whose_event_loop_a_handler_blocks(
    relay: Relay, tmp_path: Path, kind: str
) -> None:
    worker = start_worker(relay, tmp_path, "jobs:handlers")
    relay.ok("enqueue", kind, "b")
    wait_for(tmp_path / "begun", worker)
    worker.send_signal(signal.SIGTERM)
    while worker.poll() is None:
        # Again and again, as people do: one that comes while Python looks at the one before is seen with the next.
        worker.send_signal(signal.SIGINT)
        threading.Event().wait(0.05)
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode in (130, 143), said


def test_a_worker_shows_that_it_lives_while_a_handler_blocks_its_event_loop(relay: Relay, tmp_path: Path) -> None:
    """Its lease is kept meanwhile: a probe must not kill the worker under it."""
    alive = tmp_path / "alive"
    worker = start_worker(relay, tmp_path, "jobs:handlers", "--liveness-file", str(alive))
    try:
        relay.ok("enqueue", "blocked", "b")
        wait_for(tmp_path / "begun", worker)
        touched = {alive.stat().st_mtime_ns}
        end = time.monotonic() + PATIENCE_S
        while len(touched) < 4:  # One may have been under way when the handler began.
            assert time.monotonic() < end, "the file has gone stale"
            threading.Event().wait(0.05)
            touched.add(alive.stat().st_mtime_ns)
    finally:
        worker.kill()
        worker.communicate()


def test_a_worker_ends_after_its_budget_though_a_handler_in_a_thread_goes_on(relay: Relay, tmp_path: Path) -> None:
    worker = start_worker(relay, tmp_path, "jobs:handlers", "--stop-budget", "100ms")
    stuck = relay.ok("enqueue", "stuck", "s", "-o", "json").json["sequenceId"]
    wait_for(tmp_path / "begun", worker)
    worker.terminate()
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, said
    assert "1 handler does not stop and is cut off" in said
    assert relay.ok("get", stuck, "-o", "json").json["item"]["state"] == "leased"


def leased_or_not(relay: Relay, sequence_id: int) -> tuple[str, int]:
    item = relay.ok("get", sequence_id, "-o", "json").json["item"]
    return item["state"], item["attempt"]


@pytest.mark.parametrize("kind", ["blocked", "native"])
def test_a_worker_ends_after_its_budget_though_a_handler_blocks_its_event_loop(
    relay: Relay, tmp_path: Path, kind: str
) -> None:
    """What was not begun and what merely waits is somebody else's at once, the attempt not burned."""
    worker = start_worker(relay, tmp_path, "jobs:handlers", "--stop-budget", "100ms", "--concurrency", "2")
    idle = relay.ok("enqueue", "idle", "i", "-o", "json").json["sequenceId"]
    wait_for(tmp_path / "idle", worker)
    blocking = relay.ok("enqueue", kind, "b", "-o", "json").json["sequenceId"]
    wait_for(tmp_path / "begun", worker)
    prefetched = relay.enqueue("a")
    worker.terminate()
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, said
    assert "stopping; 2 jobs get 0.1s to finish" in said
    assert "1 handler does not stop and is cut off" in said
    assert "completed 0, failed 0, released 1" in said
    assert leased_or_not(relay, blocking) == ("leased", 1)
    assert leased_or_not(relay, idle) == ("ready", 1)
    assert leased_or_not(relay, prefetched)[0] == "ready"


def test_a_worker_ends_after_its_budget_though_a_handler_swallows_its_cancellation(
    relay: Relay, tmp_path: Path
) -> None:
    worker = start_worker(relay, tmp_path, "jobs:handlers", "--stop-budget", "100ms")
    stubborn = relay.ok("enqueue", "stubborn", "s", "-o", "json").json["sequenceId"]
    wait_for(tmp_path / "begun", worker)
    worker.terminate()
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, said
    assert "1 handler does not stop and is cut off" in said
    assert leased_or_not(relay, stubborn) == ("leased", 1)


def test_a_worker_says_what_it_could_not_tell_the_node(tmp_path: Path) -> None:
    with DevNode(cwd=tmp_path) as other:
        there = Relay(other.url, "resourcelease")
        worker = start_worker(there, tmp_path, "jobs:handlers", "--stop-budget", "100ms")
        there.ok("enqueue", "until", "u")
        wait_for(tmp_path / "begun", worker)
    (tmp_path / "go").touch()
    worker.terminate()
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 3, said
    assert "outcomes_dropped" in said
    assert "completed 0, failed 0, released 0" in said
    assert "1 outcome was not told to the node, which did not answer" in said


def test_a_worker_stops_in_order_at_sighup(relay: Relay, tmp_path: Path) -> None:
    worker = start_worker(relay, tmp_path, "jobs:handlers")
    done = relay.enqueue("a")
    relay.ok("get", done, "--wait", "2m")
    worker.send_signal(signal.SIGHUP)
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, "completed 1" in said) == (0, True), said


def test_a_liveness_file_that_cannot_be_written_is_refused_at_once(relay: Relay, tmp_path: Path) -> None:
    worker = start_worker(relay, tmp_path, "jobs:handlers", "--liveness-file", str(tmp_path / "nowhere" / "alive"))
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 2
    assert "--liveness-file cannot be written" in said
    assert "Traceback" not in said


def test_handlers_that_are_not_there_are_named(relay: Relay, tmp_path: Path) -> None:
    for registry, complaint in (
        ("jobs", "module:name"),
        ("no_such_module:handlers", "no module 'no_such_module'"),
        ("./jobs.py:handlers", "say a module, not a file: jobs:handlers"),
        ("jobs:nothing", "no Handlers called 'nothing'"),
    ):
        worker = start_worker(relay, tmp_path, registry)
        _, said = worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == 2
        assert complaint in said
        assert said.count("\n") == 1, said


def test_a_module_that_imports_what_is_missing_is_not_called_missing_itself(relay: Relay, tmp_path: Path) -> None:
    (tmp_path / "ordersworth.py").write_text("import orders\n")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "work.py").write_text("import shop.missing\n")
    for registry, missing in (("ordersworth:handlers", "'orders'"), ("shop.work:handlers", "'shop.missing'")):
        worker = start_worker(relay, tmp_path, registry)
        _, said = worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == 1
        assert f"No module named {missing}" in said, said
        assert "there is no module" not in said
        assert said.count("\n") == 1, said
    for registry, missing in (("nowhere.work:handlers", "'nowhere.work'"), ("shop.play:handlers", "'shop.play'")):
        worker = start_worker(relay, tmp_path, registry)
        _, said = worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == 2
        assert f"there is no module {missing}" in said, said
