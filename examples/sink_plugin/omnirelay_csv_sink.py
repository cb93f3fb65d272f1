"""A sink that writes events as rows of a CSV file, one file per shard.

[sinks.sheet]
kind = "csv"

[sinks.sheet.options]
path = "sheets"
columns = ["sequenceNumber", "eventType", "timestamp", "peerId"]
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.kinds import SinkPlace
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable

SEQUENCE = "sequenceNumber"
COLUMNS = [SEQUENCE, "eventType", "timestamp"]


def make_csv_sink(options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink:
    """What the entry point names. `options` is the table [sinks.NAME.options]."""
    unknown = set(options) - {"path", "columns"}
    if unknown:
        raise SinkUnusable(f"a csv sink has no option {', '.join(sorted(unknown))}; it has path and columns")
    columns = list(options.get("columns", COLUMNS))
    if columns[:1] != [SEQUENCE]:
        raise SinkUnusable(f"the first of the columns must be {SEQUENCE}: it says how far the file reaches")
    return CsvSink(Path(place.directory, options.get("path", place.name)), columns)


class CsvSink:
    rebuilds_state = False

    def __init__(self, directory: Path, columns: Sequence[str] = COLUMNS) -> None:
        self._directory = directory
        self._columns = columns
        self._path = directory
        self._size = 0
        self._last = 0
        self._lock = threading.Lock()

    async def open(self, shard: str) -> int | None:
        """The file itself says how far it reaches, so nothing is ever written twice."""
        self._path = self._directory / f"{shard}.csv"
        return await asyncio.to_thread(self._find_end)

    def _find_end(self) -> int:
        with self._lock:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            data = self._path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]  # A crash may have cut the last row off, were it the first.
            if not whole:
                whole = _as_rows([self._columns])
                self._path.write_bytes(whole)
            self._size = len(whole)
            last_row = whole.splitlines()[-1]
            self._last = 0 if last_row.startswith(SEQUENCE.encode()) else int(last_row.partition(b",")[0])
            return self._last

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        await asyncio.to_thread(self._append, events)

    def _append(self, events: Sequence[ReplicatedEvent]) -> None:
        # The lock: a delivery that took too long comes again while its thread may still be at work.
        with self._lock, self._path.open("r+b") as file:
            new = [event for event in events if event.sequence > self._last]
            documents = [json.loads(event.json()) for event in new]
            data = _as_rows([[document.get(column) for column in self._columns] for document in documents])
            file.seek(self._size)
            file.truncate()  # What a crash or a full disk left behind the last whole row.
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            self._size += len(data)
            self._last = max([self._last, *(event.sequence for event in new)])

    async def close(self) -> None:
        """There is nothing that is held open."""


def _as_rows(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
