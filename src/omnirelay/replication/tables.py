"""Events in a table of an SQLite file, in the layout that readers of the older system know."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.sinks import SinkUnusable
from omnirelay.wire.instants import instant

TABLE = "ResourceLeaseReplicationEvents"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class _Peer(msgspec.Struct, rename="camel"):
    peer_id: str | None = None


_read_peer = msgspec.json.Decoder(_Peer).decode


class SqliteSink:
    """One file per shard: `{directory}/{shard}.db`. The table itself says how far it reaches."""

    rebuilds_state = False

    def __init__(self, directory: Path, *, table: str = TABLE) -> None:
        if not _NAME.fullmatch(table):
            raise SinkUnusable(f"{table!r} is not a name for a table")
        self._directory = directory
        self._table = table
        self._database: apsw.Connection | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="omnirelay-sqlite-sink")

    async def open(self, shard: str) -> int | None:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._open, shard)

    def _open(self, shard: str) -> int:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkUnusable(f"cannot write to {self._directory}: {error.strerror}") from None
        self._database = apsw.Connection(str(self._directory / f"{shard}.db"))
        self._database.setbusytimeout(10_000)
        self._database.execute("pragma journal_mode = wal; pragma synchronous = full")
        self._database.execute(
            f"create table if not exists {self._table} (sequence_number integer primary key,"
            " event_type integer not null, timestamp text not null, peer_id text, event_json text not null);"
            f" create index if not exists IX_{self._table}_EventType on {self._table} (event_type)"
        )
        row = self._database.execute(f"select max(sequence_number) from {self._table}").fetchone()
        return 0 if row is None or row[0] is None else int(str(row[0]))

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        rows = [
            (
                event.sequence,
                EVENT_NUMBERS.get(event.event_type, 0),
                instant(event.timestamp),
                _read_peer(event.data).peer_id,
                event.json().decode(),
            )
            for event in events
        ]
        await asyncio.get_running_loop().run_in_executor(self._pool, self._insert, rows)

    def _insert(self, rows: list[tuple[int, int, str, str | None, str]]) -> None:
        assert self._database is not None
        with self._database:
            self._database.executemany(f"insert or ignore into {self._table} values (?, ?, ?, ?, ?)", rows)

    async def close(self) -> None:
        if self._database is not None:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._database.close)
            self._database = None
        self._pool.shutdown(wait=False)
