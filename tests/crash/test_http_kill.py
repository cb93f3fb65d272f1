"""kill -9 of a whole node, over and over, under the load of clients in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import IO, Any

import httpx
import msgspec
import pytest

from tests.crash.http_client import Plan, Record
from tests.crash.plan import LONG
from tests.patience import PATIENCE_S
from tests.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
KILLS = 50 if LONG else 3
CLIENTS = 4

_records = msgspec.json.Decoder(Record)


def start(*arguments: str) -> subprocess.Popen[bytes]:
    paths = [str(ROOT), *(path for path in sys.path if path)]
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def line_of(process: subprocess.Popen[bytes]) -> str:
    """The next line it prints, when it does in time."""
    output: IO[bytes] | None = process.stdout
    assert output is not None
    hung = threading.Timer(PATIENCE_S, process.kill)
    hung.start()
    line = output.readline().decode().strip()
    hung.cancel()
    assert line, f"the process ended with {process.poll()}"
    return line


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The process, which is gone afterwards whatever happens."""
    with process:
        try:
            yield process
        finally:
            process.kill()


class Run:
    """One directory, one port, many nodes after each other, the same clients all along."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.data = directory / "data"
        self.journals = [directory / f"client{number}.jsonl" for number in range(CLIENTS)]
        self.random = Random(seed)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def node(self) -> subprocess.Popen[bytes]:
        process = start("tests.crash.http_node", str(self.data), str(self.port))
        assert line_of(process) == str(self.port)
        return process

    def client(self, number: int) -> subprocess.Popen[bytes]:
        path = str(self.journals[number])
        plan = Plan(url=self.url, name=f"c{number}", seed=self.random.randrange(1 << 30), path=path)
        process = start("tests.crash.http_client", msgspec.json.encode(plan).decode())
        assert line_of(process) == "running"
        return process

    def acknowledged(self) -> int:
        return sum(path.read_bytes().count(b'"done"') for path in self.journals if path.exists())

    def wait_for(self, acknowledgements: int, node: subprocess.Popen[bytes], clients: list[Any]) -> None:
        """Until the clients together have got that many more answers from this node."""
        target = self.acknowledged() + acknowledgements
        over = threading.Event()
        hung = threading.Timer(PATIENCE_S, over.set)
        hung.start()
        while self.acknowledged() < target:
            assert not over.wait(0.002), "the clients get no answers"
            assert node.poll() is None, "the node ended by itself"
            assert [client.poll() for client in clients] == [None] * len(clients), "a client failed"
        hung.cancel()

    def records(self) -> list[list[Record]]:
        return [[_records.decode(line) for line in path.read_bytes().splitlines()] for path in self.journals]


@pytest.mark.timeout(1_200)
def test_what_a_node_acknowledged_survives_kill_9(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run = Run(tmp_path, seed=11)
    with ExitStack() as stack:
        node = run.node()
        clients = [stack.enter_context(ended(run.client(number))) for number in range(CLIENTS)]
        for _ in range(KILLS):
            with ended(node):
                # Mostly under full load, sometimes as soon as it answers at all.
                run.wait_for(
                    run.random.choice((1, run.random.randint(5, 60), run.random.randint(60, 250))), node, clients
                )
                node.kill()
            assert node.returncode == -9
            node = run.node()
        with ended(node):
            run.wait_for(20, node, clients)
            for client in clients:
                client.terminate()
            for client in clients:
                assert client.wait(PATIENCE_S) == 0
            check(run, run.records())
            node.terminate()
            assert node.wait(PATIENCE_S) == 0
    record_property("kills", KILLS)
    record_property("acknowledgements", run.acknowledged())


def check(run: Run, journals: list[list[Record]]) -> None:
    """What the clients heard against what the node says now."""
    items = everything(run.url)
    done = [record for journal in journals for record in journal if record.kind == "done"]
    assert len(done) > KILLS

    by_request: dict[str, int] = {}
    for record in done:
        if record.verb == "enqueue":
            for number, sequence_id in enumerate(record.ids):
                by_request[f"{record.request_id}-{number}"] = sequence_id
    assert len(set(by_request.values())) == len(by_request), "two request ids were answered with one item"
    for request_id, sequence_id in by_request.items():
        assert sequence_id in items, f"item {sequence_id} of {request_id} was acknowledged and is gone"
        assert items[sequence_id]["payload"]["requestId"] == request_id

    names = [item["payload"]["requestId"] for item in items.values()]
    assert len(set(names)) == len(names), "an item was enqueued twice"
    asked = {record.request_id for journal in journals for record in journal if record.verb == "enqueue"}
    assert {name.rpartition("-")[0] for name in names} <= asked

    completed = {record.ids[0] for record in done if record.verb == "complete" and record.code == "completed"}
    for sequence_id in completed:
        assert items[sequence_id]["state"] == "completed", f"item {sequence_id} was completed and is not"
    dead = {record.ids[0] for record in done if record.verb == "fail" and record.code == "dead"}
    for sequence_id in dead:
        assert items[sequence_id]["state"] == "dead", f"item {sequence_id} was dead and is not"
    assert completed, "nothing was completed; the run shows nothing"

    fences: dict[int, int] = {}
    owners: dict[int, int] = {}
    for journal in journals:
        latest = 0
        for record in journal:
            if record.kind == "done" and record.verb == "lease" and record.leases:
                assert record.leases[0][2] > latest, "a fence went back"
                latest = max(fence for _, _, fence in record.leases)
                for sequence_id, attempt, fence in record.leases:
                    assert fence not in owners, "two leases have the same fence"
                    owners[fence] = sequence_id
                    fences[sequence_id] = max(fences.get(sequence_id, 0), fence)
                    assert attempt >= 1
    last = max(owners)
    with httpx.Client(base_url=f"{run.url}/v1/resourcelease", timeout=PATIENCE_S) as client:
        response = client.post("/enqueue", json={"payload": {"resourceType": "last", "resourceId": "x"}})
        assert response.status_code == 200
        lease = client.post("/lease", json={"waitMs": 0, "resourceTypes": ["last"]}).json()
    assert lease["ownershipToken"]["fence"] > last, "a fence went back"


def everything(url: str) -> dict[int, dict[str, Any]]:
    """Every item the node knows, by its id. Leased ones first: one whose lease runs out meanwhile shows up later."""
    items: dict[int, dict[str, Any]] = {}
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        for state in ("leased", "delayed", "ready", "completed", "dead", "cancelled"):
            after: int | None = 0
            while after is not None:
                body = {"state": state, "after": after, "maxItems": 1000}
                page = client.post("/v1/resourcelease/peek", json=body).json()
                items |= {item["sequenceId"]: item for item in page["items"]}
                after = page.get("next")
    return items
