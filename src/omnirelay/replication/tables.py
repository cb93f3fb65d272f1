"""Events in a table of an SQLite file, in the layout that readers of the older system know."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import apsw

from omnirelay.log.files import make_directories
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.rows import rows_of
from omnirelay.replication.settings import TABLE, is_table_name
from omnirelay.replication.sinks import SinkUnusable
from omnirelay.replication.threads import OneThread

_ROW: Final = "(?, ?, ?, ?, ?)"
_ROWS_TOGETHER: Final = (500, 50, 1)
"""Rows of one statement. With every step of a statement the interpreter lock changes hands, and getting it back from a
busy event loop may take long."""


class SqliteSink:
    """One file per shard: `{directory}/{shard}.db`. The table itself says how far it reaches."""

    rebuilds_state = False
    takes_commits = True

    def __init__(self, directory: Path, *, table: str = TABLE) -> None:
        if not is_table_name(table):
            raise SinkUnusable(f"{table!r} is not a name for a table")
        self._directory = directory
        self._table = table
        self._database: apsw.Connection | None = None
        self._thread = OneThread("omnirelay-sqlite-sink")

    async def open(self, shard: str) -> int | None:
        return await self._thread.run(lambda: self._open(shard))

    def _open(self, shard: str) -> int:
        self._let_go()
        try:
            make_directories(self._directory)
        except OSError as error:
            raise SinkUnusable(f"cannot write to {self._directory}: {error.strerror}") from None
        path = self._directory / f"{shard}.db"
        try:
            self._database = database = apsw.Connection(str(path))
            database.set_busy_timeout(10_000)
            database.execute("pragma journal_mode = wal; pragma synchronous = full")
            database.execute(
                f"create table if not exists {self._table} (sequence_number integer primary key,"
                " event_type integer not null, timestamp text not null, peer_id text, event_json text not null);"
                f" create index if not exists IX_{self._table}_EventType on {self._table} (event_type)"
            )
            row = database.execute(f"select max(sequence_number) from {self._table}").fetchone()
        except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
            raise SinkUnusable(f"{path} holds something else: {error}") from None
        return 0 if row is None or row[0] is None else int(str(row[0]))

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        await self._thread.run(lambda: self._insert(events))

    def _insert(self, events: Sequence[ReplicatedEvent]) -> None:
        assert self._database is not None
        rows = rows_of(events)  # Here and not in the event loop: a large batch takes a while.
        with self._database:
            at = 0
            for together in _ROWS_TOGETHER:
                statement = f"insert or ignore into {self._table} values {', '.join([_ROW] * together)}"
                while len(rows) - at >= together:
                    self._database.execute(statement, tuple(chain.from_iterable(rows[at : at + together])))
                    at += together

    def _let_go(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    async def close(self) -> None:
        await self._thread.run(self._let_go)
        self._thread.close()
