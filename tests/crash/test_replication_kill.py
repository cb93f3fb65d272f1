"""kill -9 of a node with sinks under load, and of what they deliver to: afterwards each target holds every event of the
log once, in order, and a replay of what it holds ends in the node's own state.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest

from omnirelay.core.events import Event
from omnirelay.core.evolve import evolve
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.engine.recovery import rebuild
from omnirelay.log import SqliteLog
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.governance import GovernanceLines
from omnirelay.wire.events import INSTANTS
from omnirelay.wire.instants import read_instant
from tests.cli.processes import command, environment
from tests.crash.plan import LONG
from tests.crash.replication_targets import (
    NAMESPACE,
    Files,
    Kafka,
    LineSegments,
    Nats,
    Objects,
    Otel,
    Postgres,
    Segments,
    Tables,
    Target,
    Webhook,
)
from tests.patience import PATIENCE_S
from tests.servers import free_port

KILLS = int(os.environ.get("OMNIRELAY_KILLS", "60" if LONG else "3"))
"""Of each set of targets: more than a hundred together in the long form."""
CALLERS = 3

SETS: dict[str, list[type[Target]]] = {
    "files, tables and a webhook": [Files, Tables, Webhook],
    "objects and OpenTelemetry": [Segments, LineSegments, Objects, Otel],
}
if LONG:
    SETS["servers"] = [Postgres, Nats]
    SETS["Kafka"] = [Kafka]

CONFIG = """
[node]
port = {port}
data = "data"

[sinks.audit]
kind = "governance"
linger = "0s"

"""

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}


class Run:
    """One directory and one port, many nodes after each other."""

    def __init__(self, directory: Path, targets: Sequence[Target]) -> None:
        self.directory = directory
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        text = CONFIG.format(port=port) + "\n".join(target.config() for target in targets)
        (directory / "omnirelay.toml").write_text(text)
        self._rounds = 0
        self._more = threading.Condition()

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
                    client.post("/enqueue", json={"items": [ITEM] * 30}).raise_for_status()
                    answer = client.post("/lease", json={"maxItems": 25, "waitMs": 0}).raise_for_status()
                    tokens = [{"ownershipToken": lease["ownershipToken"]} for lease in answer.json()["leases"]]
                    client.post("/complete", json={"acks": tokens[:20]}).raise_for_status()
                    client.post("/fail", json={"acks": tokens[20:]}).raise_for_status()
                    with self._more:
                        self._rounds += 1
                        self._more.notify_all()

    def wait_worked(self) -> None:
        """Until the callers have got something done from now on: a kill before that would interrupt nothing."""
        with self._more:
            before = self._rounds
            assert self._more.wait_for(lambda: self._rounds > before, PATIENCE_S), "the callers get nothing done"

    @contextmanager
    def under_load(self) -> Iterator[None]:
        stop = threading.Event()
        callers = [threading.Thread(target=self.work, args=(stop,)) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        try:
            yield
        finally:
            stop.set()
            for caller in callers:
                caller.join()

    def caught_up(self) -> int:
        """Return when every sink has what the log holds now; the last of those events. Time goes on writing: a lease of
        a node that was killed may run out behind it.
        """
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as client:
            last = client.post(f"/v1/{NAMESPACE}/stats", json={}).json()["stats"]["lastSequence"]
            checkpoints: list[dict[str, Any]] = []
            while not checkpoints or min(each["checkpoint"] for each in checkpoints) < last:
                checkpoints = client.post("/v1/replication/status", json={}).json()["sinks"]
                assert not any(each["state"] == "failed" for each in checkpoints), checkpoints
            return int(last)

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

    def digest_at(self, sequence: int) -> str:
        """Of the state that the node itself had after this event."""

        async def read() -> str:
            log = SqliteLog.open(self.directory / "data", NAMESPACE, read_only=True)
            state = (await rebuild(log, sequence)).state
            await log.close()
            return digest(state)

        return asyncio.run(read())

    def audit(self) -> list[Any]:
        files = sorted((self.directory / "data" / "sinks" / "audit" / NAMESPACE).iterdir())
        return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]


@pytest.fixture
def targets(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Target]]:
    made = [kind(tmp_path) for kind in SETS[request.param]]
    try:
        for target in made:
            if target.server is not None:
                target.server.start()
        yield made
    finally:
        for target in made:
            if target.server is not None:
                target.server.remove()


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("targets", SETS, indirect=True)
def test_every_target_holds_every_event_once_and_in_order(targets: list[Target], tmp_path: Path) -> None:
    run = Run(tmp_path, targets)
    random = Random(int(os.environ.get("OMNIRELAY_SEED", "7")))
    servers = [target.server for target in targets if target.server is not None and target.is_killed]
    pause = threading.Event()
    node = run.node()
    try:
        with run.under_load():
            for number in range(KILLS):
                run.wait_worked()
                pause.wait(random.uniform(0.2, 1.0))
                # The node and what it delivers to in turns, each of those at random.
                if number % 2 or not servers:
                    node.send_signal(signal.SIGKILL)
                    node.communicate()
                    node = run.node()
                else:
                    server = random.choice(servers)
                    server.kill()
                    pause.wait(random.uniform(0.0, 0.5))
                    server.start()
            pause.wait(0.3)
        last = run.caught_up()
    finally:
        node.terminate()
        node.communicate(timeout=PATIENCE_S)
    events = run.log()
    assert len(events) > 50 * KILLS
    assert {"Enqueue", "LeaseGranted", "Completed", "Failed", "LeaderElected"} <= {each.event_type for each in events}
    expected = [json.loads(event.json()) for event in events]
    for target in targets:
        found = [json.loads(event) for event in target.events()]
        assert found[-1]["sequenceNumber"] >= last, target.name
        assert found == expected[: len(found)], target.name
        assert digest_of(found) == run.digest_at(found[-1]["sequenceNumber"]), target.name
    # The node asks its shard about what it no longer remembers; a log that was read has nobody to ask.
    lines = GovernanceLines(remembered_max=len(events))
    deeds = [json.loads(line) for event in events if (line := lines.line_of(event)) is not None]
    audited = run.audit()
    assert audited == deeds[: len(audited)]
    assert all(deed["sequenceNumber"] > last for deed in deeds[len(audited) :])


# -- from what readers get back to a state -------------------------------------------------------

_ADDED = ("shard.id", "region", "queue.pending", "queue.active", "rpc.principal", "rpc.principal_thumbprint")


def digest_of(documents: Sequence[dict[str, Any]]) -> str:
    """The digest of the state that a replay of these ends in: nothing that matters was lost on the way."""
    state = State()
    for document in documents:
        evolve(state, msgspec.convert(_stored(document), Event, strict=True, builtin_types=()))
    return digest(state)


def _stored(document: dict[str, Any]) -> dict[str, Any]:
    """The event as the log has it: instants as numbers, and without what was added on the way out."""
    stored = {name: _number(name, value) if name in INSTANTS else value for name, value in document.items()}
    metadata = {name: value for name, value in stored.pop("metadata", {}).items() if name not in _ADDED}
    return {**stored, "metadata": metadata} if metadata else stored


def _number(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_number(name, each) for each in value]
    return read_instant(name, value) if isinstance(value, str) else value
