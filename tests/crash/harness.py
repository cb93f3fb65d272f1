"""The other process: starts children on one directory, kills them, and checks what they leave behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec

from omnirelay.log.sqlite import SqliteLog
from tests.crash.checker import History, Record, check, read_calls
from tests.crash.evidence import Archive
from tests.crash.plan import NAMESPACE, HeldLease, Plan
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

"""A child that is neither killed nor done by then hangs, which is a failure of its own."""

_decode = msgspec.json.Decoder().decode

Stop = Callable[[Record], bool]
"""Looks at each record as it comes in and says when to kill."""


class Crashes:
    """One directory, and every child that ever ran on it."""

    def __init__(
        self, directory: Path, seed: int, count: Callable[[str, object], None] = lambda name, value: None
    ) -> None:
        """`count` is told of every kill and of the acknowledgements that were checked."""
        self.directory = directory
        self.seed = seed
        self._count = count
        self.records: list[Record] = []
        self.archive = Archive(directory)
        self.rounds = 0
        self._checked = 0

    @property
    def log_directory(self) -> Path:
        return self.directory / NAMESPACE

    def kill_after(self, acknowledgements: int, **plan: Any) -> list[Record]:
        """Run a child and kill it when it has told of this many acknowledgements."""
        return self.run(stop_after(acknowledgements), **plan)

    def die_at(self, failpoint: str, hit: int = 1, **plan: Any) -> list[Record]:
        """Run a child that kills itself at a failpoint; fails when it never got there."""
        return self.run(None, failpoint=failpoint, failpoint_hit=hit, **plan)

    def run(self, stop: Stop | None = None, *, killed: bool = True, **plan: Any) -> list[Record]:
        """Run one child to its end and keep its records."""
        self.rounds += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        plan.setdefault("held", self.held_leases())
        chosen = Plan(directory=str(self.directory), seed=self.seed, round=self.rounds, **plan)
        records, status, errors = run_child(chosen, stop)
        self.records += [{"kind": "start"}, *records]
        if killed:
            assert status == -9, f"the child was to be killed and ended with {status}: {records[-3:]} {errors}"
            self._count("kills", 1)
            self.records.append({"kind": "killed"})
        else:
            assert status == 0, f"the child failed with {status}: {errors}"
        return records

    def held_leases(self) -> list[HeldLease]:
        """The newest leases that were acknowledged and not given back."""
        held: dict[str, HeldLease] = {}
        for call in read_calls(self.records):
            if call.outcome is not None and call.done:
                for grant in call.outcome.get("grants", ()):
                    token = grant["token"]
                    held[token["leaseId"]] = msgspec.convert(token, HeldLease)
                if call.operation in ("complete", "fail", "release"):
                    held.pop(call.intent["token"]["leaseId"], None)
        return list(held.values())[-8:]

    def history(self, *, verify: bool = False) -> History:
        return asyncio.run(self.archive.gather(self.records, verify=verify))

    def check(self, *, verify: bool = False) -> None:
        """Compare what was acknowledged with what the log holds now."""
        checked = check(self.history(verify=verify))
        self._count("acknowledgements", checked - self._checked)
        self._checked = checked

    def verify(self) -> None:
        """Check once more, walk the whole log, and see that it opens for writing."""
        self.check(verify=True)

        async def open_and_close() -> None:
            await SqliteLog.open(self.directory, NAMESPACE).close()

        asyncio.run(open_and_close())


def stop_after(acknowledgements: int) -> Stop:
    left = acknowledgements

    def stop(record: Record) -> bool:
        nonlocal left
        if record["kind"] == "done":
            left -= 1
        return left <= 0

    return stop


def stop_behind(operation: str, acknowledgements: int) -> Stop:
    """After this many, and not before one of them was of this operation."""
    enough, wanted, done = stop_after(acknowledgements), set[str](), False

    def stop(record: Record) -> bool:
        nonlocal done
        if record["kind"] == "intent" and record["op"] == operation:
            wanted.add(record["call"])
        done = done or (record["kind"] == "done" and record["call"] in wanted)
        return enough(record) and done

    return stop


def run_child(plan: Plan, stop: Stop | None) -> tuple[list[Record], int, str]:
    """Start a child, read what it says, kill it when `stop` says so, and read what was still on its way."""
    paths = [str(ROOT), *(path for path in sys.path if path)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.child", msgspec.json.encode(plan).decode()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    ) as child:
        hung = threading.Timer(PATIENCE_S, child.kill)
        hung.start()
        errors: list[bytes] = []
        assert child.stdout is not None
        assert child.stderr is not None
        listener = threading.Thread(target=lambda pipe: errors.append(pipe.read()), args=(child.stderr,))
        listener.start()
        records = _read_records(child.stdout, child, stop)
        status = child.wait()
        listener.join()
        assert not hung.finished.is_set(), f"the child hung; its last words: {records[-5:]}"
        hung.cancel()
    return records, status, b"".join(errors).decode(errors="replace")[-3_000:]


def _read_records(pipe: IO[bytes], child: subprocess.Popen[bytes], stop: Stop | None) -> list[Record]:
    records: list[Record] = []
    for line in pipe:
        if not line.endswith(b"\n"):
            break  # Cut off by the kill: it never got through.
        record: Record = _decode(line)
        records.append(record)
        if stop is not None and stop(record):
            stop = None
            child.kill()
    return records
