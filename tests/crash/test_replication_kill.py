"""kill -9 of a node with sinks under load: afterwards each target holds every event of the log once, in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from omnirelay.log import SqliteLog
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.governance import GovernanceLines
from omnirelay.replication.settings import TABLE
from tests.cli.processes import command, environment
from tests.crash.plan import LONG

KILLS = 30 if LONG else 3
CALLERS = 3
PATIENCE_S = 60.0
NAMESPACE = "resourcelease"

CONFIG = """
[node]
port = {port}
data = "data"

[sinks.files]
kind = "file"
rotate_bytes = "64KiB"
linger = "1ms"
batch_events = 50

[sinks.tables]
kind = "sqlite"
linger = "1ms"
batch_events = 70
required = true

[sinks.audit]
kind = "governance"
linger = "0s"
"""

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}


class Run:
    """One directory and one port, many nodes after each other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        (directory / "omnirelay.toml").write_text(CONFIG.format(port=port))

    def node(self) -> subprocess.Popen[bytes]:
        node_file = self.directory / "data" / "node.json"
        node_file.unlink(missing_ok=True)
        process = subprocess.Popen(
            command("serve", "--config", "omnirelay.toml"),
            cwd=self.directory,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        hung = threading.Timer(PATIENCE_S, process.kill)
        hung.start()
        while not node_file.exists():
            assert process.stdout.readline(), "the node did not start"
        hung.cancel()
        return process

    # -- what callers do -------------------------------------------------------------------------

    def work(self, stop: threading.Event) -> None:
        """Put items in and take them out, whatever becomes of the node meanwhile."""
        named = {"Rpc-Caller": "worker"}
        with httpx.Client(base_url=f"{self.url}/v1/{NAMESPACE}", timeout=10, headers=named) as client:
            while not stop.is_set():
                with suppress(httpx.HTTPError):
                    client.post("/enqueue", json={"items": [ITEM] * 30})
                    leases = client.post("/lease", json={"maxItems": 25, "waitMs": 0}).json().get("leases", [])
                    done = [{"ownershipToken": lease["ownershipToken"]} for lease in leases[:20]]
                    client.post("/complete", json={"acks": done})
                    client.post(
                        "/fail", json={"acks": [{"ownershipToken": each["ownershipToken"]} for each in leases[20:]]}
                    )

    def caught_up(self) -> None:
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as client:
            last = client.post(f"/v1/{NAMESPACE}/stats", json={}).json()["stats"]["lastSequence"]
            checkpoints: list[dict[str, Any]] = []
            while not checkpoints or min(each["checkpoint"] for each in checkpoints) < last:
                checkpoints = client.post("/v1/replication/status", json={}).json()["sinks"]
                assert not any(each["state"] == "failed" for each in checkpoints), checkpoints

    # -- what is found afterwards ----------------------------------------------------------------

    def log(self) -> list[ReplicatedEvent]:
        async def read() -> list[ReplicatedEvent]:
            log = SqliteLog.open(self.directory / "data", NAMESPACE, read_only=True)
            events: list[ReplicatedEvent] = []
            async for frame in log.read(1):
                events += events_of_frame(frame, "local", events[-1].sequence if events else 0)
            await log.close()
            return events

        return asyncio.run(read())

    def lines(self, sink: str) -> list[bytes]:
        files = sorted((self.directory / "data" / "sinks" / sink / NAMESPACE).iterdir())
        return [line for path in files for line in path.read_bytes().splitlines()]

    def rows(self) -> list[bytes]:
        database = sqlite3.connect(self.directory / "data" / "sinks" / "tables" / f"{NAMESPACE}.db")
        found = database.execute(f"select event_json from {TABLE} order by rowid").fetchall()
        database.close()
        return [row[0].encode() for row in found]


@pytest.mark.timeout(1_200)
def test_every_target_holds_every_event_once_and_in_order(tmp_path: Path) -> None:
    run = Run(tmp_path)
    random = Random(int(os.environ.get("OMNIRELAY_SEED", "7")))
    stop, pause = threading.Event(), threading.Event()
    node = run.node()
    callers = [threading.Thread(target=run.work, args=(stop,)) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(KILLS):
            pause.wait(random.uniform(0.2, 1.0))
            node.send_signal(signal.SIGKILL)
            node.communicate()
            node = run.node()
        pause.wait(0.3)
    finally:
        stop.set()
        for caller in callers:
            caller.join()
        if node.poll() is None:
            try:
                run.caught_up()
            finally:
                node.terminate()
                node.communicate(timeout=PATIENCE_S)
    events = run.log()
    assert len(events) > 100 * KILLS
    assert {"Enqueue", "LeaseGranted", "Completed", "Failed", "LeaderElected"} <= {each.event_type for each in events}
    expected = [event.json() for event in events]
    assert run.lines("files") == expected
    assert run.rows() == expected
    assert len(list((tmp_path / "data" / "sinks" / "files" / NAMESPACE).iterdir())) > 1
    lines = GovernanceLines()
    deeds = [json.loads(line) for event in events if (line := lines.line_of(event)) is not None]
    assert [json.loads(line) for line in run.lines("audit")] == deeds
