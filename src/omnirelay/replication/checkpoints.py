"""How far each sink has come with each shard, and what it could not take. Durable: written before it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from omnirelay.replication.events import ReplicatedEvent

T = TypeVar("T")

_SCHEMA = """
create table if not exists checkpoints (
    sink text not null, shard text not null, sequence integer not null, updated_ms integer not null,
    paused integer not null default 0,
    primary key (sink, shard)
) without rowid;
create table if not exists parked (
    sink text not null, shard text not null, sequence integer not null, reason text not null, event text not null,
    primary key (sink, shard, sequence)
) without rowid;
"""


class Parked(msgspec.Struct, frozen=True):
    """An event that a sink refused for good."""

    sequence: int
    reason: str
    event: str


class Checkpoints:
    """One SQLite file for all sinks of a node; in memory when there is no file."""

    def __init__(self, path: Path | None) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="omnirelay-checkpoints")
        self._path = ":memory:" if path is None else str(path)
        self._database: apsw.Connection | None = None

    async def _run(self, work: Callable[[apsw.Connection], T]) -> T:
        def run() -> T:
            if self._database is None:
                self._database = apsw.Connection(self._path)
                self._database.setbusytimeout(10_000)
                self._database.execute("pragma journal_mode = wal; pragma synchronous = full")
                self._database.execute(_SCHEMA)
            return work(self._database)

        return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    async def load(self, sink: str, shard: str) -> tuple[int, bool]:
        """The last sequence that is done, 0 for none, and whether the sink is paused there."""
        row = await self._run(
            lambda database: database.execute(
                "select sequence, paused from checkpoints where sink = ? and shard = ?", (sink, shard)
            ).fetchone()
        )
        return (0, False) if row is None else (row[0], bool(row[1]))

    async def save(self, sink: str, shard: str, sequence: int, now_ms: int) -> None:
        await self._run(
            lambda database: database.execute(
                "insert into checkpoints (sink, shard, sequence, updated_ms) values (?, ?, ?, ?)"
                " on conflict (sink, shard) do update set sequence = excluded.sequence,"
                " updated_ms = excluded.updated_ms",
                (sink, shard, sequence, now_ms),
            )
        )

    async def pause(self, sink: str, shard: str, paused: bool) -> None:
        await self._run(
            lambda database: database.execute(
                "insert into checkpoints (sink, shard, sequence, updated_ms, paused) values (?, ?, 0, 0, ?)"
                " on conflict (sink, shard) do update set paused = excluded.paused",
                (sink, shard, int(paused)),
            )
        )

    async def park(self, sink: str, event: ReplicatedEvent, reason: str) -> None:
        await self._run(
            lambda database: database.execute(
                "insert or replace into parked values (?, ?, ?, ?, ?)",
                (sink, event.shard, event.sequence, reason, event.data.decode()),
            )
        )

    async def parked(self, sink: str, shard: str) -> list[Parked]:
        rows = await self._run(
            lambda database: database.execute(
                "select sequence, reason, event from parked where sink = ? and shard = ? order by sequence",
                (sink, shard),
            ).fetchall()
        )
        return [Parked(int(str(sequence)), str(reason), str(event)) for sequence, reason, event in rows]

    async def close(self) -> None:
        if self._database is not None:
            await self._run(lambda database: database.close())
            self._database = None
        self._pool.shutdown()
