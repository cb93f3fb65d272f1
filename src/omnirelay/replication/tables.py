"""Events in a table of an SQLite file, in the layout that readers of the older system know."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import apsw

from omnirelay.log.files import make_directories
from omnirelay.replication.commits import Commits
from omnirelay.replication.courtesy import FLUSHED_EVENTS
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.late_index import leave_out, make_up
from omnirelay.replication.made import Made
from omnirelay.replication.making import make
from omnirelay.replication.owners import Newest, newest_of, of_another_log
from omnirelay.replication.rows import Row, rows_of
from omnirelay.replication.settings import OWNERS_TABLE, TABLE, is_table_name
from omnirelay.replication.sinks import SinkUnusable, TargetChanged, not_writable
from omnirelay.replication.table_shape import TableShape
from omnirelay.replication.threads import OneThread
from omnirelay.replication.workshop import IN_THREAD, Maker
from omnirelay.replication.write_ahead import WriteAhead

_ROWS_TOGETHER: Final = (500, 50, 1)
"""Rows of one statement. With every step of a statement the interpreter lock changes hands, and getting it back from a
busy event loop may take long."""


_PAGE_BYTES: Final = 32_768
"""Of a new file. Events are half a kilobyte each: the default of 4,096 takes twice the time for the same rows."""

_CACHE_KIB: Final = 16 * 1024
"""Of pages in memory: all that a delivery writes. What does not fit is written while others are still being made."""

"""The table that says which log the rows of each table came from."""

_TAKES_ARRAYS: Final = "ENABLE_CARRAY" in apsw.compile_options
"""Whether SQLite takes many places of texts at once, which it then makes rows of while others use the interpreter."""


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file stands there: its device and its number."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return None
    return there.st_dev, there.st_ino


@contextmanager
def _writing(database: apsw.Connection) -> Iterator[apsw.Connection]:
    """All of it or nothing, with everybody else kept out from the beginning."""
    database.execute("begin immediate")
    try:
        yield database
        database.execute("commit")
    except BaseException:
        if database.in_transaction:
            database.execute("rollback")
        raise


def _made_of(commits: Commits) -> Made:
    """Their rows, made here if nobody has."""
    if commits.made is None:
        commits.made = make("rows", commits)
    return commits.made


class SqliteSink:
    """One file per shard: `{directory}/{shard}.db`. The table itself says how far it reaches.

    Which files stand under its names is looked at with every delivery: SQLite goes on in one that was removed.
    """

    rebuilds_state = False
    takes_commits = True
    prepares_ahead = 2
    events_beside_callers = FLUSHED_EVENTS
    maker: Maker = IN_THREAD
    newest: Newest | None = None
    """The last event that the table had when it was opened."""

    def __init__(self, directory: Path, *, table: str = TABLE) -> None:
        if not is_table_name(table):
            raise SinkUnusable(f"{table!r} is not a name for a table")
        if table.lower() == OWNERS_TABLE.lower():
            raise SinkUnusable(f"{table!r} is the name of a table that says whose the others are")
        self._directory = directory
        self._table = table
        self._shape = TableShape(table)
        self._database: apsw.Connection | None = None
        self._write_ahead: WriteAhead | None = None
        self._path = directory
        self._files: dict[str, tuple[int, int]] = {}
        """Those that are the database: it, and the log that goes with it."""
        self._takes_runs = False
        self._follows = 0
        """So many events are behind the next delivery, and nobody calls."""
        self._left_out = False
        """The index was, since the table was opened."""
        self._log_id: str | None = None
        self._shard = ""
        self._thread = OneThread("omnirelay-sqlite-sink")

    def of_log(self, log_id: str) -> None:
        """Which log it follows. A table with another one's events is refused."""
        self._log_id = log_id

    async def open(self, shard: str) -> int | None:
        return await self._thread.run(lambda: self._open(shard))

    def _open(self, shard: str) -> int:
        self._let_go()
        try:
            make_directories(self._directory)
        except OSError as error:
            raise not_writable(self._directory, error) from None
        self._path = path = self._directory / f"{shard}.db"
        try:
            self._database = database = apsw.Connection(str(path))
            database.set_busy_timeout(10_000)
            database.execute(f"pragma page_size = {_PAGE_BYTES}")  # Nothing happens to a file that is there.
            database.execute("pragma journal_mode = wal; pragma synchronous = full")
            database.execute(f"pragma cache_size = -{_CACHE_KIB}")
            self._shape.make(database)
            self._left_out = False
            # Texts are cut out as bytes, and a file that somebody else made may have them in UTF-16.
            is_utf8 = database.execute("pragma encoding").fetchall() == [("UTF-8",)]
            self._takes_runs = _TAKES_ARRAYS and is_utf8
            row = database.execute(
                f"select sequence_number, event_json from {self._shape.quoted} order by sequence_number desc limit 1"
            ).fetchone()
            if row is not None:
                self._check_owner(database)
            self._write_ahead = WriteAhead(str(path), database)
        except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
            raise SinkUnusable(f"{path} holds something else: {error}") from None
        self._shard = shard
        names = (str(path), f"{path}-wal")
        self._files = {name: there for name in names if (there := _file_at(name)) is not None}
        if row is None:
            self.newest = None
            return 0
        self.newest = newest_of(str(row[1]))
        return int(str(row[0]))

    def _check_owner(self, database: apsw.Connection) -> bool:
        """Whether this log is known for the owner of the table. Raises SinkUnusable when another one is."""
        if not database.table_exists(None, OWNERS_TABLE):
            return False
        owner = database.execute(
            f"select shard, log_id from {OWNERS_TABLE} where table_name = ?", (self._table.lower(),)
        ).fetchone()
        if owner is not None and self._log_id is not None and owner[1] != self._log_id:
            raise of_another_log(f"{self._table} in {self._path}", str(owner[0]), str(owner[1]))
        return owner is not None

    def _claim(self, database: apsw.Connection) -> None:
        """Within the transaction of a delivery, so that of two logs only one comes first."""
        if self._log_id is None:
            return
        is_empty = database.execute(f"select 1 from {self._shape.quoted} limit 1").fetchone() is None
        if not is_empty and self._check_owner(database):
            return
        database.execute(
            f"create table if not exists {OWNERS_TABLE} (table_name text primary key, shard text not null,"
            " log_id text not null) without rowid"
        )
        database.execute(
            f"insert or replace into {OWNERS_TABLE} values (?, ?, ?)", (self._table.lower(), self._shard, self._log_id)
        )

    async def prepare(self, commits: Commits) -> None:
        """Make the rows of what comes next while the database is busy with what comes before it."""
        if self._takes_runs:
            commits.made = await self.maker.make("rows", commits)

    def expect(self, events: int) -> None:
        self._follows = events

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        await self._thread.run(lambda: self._insert(events))

    def _insert(self, events: Sequence[ReplicatedEvent]) -> None:
        if self._database is None:
            raise TargetChanged(f"{self._path} has to be opened again first", file=str(self._path))
        # Here and not in the event loop: a large batch takes a while.
        in_runs = events if self._takes_runs and isinstance(events, Commits) and _made_of(events).runs else None
        rows = rows_of(events) if in_runs is None else []
        self._check_place()
        if self._write_ahead is not None:
            self._write_ahead.before()
        try:
            with _writing(self._database) as database:
                self._claim(database)
                self._left_out |= leave_out(self._shape, database, self._follows)
                before = database.total_changes()
                if in_runs is None:
                    self._insert_rows(database, rows)
                else:
                    self._insert_runs(database, in_runs)
                if database.total_changes() - before < len(events):
                    self._shape.check_same(database, rows_of(events))
                if self._left_out:
                    make_up(self._shape, database, self._follows)
        except apsw.ConstraintError as error:
            raise SinkUnusable(f"the table {self._table} in {self._path} refuses events: {error}") from None
        self._check_place()

    def _check_place(self) -> None:
        for name, opened in self._files.items():
            there = _file_at(name)
            if there != opened:
                self._let_go()
                what = "was removed or moved" if there is None else "was replaced by another file"
                raise TargetChanged(f"{name} {what}", file=name)

    def _insert_runs(self, database: apsw.Connection, commits: Commits) -> None:
        made = _made_of(commits)
        texts, places = made.parts[:-1], memoryview(made.parts[-1]).cast("q")
        newest = self._shape.newest(database) if self._shape.counts_on(database) else None
        for run in made.runs:
            of_run = commits.frames[run.piece].data if run.in_frame else texts[run.piece]
            behind_last = newest == run.first - 1
            values = (
                *(run.first - 1, run.event_type, run.timestamp, run.peer),
                apsw.carray(places, start=run.start, stop=run.stop),
                memoryview(of_run)[run.begins : run.ends],
                *(run.number_behind, run.ending),
            )
            numbered = bool(run.number_behind)
            database.execute(self._shape.insert_run(numbered=numbered, behind_last=behind_last), values)
            if newest is not None:
                newest = max(newest, run.first + run.stop - run.start - 1)
            assert not behind_last or database.last_insert_rowid() == newest

    def _insert_rows(self, database: apsw.Connection, rows: list[Row]) -> None:
        at = 0
        for together in _ROWS_TOGETHER:
            statement = self._shape.insert_rows(together)
            while len(rows) - at >= together:
                database.execute(statement, tuple(chain.from_iterable(rows[at : at + together])))
                at += together

    def _let_go(self) -> None:
        write_ahead, self._write_ahead = self._write_ahead, None
        if write_ahead is not None:
            write_ahead.close()
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _leave(self) -> None:
        """Whoever reads the table while nobody writes to it has an index."""
        try:
            if self._database is not None and self._left_out:
                self._check_place()
                with _writing(self._database) as database:
                    make_up(self._shape, database, 0)
        finally:
            self._let_go()

    async def close(self) -> None:
        try:
            await self._thread.run(self._leave)
        finally:
            self._thread.close()
