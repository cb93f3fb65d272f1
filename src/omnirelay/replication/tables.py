"""Events in a table of an SQLite file, in the layout that readers of the older system know."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import apsw

from omnirelay.log.files import make_directories
from omnirelay.replication.commits import Commits
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.rows import Row, rows_of
from omnirelay.replication.runs import Runs, runs_of
from omnirelay.replication.settings import TABLE, is_table_name
from omnirelay.replication.sinks import SinkUnusable, TargetChanged
from omnirelay.replication.threads import OneThread

_ROW: Final = "(?, ?, ?, ?, ?)"
_ROWS_TOGETHER: Final = (500, 50, 1)
"""Rows of one statement. With every step of a statement the interpreter lock changes hands, and getting it back from a
busy event loop may take long."""


_PAGE_BYTES: Final = 16_384
"""Of a new file. Events are half a kilobyte each: the default of 4,096 takes twice the time for the same rows."""

_TAKES_ARRAYS: Final = "ENABLE_CARRAY" in apsw.compile_options
"""Whether SQLite takes many texts at once, which it then makes rows of while others use the interpreter."""


_Files = tuple[int, int, int]


def _files_of(path: Path) -> _Files | None:
    """Which files are the database: the device, the file and the log that goes with it; None when one is missing."""
    try:
        database = os.stat(path)
        return database.st_dev, database.st_ino, os.stat(f"{path}-wal").st_ino
    except FileNotFoundError:
        return None


def _inserts(events: Sequence[ReplicatedEvent]) -> Runs | list[Row]:
    runs = runs_of(events) if _TAKES_ARRAYS and isinstance(events, Commits) else None
    return rows_of(events) if runs is None else runs


class SqliteSink:
    """One file per shard: `{directory}/{shard}.db`. The table itself says how far it reaches.

    Which files stand under its names is looked at with every delivery: SQLite goes on in one that was removed.
    """

    rebuilds_state = False
    takes_commits = True

    def __init__(self, directory: Path, *, table: str = TABLE) -> None:
        if not is_table_name(table):
            raise SinkUnusable(f"{table!r} is not a name for a table")
        self._directory = directory
        self._table = table
        self._database: apsw.Connection | None = None
        self._path = directory
        self._files: _Files | None = None
        self._thread = OneThread("omnirelay-sqlite-sink")
        self._prepared: tuple[Commits, Runs | list[Row]] | None = None

    async def open(self, shard: str) -> int | None:
        return await self._thread.run(lambda: self._open(shard))

    def _open(self, shard: str) -> int:
        self._let_go()
        try:
            make_directories(self._directory)
        except OSError as error:
            raise SinkUnusable(f"cannot write to {self._directory}: {error.strerror}") from None
        self._path = path = self._directory / f"{shard}.db"
        try:
            self._database = database = apsw.Connection(str(path))
            database.set_busy_timeout(10_000)
            database.execute(f"pragma page_size = {_PAGE_BYTES}")  # Nothing happens to a file that is there.
            database.execute("pragma journal_mode = wal; pragma synchronous = full")
            database.execute(
                f"create table if not exists {self._table} (sequence_number integer primary key,"
                " event_type integer not null, timestamp text not null, peer_id text, event_json text not null);"
                f" create index if not exists IX_{self._table}_EventType on {self._table} (event_type)"
            )
            row = database.execute(f"select max(sequence_number) from {self._table}").fetchone()
        except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
            raise SinkUnusable(f"{path} holds something else: {error}") from None
        self._files = _files_of(path)
        return 0 if row is None or row[0] is None else int(str(row[0]))

    async def prepare(self, commits: Commits) -> None:
        """Make the rows of what comes next while the database is busy with what comes before it."""
        self._prepared = (commits, await asyncio.to_thread(_inserts, commits))

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        # Taken before anything is waited for: what is prepared meanwhile is for the next one.
        prepared, self._prepared = self._prepared, None
        ready = prepared[1] if prepared is not None and prepared[0] is events else None
        await self._thread.run(lambda: self._insert(events, ready))

    def _insert(self, events: Sequence[ReplicatedEvent], ready: Runs | list[Row] | None = None) -> None:
        if self._database is None:
            raise TargetChanged(f"{self._path} has to be opened again first", file=str(self._path))
        # Here and not in the event loop: a large batch takes a while.
        inserts = _inserts(events) if ready is None else ready
        self._check_place()
        with self._database:
            if isinstance(inserts, Runs):
                self._insert_runs(self._database, inserts)
            else:
                self._insert_rows(self._database, inserts)
        self._check_place()

    def _check_place(self) -> None:
        there = _files_of(self._path)
        if there != self._files:
            self._let_go()
            what = "was removed or moved" if there is None else "was replaced by another file"
            raise TargetChanged(f"{self._path} {what}", file=str(self._path))

    def _insert_runs(self, database: apsw.Connection, runs: Runs) -> None:
        statement = f"insert or ignore into {self._table} select ?1 + rowid - 1, ?2, ?3, ?4, value from carray(?5)"
        for run in runs.runs:
            texts = apsw.carray(runs.texts, start=run.start, stop=run.stop)
            database.execute(statement, (run.first, run.event_type, run.timestamp, run.peer, texts))

    def _insert_rows(self, database: apsw.Connection, rows: list[Row]) -> None:
        at = 0
        for together in _ROWS_TOGETHER:
            statement = f"insert or ignore into {self._table} values {', '.join([_ROW] * together)}"
            while len(rows) - at >= together:
                database.execute(statement, tuple(chain.from_iterable(rows[at : at + together])))
                at += together

    def _let_go(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    async def close(self) -> None:
        await self._thread.run(self._let_go)
        self._thread.close()
