"""Events in a table of PostgreSQL, all shards in one.

The table itself says how far it reaches, and a delivery is one statement: rows and account are the same thing, so that
each event stands there exactly once. An event that is there already is compared with the one that comes, because two
nodes that write shards of one name into one table would otherwise mix their logs in silence.

`event_json` is the event as every other sink has it, byte for byte. `event` is the same to search in; it cannot hold
everything that JSON can, so there a character that it refuses is U+FFFD, and a document that it refuses is null.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from omnirelay.errors import Unavailable
from omnirelay.replication.addresses import is_address
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.extras import extra
from omnirelay.replication.loops import OneLoop
from omnirelay.replication.postgres_rows import COLUMNS, Row, copy_of, rows_of
from omnirelay.replication.settings import TABLE, FollowSettings, is_table_name
from omnirelay.replication.sinks import SinkUnusable

with extra("postgres"):
    import psycopg
    from psycopg import conninfo, errors, sql

_CREATE: Final = """
create table {table} (
    shard text not null, sequence_number bigint not null, event_type integer not null, timestamp timestamptz not null,
    peer_id text, region text not null, event_json text not null, event jsonb,
    primary key (shard, sequence_number)
)"""
_CREATE_INDEX: Final = "create index on {table} (event_type)"
_KEYS: Final = """
select array(select attname::text from pg_attribute where attrelid = indrelid and attnum = any(indkey) order by 1)
from pg_index where indrelid = to_regclass(%s) and indisunique and indisvalid and indpred is null and indexprs is null
    and indnkeyatts = indnatts"""
_COPY: Final = f"copy {{table}} ({', '.join(COLUMNS)}) from stdin (format binary)"
_INSERT: Final = """
insert into {table} (shard, sequence_number, event_type, timestamp, peer_id, region, event_json, event)
select %b, sequence_number, event_type, timestamptz 'epoch' + ms * interval '1 millisecond', peer_id, region, json,
    event::jsonb
from unnest(%b::bigint[], %b::integer[], %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[])
    as new (sequence_number, event_type, ms, peer_id, region, json, event)
on conflict (shard, sequence_number) do nothing"""
_OTHERS: Final = """
select held.sequence_number
from {table} as held join unnest(%b::bigint[], %b::integer[], %b::bigint[]) as new (sequence_number, event_type, ms)
    on held.shard = %s and held.sequence_number = new.sequence_number
where held.event_type <> new.event_type and 0 not in (held.event_type, new.event_type)
    or held.timestamp <> timestamptz 'epoch' + new.ms * interval '1 millisecond'
order by 1 limit 1"""

# The same lock for whoever makes tables of ours: "create … if not exists" of two at once is an error for one of them.
_LOCK: Final = "select pg_advisory_xact_lock(7003114700114700)"

_WRONG_SHAPE = (errors.UndefinedColumn, errors.DatatypeMismatch, errors.InvalidColumnReference, errors.WrongObjectType)
_NOT_FOR_JSONB = (errors.DataError, errors.ProgramLimitExceeded, errors.StatementTooComplex)


class PostgresSink:
    """One connection per shard, made anew when it breaks."""

    rebuilds_state = False

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        table: str = TABLE,
        timeout_ms: int = FollowSettings().timeout_ms,
    ) -> None:
        """`table` is made when it is missing, in lower case as everything that is not quoted. A statement, and a server
        that says nothing, are given up after `timeout_ms`.
        """
        if not is_address("postgres", url):
            raise SinkUnusable("the url of a postgres sink begins with postgresql://")
        if not is_table_name(table):
            raise SinkUnusable(f"{table!r} is not a name for a table")
        self._password = password
        self._target = _target(url, password, timeout_ms)
        self._table = table.lower()
        self._timeout_ms = timeout_ms
        self._shard = ""
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._loop = OneLoop("omnirelay-postgres-sink")

    async def open(self, shard: str) -> int | None:
        self._shard = shard
        return await self._loop.run(lambda: self._explained(self._open))

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        if events:
            await self._loop.run(lambda: self._explained(lambda: self._insert(events)))

    async def close(self) -> None:
        if self._connection is not None:
            await self._loop.run(self._disconnect)
        self._loop.close()

    # -- in the sink's own loop ------------------------------------------------------------------

    async def _explained(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Have it done; what the library raises is said in our words, and never with the password in it."""
        try:
            return await work()
        except (*_WRONG_SHAPE, errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
            await self._disconnect()
            raise SinkUnusable(f"the table {self._table} cannot be used: {self._said(error)}") from None
        except psycopg.Error as error:
            await self._disconnect()
            raise Unavailable(f"PostgreSQL: {self._said(error)}") from None
        except BaseException:
            # Cancelled, perhaps in the middle of a statement: what the connection is in nobody knows.
            await self._disconnect()
            raise

    def _said(self, error: psycopg.Error) -> str:
        said = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
        return said.replace(self._password, "…") if self._password else said

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None or self._connection.closed:
            # Prepared statements would not survive a pooler between us and the server, and one per batch is no gain.
            self._connection = await psycopg.AsyncConnection.connect(
                self._target, autocommit=True, prepare_threshold=None
            )
            await self._connection.execute(f"set statement_timeout = {self._timeout_ms}")
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _sql(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(table=sql.Identifier(self._table))

    async def _open(self) -> int:
        connection = await self._connected()
        async with connection.transaction():
            await connection.execute(_LOCK)
            columns = await self._columns(connection)
            if not columns:
                await connection.execute(self._sql(_CREATE))
                await connection.execute(self._sql(_CREATE_INDEX))
            else:
                self._check(columns)
                await self._check_key(connection)
        found = await connection.execute(
            self._sql("select max(sequence_number) from {table} where shard = %s"), (self._shard,)
        )
        row = await found.fetchone()
        return 0 if row is None or row[0] is None else int(row[0])

    async def _columns(self, connection: psycopg.AsyncConnection[Any]) -> dict[str, str]:
        found = await connection.execute(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped",
            (f'"{self._table}"',),
        )
        return {str(name): str(type_) for name, type_ in await found.fetchall()}

    def _check(self, columns: dict[str, str]) -> None:
        """Other columns are somebody's business; ours have to be as we know them."""
        for name, type_ in COLUMNS.items():
            if columns.get(name) != type_:
                found = columns.get(name, "missing")
                raise SinkUnusable(
                    f"the table {self._table} is another one: {name} is {found}, must be {type_}; name another table"
                )

    async def _check_key(self, connection: psycopg.AsyncConnection[Any]) -> None:
        # Without it nothing would keep an event from standing there twice.
        found = await connection.execute(_KEYS, (f'"{self._table}"',))
        if ["sequence_number", "shard"] not in [row[0] for row in await found.fetchall()]:
            raise SinkUnusable(
                f"the table {self._table} is another one: it has no unique index on shard and sequence_number"
            )

    async def _insert(self, events: Sequence[ReplicatedEvent]) -> None:
        connection = await self._connected()
        rows = rows_of(events)
        try:
            await self._copy(connection, rows)
        except errors.UniqueViolation:
            if await self._insert_rows(connection, rows) < len(rows):
                await self._check_same(connection, rows)
        except _NOT_FOR_JSONB:
            async with connection.transaction():
                taken = sum([await self._insert_one(connection, row) for row in rows])
            if taken < len(rows):
                await self._check_same(connection, rows)

    async def _copy(self, connection: psycopg.AsyncConnection[Any], rows: Sequence[Row]) -> None:
        """All of them or none. The quick way, which most deliveries go: nothing of them is there yet."""
        async with connection.cursor().copy(self._sql(_COPY)) as copy:
            await copy.write(copy_of(self._shard, rows))

    async def _insert_rows(self, connection: psycopg.AsyncConnection[Any], rows: Sequence[Row]) -> int:
        columns = [list(column) for column in zip(*rows, strict=True)]
        done = await connection.execute(self._sql(_INSERT), (self._shard, *columns))
        return done.rowcount

    async def _insert_one(self, connection: psycopg.AsyncConnection[Any], row: Row) -> int:
        try:
            async with connection.transaction():
                return await self._insert_rows(connection, [row])
        except _NOT_FOR_JSONB:
            # A number beyond every range, say, or something nested too deep: it stays readable in event_json.
            return await self._insert_rows(connection, [(*row[:-1], None)])

    async def _check_same(self, connection: psycopg.AsyncConnection[Any], rows: Sequence[Row]) -> None:
        sequences, types, times, *_ = zip(*rows, strict=True)
        found = await connection.execute(self._sql(_OTHERS), (list(sequences), list(types), list(times), self._shard))
        row = await found.fetchone()
        if row is not None:
            raise SinkUnusable(
                f"the table {self._table} holds another event {row[0]} of {self._shard}: another node writes a shard of"
                " this name to it, or the log is not the one it was; name another table, or empty it, then resume"
            )


def _target(url: str, password: str | None, timeout_ms: int) -> str:
    seconds = max(2, timeout_ms // 1000)
    try:
        given = conninfo.conninfo_to_dict(url)
        # A server that vanished without a word must not hold a delivery for as long as the system's defaults do.
        patience: dict[str, Any] = {
            "connect_timeout": seconds,
            "tcp_user_timeout": timeout_ms,
            "application_name": "omnirelay",
        }
        return conninfo.make_conninfo(**{**patience, **given, **({} if password is None else {"password": password})})
    except psycopg.ProgrammingError:
        # What the library says of it repeats parts of it.
        raise SinkUnusable("the url of a postgres sink cannot be read: postgresql://USER@HOST:PORT/DATABASE") from None
