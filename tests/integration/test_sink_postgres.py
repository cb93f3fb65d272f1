"""The PostgreSQL sink against a real server: what it holds, what it refuses, and what it survives."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.errors import Unavailable
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.postgres_table import PostgresSink
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.testing.sinks import SHARD, SinkConformance, made_event, made_events
from tests.integration.nodes import Http
from tests.integration.shards import soon
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.integration.test_replication_node import sink as settings_of
from tests.integration.test_sink_nats import repeated
from tests.servers import PASSWORD_USER, PostgresServer


def table_of(directory: Path) -> str:
    """A table of its own for every directory."""
    return f"Events_{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}"


def query(server: PostgresServer, text: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        found = connection.execute(text.encode(), values or None)
        return found.fetchall() if found.description else []


@pytest.fixture
def table(tmp_path: Path) -> str:
    return table_of(tmp_path)


class TestPostgresSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, postgres: PostgresServer) -> None:
        self.server = postgres

    def make_sink(self, directory: Path) -> ReplicationSink:
        return PostgresSink(self.server.url(), table=table_of(directory))

    async def read_back(self, directory: Path) -> Sequence[int]:
        rows = query(
            self.server, f"select sequence_number from {table_of(directory)} where shard = '{SHARD}' order by 1"
        )
        return [row[0] for row in rows]


async def deliver(server: PostgresServer, table: str, *batches: Sequence[ReplicatedEvent]) -> int | None:
    sink = PostgresSink(server.url(), table=table)
    try:
        known = await sink.open(SHARD)
        for batch in batches:
            await sink.apply(batch)
        return known
    finally:
        await sink.close()


# -- what it holds -------------------------------------------------------------------------------


async def test_a_row_has_the_event_byte_for_byte_and_to_search_in(postgres: PostgresServer, table: str) -> None:
    event = made_event(7)
    await deliver(postgres, table, [made_event(6), event])
    [row] = query(
        postgres,
        "select shard, event_type, extract(epoch from timestamp) * 1000, peer_id, region, event_json, event from"
        f' {table} where event @> \'{{"eventType": "FromTheFuture"}}\'',
    )
    assert row[:5] == (SHARD, EVENT_NUMBERS.get("FromTheFuture", 0), event.timestamp, "worker-1", "local")
    assert row[5].encode() == event.json()
    assert row[6] == msgspec.json.decode(event.json())


async def test_shards_share_a_table_and_each_has_its_own_account(postgres: PostgresServer, table: str) -> None:
    await deliver(postgres, table, made_events(3))
    other = PostgresSink(postgres.url(), table=table)
    assert await other.open("other") == 0
    await other.apply([msgspec.structs.replace(made_event(1), shard="other")])
    assert await other.open("other") == 1
    await other.close()
    assert query(postgres, f"select shard, count(*) from {table} group by 1 order by 1") == [(SHARD, 5), ("other", 1)]


def stored(sequence: int, tail: bytes) -> ReplicatedEvent:
    """An event with fields that a later version may write."""
    data = b'{"eventType":"Enqueue","sequenceNumber":%d,"timestamp":1700000000000,%b}' % (sequence, tail)
    return msgspec.structs.replace(made_event(sequence), data=data)


@pytest.mark.parametrize(
    ("tail", "searched"),
    [
        (b'"x":"a\\u0000b"', {"x": "a\ufffdb"}),
        (b'"\\u0000":1', {"\ufffd": 1}),
        (b'"peerId":"a\\u0000"', {"peerId": "a\ufffd"}),
        (b'"x":"\\\\u0000 \\ud83d\\ude00"', {"x": "\\u0000 😀"}),
        (b'"x":1e400000', None),
    ],
    ids=["nul", "nul in a name", "nul in the peer", "only looks like nul", "number"],
)
async def test_what_jsonb_cannot_hold_is_whole_as_text(
    postgres: PostgresServer, table: str, tail: bytes, searched: dict[str, Any] | None
) -> None:
    events = [made_event(1), stored(2, tail), made_event(3)]
    await deliver(postgres, table, events, events)
    rows = query(postgres, f"select event_json, event from {table} order by sequence_number")
    assert [row[0].encode() for row in rows] == [event.json() for event in events]
    assert rows[0][1] is not None
    assert rows[2][1] is not None
    if searched is None:
        assert rows[1][1] is None
    else:
        assert searched.items() <= rows[1][1].items()


# -- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("create table {} (id int)", "shard is missing, must be text"),
        (
            "create table {} (shard text, sequence_number int, event_type int, event_json text, event jsonb)",
            "sequence_number is integer, must be bigint",
        ),
    ],
)
async def test_a_table_of_somebody_else_is_not_written_to(
    postgres: PostgresServer, table: str, made: str, named: str
) -> None:
    query(postgres, made.format(table))
    with pytest.raises(SinkUnusable, match=named):
        await deliver(postgres, table, made_events(1))
    assert query(postgres, f"select count(*) from {table}") == [(0,)]


async def test_a_table_without_its_key_is_not_written_to(postgres: PostgresServer, table: str) -> None:
    await deliver(postgres, table)
    query(postgres, f"alter table {table} drop constraint {table.lower()}_pkey")
    with pytest.raises(SinkUnusable, match="it has no unique index on shard and sequence_number"):
        await deliver(postgres, table, made_events(1))


async def test_columns_that_somebody_added_do_no_harm(postgres: PostgresServer, table: str) -> None:
    await deliver(postgres, table, [made_event(1)])
    query(postgres, f"alter table {table} add column tag text default 'x', drop column region")
    query(postgres, f"alter table {table} add column region text")
    await deliver(postgres, table, [made_event(2)])
    assert query(postgres, f"select sequence_number, tag from {table} order by 1") == [(1, "x"), (2, "x")]


async def test_another_event_of_the_same_number_is_not_passed_over(postgres: PostgresServer, table: str) -> None:
    await deliver(postgres, table, [made_event(1), made_event(2)])
    other = msgspec.structs.replace(made_event(2), timestamp=5)
    with pytest.raises(SinkUnusable, match=f"holds another event 2 of {SHARD}"):
        await deliver(postgres, table, [made_event(1), other])


async def test_a_type_that_was_not_known_when_it_was_written_is_the_same_event(
    postgres: PostgresServer, table: str
) -> None:
    await deliver(postgres, table, [made_event(7)])
    query(postgres, f"update {table} set event_type = 0")
    await deliver(postgres, table, [msgspec.structs.replace(made_event(7), event_type="Enqueue")])


async def test_a_wrong_password_is_named_and_not_told(postgres: PostgresServer, table: str) -> None:
    query(postgres, f"drop role if exists {PASSWORD_USER}")
    query(postgres, f"create role {PASSWORD_USER} login password 'the-right-one'")
    query(postgres, "grant all on schema public to public")
    url = postgres.url(user=PASSWORD_USER)
    wrong = PostgresSink(url, password="my-hidden-guess", table=table)
    with pytest.raises(Unavailable, match="password authentication failed") as caught:
        await wrong.open(SHARD)
    assert "my-hidden-guess" not in repr(caught.value)
    await wrong.close()
    right = PostgresSink(url, password="the-right-one", table=table)
    assert await right.open(SHARD) == 0
    await right.close()
    query(postgres, f"drop table {table}")


async def test_a_missing_database_and_a_server_that_is_down_are_tried_again(postgres: PostgresServer) -> None:
    sink = PostgresSink(postgres.url("nowhere"))
    with pytest.raises(Unavailable, match='database "nowhere" does not exist'):
        await sink.open(SHARD)
    await sink.close()
    sink = PostgresSink("postgresql://me@127.0.0.1:1/x", password="hidden")
    with pytest.raises(Unavailable, match=r"Connection refused") as caught:
        await sink.open(SHARD)
    assert "hidden" not in repr(caught.value)
    await sink.close()


@pytest.mark.parametrize(
    ("url", "table", "named"),
    [
        ("http://x", "t", "begins with postgresql://"),
        ("postgresql://me:hidden@x/y?nonsense=1", "t", "cannot be read"),
        ("postgresql://x/y", "a b", "is not a name for a table"),
    ],
)
def test_a_sink_that_cannot_work_is_not_made(url: str, table: str, named: str) -> None:
    with pytest.raises(SinkUnusable, match=named) as caught:
        PostgresSink(url, table=table)
    assert "hidden" not in repr(caught.value)


# -- what it survives ----------------------------------------------------------------------------


async def test_a_connection_that_was_cut_is_made_anew(postgres: PostgresServer, table: str) -> None:
    sink = PostgresSink(postgres.url(), table=table)
    await sink.open(SHARD)
    await sink.apply([made_event(1)])
    query(postgres, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'omnirelay'")
    with pytest.raises(Unavailable, match="terminating connection"):
        await sink.apply([made_event(2)])
    await sink.apply([made_event(2)])
    await sink.close()
    assert query(postgres, f"select sequence_number from {table} order by 1") == [(1,), (2,)]


async def test_a_table_that_somebody_locks_holds_nobody_for_ever(postgres: PostgresServer, table: str) -> None:
    sink = PostgresSink(postgres.url(), table=table, timeout_ms=200)
    patient = PostgresSink(postgres.url(), table=table)
    await repeated(lambda: sink.open(SHARD))  # On a busy machine a statement may well take so long.
    await patient.open(SHARD)
    with psycopg.connect(postgres.url()) as other:
        other.execute(f"lock table {table}".encode())
        with pytest.raises(Unavailable, match="statement timeout"):
            await sink.apply([made_event(1)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await patient.apply([made_event(1)])
    # The next calls do not stumble over what was given up, whether it came through in the end or not.
    await repeated(lambda: sink.apply([made_event(1)]))
    await patient.apply([made_event(1), made_event(2)])
    assert query(postgres, f"select count(*) from {table}") == [(2,)]
    await sink.close()
    await patient.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """One that tests may kill, and leave running; what it has confirmed has to be on the disk."""
    server = PostgresServer(fsync=True)
    try:
        server.start()
        yield server
    finally:
        server.remove()


async def killed_in_the_middle(server: PostgresServer, sink: PostgresSink, batch: Sequence[ReplicatedEvent]) -> None:
    """A lock holds the delivery up until the server is killed; after that it runs again."""
    other = psycopg.connect(server.url())
    other.execute("lock table events in share mode")
    delivering = asyncio.create_task(sink.apply(batch))
    while not await asyncio.to_thread(query, server, "select 1 from pg_locks where not granted"):
        continue
    await asyncio.to_thread(server.kill)
    with pytest.raises(Unavailable, match="PostgreSQL: "):
        await delivering
    other.close()
    await asyncio.to_thread(server.start)


async def test_a_server_that_is_killed_again_and_again_has_every_event_once(own_server: PostgresServer) -> None:
    events = made_events(2_000)
    sink = PostgresSink(own_server.url(), table="events")
    assert await sink.open(SHARD) == 0
    for start in range(0, len(events), 100):
        batch = events[start : start + 100]
        if start in (500, 1_400):
            await killed_in_the_middle(own_server, sink, batch)
        await sink.apply(batch)
        assert await sink.open(SHARD) == batch[-1].sequence
    await sink.close()
    rows = query(own_server, "select event_json from events order by sequence_number")
    assert [row[0].encode() for row in rows] == [event.json() for event in events]


async def test_a_node_catches_up_with_a_server_that_was_down(own_server: PostgresServer, tmp_path: Path) -> None:
    own_server.stop()
    quick = FollowSettings(linger_ms=0, retry_first_ms=1, retry_max_ms=20)
    settings = settings_of("lake", "postgres", url=own_server.url(), table="lease_events", follow=quick)
    async with node_with(settings, data=tmp_path) as node, Http(node) as http:
        [follower] = node.replication.find("lake")
        await soon(follower.wait_state("retrying"))
        assert "PostgreSQL: " in (follower.last_error or "")
        await http.call("enqueue", {"items": [ITEM] * 50})
        await asyncio.to_thread(own_server.start)
        await caught_up(node)
        assert follower.status().state == "running"
        await asyncio.to_thread(own_server.kill)
        await http.call("enqueue", {"items": [ITEM] * 50})
        await soon(follower.wait_state("retrying"))
        await asyncio.to_thread(own_server.start)
        await caught_up(node)
        last = node.components[0].shard().last_sequence
    rows = query(own_server, "select sequence_number from lease_events where shard = 'resourcelease' order by 1")
    assert [row[0] for row in rows] == list(range(1, last + 1))
