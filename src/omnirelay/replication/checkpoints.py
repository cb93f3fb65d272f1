"""How far each sink has come with each shard, and what it could not take. Durable: written before it counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from omnirelay.errors import Unavailable
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.threads import OneThread

T = TypeVar("T")

_SCHEMA = """
create table if not exists checkpoints (
    sink text not null, shard text not null, sequence integer not null, updated_ms integer not null,
    paused integer not null default 0, skipped_to integer not null default 0, replay_to integer not null default 0,
    log_id text not null default '', primary key (sink, shard)
) without rowid;
create table if not exists parked (
    sink text not null, shard text not null, sequence integer not null, reason text not null, event text not null,
    primary key (sink, shard, sequence)
) without rowid;
"""


class Checkpoint(msgspec.Struct, frozen=True):
    sequence: int = 0
    """The last event that is done, 0 for none."""
    paused: bool = False
    skipped_to: int = 0
    """Everything up to here is left out, whatever the target says of itself."""
    replay_to: int = 0
    """Until it has come here, what the target says of itself does not count: it was told to take all of it again."""
    untouched: bool = True
    """Nothing was ever delivered, and nobody said where to begin."""
    log_id: str = ""
    """The log that these are numbers of; empty where an older version wrote them."""

    def of(self, log_id: str) -> Checkpoint:
        """What of it holds for this log: the numbers of another one say nothing, but a pause is a pause."""
        return self if self.log_id in ("", log_id) else Checkpoint(paused=self.paused)


class Parked(msgspec.Struct, frozen=True):
    """An event that a sink refused for good."""

    sequence: int
    reason: str
    event: str


class Checkpoints:
    """One SQLite file for all sinks of a node; in memory when there is no file."""

    def __init__(self, path: Path | None) -> None:
        self._thread = OneThread("omnirelay-checkpoints")
        self._path = ":memory:" if path is None else str(path)
        self._database: apsw.Connection | None = None

    async def _run(self, work: Callable[[apsw.Connection], T]) -> T:
        def run() -> T:
            try:
                if self._database is None:
                    self._database = _opened(self._path)
                return work(self._database)
            except apsw.Error as error:
                # Otherwise it reads as if the target of the sink were meant.
                raise Unavailable(
                    f"the checkpoints in {self._path} cannot be used: {error}", file=self._path
                ) from error

        return await self._thread.run(run)

    async def load(self, sink: str, shard: str) -> Checkpoint:
        row = await self._run(
            lambda database: database.execute(
                "select sequence, paused, skipped_to, replay_to, updated_ms, log_id from checkpoints"
                " where sink = ? and shard = ?",
                (sink, shard),
            ).fetchone()
        )
        if row is None:
            return Checkpoint()
        return Checkpoint(row[0], bool(row[1]), row[2], row[3], untouched=not row[4], log_id=row[5])

    async def save(self, sink: str, shard: str, log_id: str, sequence: int, now_ms: int) -> None:
        """The sink has come to `sequence` of this log. What was said of another log is forgotten."""
        await self._run(
            lambda database: database.execute(
                "insert into checkpoints (sink, shard, log_id, sequence, updated_ms) values (?, ?, ?, ?, ?)"
                " on conflict (sink, shard) do update set sequence = excluded.sequence,"
                " updated_ms = excluded.updated_ms, log_id = excluded.log_id,"
                " skipped_to = iif(log_id in ('', excluded.log_id), skipped_to, 0),"
                " replay_to = iif(log_id in ('', excluded.log_id), replay_to, 0)",
                (sink, shard, log_id, sequence, now_ms),
            )
        )

    async def reset(
        self, sink: str, shard: str, log_id: str, sequence: int, now_ms: int, *, skipping: bool, replay_to: int = 0
    ) -> None:
        """Begin behind `sequence` from now on; `skipping`: also when the target knows of less. See `Checkpoint`."""
        await self._run(
            lambda database: database.execute(
                "insert into checkpoints (sink, shard, log_id, sequence, updated_ms, skipped_to, replay_to)"
                " values (?, ?, ?, ?, ?, ?, ?) on conflict (sink, shard) do update set sequence = excluded.sequence,"
                " updated_ms = excluded.updated_ms, skipped_to = excluded.skipped_to, replay_to = excluded.replay_to,"
                " log_id = excluded.log_id",
                (sink, shard, log_id, sequence, now_ms, sequence if skipping else 0, replay_to),
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

    async def unpark(self, sink: str, shard: str, first: int, last: int) -> None:
        """Forget the parked events from `first` to `last`: they were delivered after all."""
        await self._run(
            lambda database: database.execute(
                "delete from parked where sink = ? and shard = ? and sequence between ? and ?",
                (sink, shard, first, last),
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

    async def parked_count(self, sink: str, shard: str) -> tuple[int, int]:
        """How many there are, and the newest of them, 0 when there is none."""
        count, newest = await self._run(
            lambda database: (
                database.execute(
                    "select count(*), ifnull(max(sequence), 0) from parked where sink = ? and shard = ?", (sink, shard)
                ).get
            )
        )
        return count, newest

    async def close(self) -> None:
        """Safe to call twice."""
        await self._thread.run(self._let_go)
        self._thread.close()

    def _let_go(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()


def _opened(path: str) -> apsw.Connection:
    database = apsw.Connection(path)
    database.set_busy_timeout(10_000)
    database.execute("pragma journal_mode = wal; pragma synchronous = full")
    database.execute(_SCHEMA)
    columns = {row[1] for row in database.execute("pragma table_info(checkpoints)")}
    for column in ("replay_to integer not null default 0", "log_id text not null default ''"):
        if column.partition(" ")[0] not in columns:  # Written by a version that did not know it.
            database.execute(f"alter table checkpoints add column {column}")
    return database
