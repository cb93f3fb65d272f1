"""Makes a log as the next schema version might write it, out of the golden log of version 1:

    PYTHONPATH=src python -m tests.golden.make_next_version

Every known event has a field that this version does not know, and so have the objects in it; every tenth event is of
a type that nobody knows yet; frames have a header field more. The files in `next_version` are what that run left. They
are made anew only when the made-up version is to have something more.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_header, header_prefix
from omnirelay.log.sqlite import SqliteLog
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.testing.sinks import SHARD
from tests.golden import make

DIRECTORY: Final = Path(__file__).parent / "next_version"
SCHEMA: Final = 2
REGION: Final = "eu"
UNKNOWN_EVERY: Final = 10

_ADDED: Final[dict[str, Any]] = {
    "colour": {"name": "größer", "rgb": [255, 0.5, None], "timestamp": 5},
    "carbonGrams": 12345678901234567890123,
    "principalThumbprint": "ab:cd",
}


def of_next_version(event: dict[str, Any], sequence: int) -> bytes:
    """A stored event with what the next version adds to it."""
    newer = {**event, **_ADDED, "sequenceNumber": sequence, "schemaVersion": SCHEMA}
    for name in ("payload", "ownership", "error"):
        if name in newer:
            newer[name] = {**newer[name], "colour": "red"}
    for item in newer.get("items", ()):
        item |= {"colour": "red", "until": 1_900_000_000_000}
    return msgspec.json.encode(newer)


def unknown(sequence: int, timestamp: int) -> bytes:
    stored = {
        "eventType": "Teleported",
        "sequenceNumber": sequence,
        "timestamp": timestamp,
        "schemaVersion": SCHEMA,
        "from": {"shard": "a", "fence": 1 << 62},
        "until": [1_900_000_000_000, 1_900_000_000_001],
        "metadata": {"why": "moved", "count": 3},
        "items": [{"sequenceId": 1, "notBefore": 1_900_000_000_000}],
        "carbonGrams": _ADDED["carbonGrams"],
    }
    return msgspec.json.encode(stored)


class Maker:
    """Copies frame by frame, with new numbers: there are more events than before."""

    def __init__(self, source: SqliteLog, target: SqliteLog) -> None:
        self._source = source
        self._target = target
        self._shift = 0
        self._count = 0

    async def make(self) -> None:
        acquired = await self._target.acquire("next version")
        position, generation = acquired.position, acquired.generation
        async for frame in self._source.read():
            events, last = self._events_of(frame)
            generation = max(generation, frame.generation)
            first = last - (frame.last - frame.first) - (len(events) - frame.count)
            made = Frame(first, last, len(events), acquired.epoch, generation, frame.time_ms, b"")
            prefix = header_prefix(made, SHARD, self._target.log_id, SCHEMA)
            data = prefix + b",".join(events) + b'],"pending":7,"active":2,"zone":{"name":"b"}}'
            position = await self._target.append(msgspec.structs.replace(made, data=data), position)

    def _events_of(self, frame: Frame) -> tuple[list[bytes], int]:
        events: list[bytes] = []
        last = 0
        for raw in decode_header(frame.data).events:
            event = msgspec.json.decode(raw)
            last = event["sequenceNumber"] + self._shift
            events.append(of_next_version(event, last))
            self._count += 1
            if self._count % UNKNOWN_EVERY == 0:
                self._shift += 1
                last += 1
                events.append(unknown(last, event["timestamp"]))
        return events, last


async def read(directory: Path) -> list[ReplicatedEvent]:
    """Every event of the log below `directory`, as followers get them."""
    log = SqliteLog.open(directory, SHARD, read_only=True)
    try:
        events: list[ReplicatedEvent] = []
        async for frame in log.read():
            events += events_of_frame(frame, REGION, events[-1].sequence if events else 0)
        return events
    finally:
        await log.close()


def describe(events: list[ReplicatedEvent]) -> dict[str, Any]:
    """What the log holds, in the form of `expected.json`."""
    return {
        "events": len(events),
        "lastSequence": events[-1].sequence,
        "types": sorted({event.event_type for event in events}),
        "digest": hashlib.sha256(b"\n".join(event.data for event in events)).hexdigest(),
    }


async def _make(directory: Path) -> dict[str, Any]:
    shutil.copytree(make.DIRECTORY, directory / make.NAMESPACE)
    source = SqliteLog.open(directory, make.NAMESPACE, read_only=True)
    target = SqliteLog.open(directory, SHARD)
    await Maker(source, target).make()
    await target.close()
    await source.close()
    return describe(await read(directory))


def main(destination: Path = DIRECTORY) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        expected = asyncio.run(_make(Path(temporary)))
        shutil.rmtree(destination, ignore_errors=True)
        destination.mkdir(parents=True)
        for name in ("leases.db", "leases.witness"):
            shutil.copy(Path(temporary) / SHARD / name, destination / name)
        (destination / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    main()
