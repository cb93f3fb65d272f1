"""The settings that the page of the sinks shows do what it says, on real servers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from omnirelay.node.loading import load, show_rows
from omnirelay.replication.memory import MemorySink
from omnirelay.replication.settings import SinkSettings
from omnirelay.segments.connecting import connect
from omnirelay.segments.verification import verify
from tests.integration.nodes import Http
from tests.integration.shards import soon
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.integration.test_replication_webhook import Receiver as HookReceiver
from tests.integration.test_sink_nats import messages, sequences
from tests.integration.test_sink_otel import Receiver
from tests.segment_logs import S3Server
from tests.servers import PASSWORD_USER, KafkaServer, NatsServer, PostgresServer

PAGE = (Path(__file__).parents[2] / "docs/replication/sinks.md").read_text()
SNIPPETS = {
    kind: text
    for text, kind in re.findall(
        r"^## `\w+`\n\n```toml\n(\[.*?\nkind = \"(\w+)\"\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
}
FIRST = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
"""Files, a table, a webhook and governance by path, together."""
PASSWORD = "only-in-the-file"
QUICK = {"linger_ms": 0}


def test_every_snippet_of_the_page_is_run_by_a_test() -> None:
    """One that is added here needs a test below; that of `csv` is run where its package is installed."""
    kinds = re.findall(r'^kind = "(\w+)"$', PAGE, re.MULTILINE)
    assert kinds == ["file", "sqlite", "webhook", "governance", *SNIPPETS, "csv"]
    assert list(SNIPPETS) == ["postgres", "nats", "kafka", "otel", "governance", "objects", "memory"]


def quick(sink: SinkSettings) -> SinkSettings:
    return msgspec.structs.replace(sink, follow=msgspec.structs.replace(sink.follow, **QUICK))


def settings_in(directory: Path, text: str) -> tuple[SinkSettings, ...]:
    path = directory / "omnirelay.toml"
    path.write_text(text)
    return load(path, {}, {}).settings.sinks


def loaded(directory: Path, kind: str, url: str) -> SinkSettings:
    """The sink of a snippet, with another address in it."""
    text = re.sub(r'^url = ".*"$', f'url = "{url}"', SNIPPETS[kind], count=1, flags=re.MULTILINE)
    path = directory / "omnirelay.toml"
    path.write_text(text)
    found = load(path, {}, {})
    [sink] = found.settings.sinks
    if sink.password_file is not None:
        (directory / sink.password_file).write_text(f"{PASSWORD}\n")
    assert PASSWORD not in repr(show_rows(found))
    return quick(sink)


async def delivered(sink: SinkSettings, directory: Path) -> int:
    """Run a node with the sink until everything is delivered; how many events there are."""
    async with node_with(sink, data=directory) as node, Http(node) as http:
        [follower] = node.replication.followers
        await soon(follower.wait_state("running"))
        await http.call("enqueue", {"items": [ITEM] * 20})
        await caught_up(node)
        return node.components[0].shard().last_sequence


def sequences_of(lines: Iterable[bytes]) -> list[int]:
    return [msgspec.json.decode(line)["sequenceNumber"] for line in lines]


def lines_in(directory: Path) -> list[bytes]:
    return [line for path in sorted(directory.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


async def test_the_first_snippet_of_files_a_table_a_webhook_and_governance(tmp_path: Path) -> None:
    hook = HookReceiver()
    (tmp_path / "catalog.secret").write_text(PASSWORD)
    text = FIRST.replace("https://catalog.example.org/omnirelay/events", hook.url)
    text = text.replace("/var/lib/reporting", str(tmp_path / "reporting"))
    sinks = settings_in(tmp_path, text)
    assert [sink.name for sink in sinks] == ["archive", "reporting", "catalog", "audit"]
    shards = ("orders", "invoices")
    try:
        async with node_with(*map(quick, sinks), data=tmp_path, namespaces=shards) as node:
            for shard in shards:
                async with Http(node, shard) as http:
                    await http.call("enqueue", {"items": [ITEM] * 20})
            await caught_up(node)
            last = {each.namespace: each.shard().last_sequence for each in node.components}
    finally:
        hook.close()
    for shard in shards:
        numbers = list(range(1, last[shard] + 1))
        # A node that ends says something last, which no sink has to have seen.
        assert sequences_of(lines_in(tmp_path / "archive" / shard))[: last[shard]] == numbers
        posts = [msgspec.json.decode(body) for _, body in hook.posts]
        posted = [event["sequenceNumber"] for post in posts if post["shard"] == shard for event in post["events"]]
        assert posted[: last[shard]] == numbers
        lines = [msgspec.json.decode(line) for line in lines_in(tmp_path / "audit" / shard)]
        assert [line["action"] for line in lines] == ["enqueue"] * 20
    for headers, body in hook.posts:
        signed = hmac.new(PASSWORD.encode(), body, hashlib.sha256).hexdigest()
        assert (headers["x-team"], headers["x-omnirelay-signature"]) == ("data-platform", f"sha256={signed}")
    with closing(sqlite3.connect(tmp_path / "reporting" / "orders.db")) as database:
        rows = database.execute("select sequence_number from ResourceLeaseReplicationEvents order by 1").fetchall()
    assert [row[0] for row in rows][: last["orders"]] == list(range(1, last["orders"] + 1))
    assert not (tmp_path / "reporting" / "invoices.db").exists()


async def test_the_snippet_of_objects(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the page says that secrets are better left to.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    text = SNIPPETS["objects"].replace(
        'endpoint = "https://objects.example.org"', f'endpoint = "{s3.endpoint}"\nallow_http = true'
    )
    [sink] = settings_in(tmp_path, text)
    assert sink.url == s3.address("leases")
    last = await delivered(quick(sink), tmp_path)
    report = await verify(await connect(sink.url or "", s3.options, writable=False), "resourcelease")
    assert report.begin == 0
    assert report.position.sequence >= last


async def test_the_snippet_of_memory(tmp_path: Path) -> None:
    [sink] = settings_in(tmp_path, SNIPPETS["memory"])
    async with node_with(quick(sink)) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 20})
        await caught_up(node)
        last = node.components[0].shard().last_sequence
        seen = node.replication.sink("seen", "resourcelease")
        assert isinstance(seen, MemorySink)
        assert [event.sequence for event in seen.events] == list(range(1, last + 1))


def test_the_snippet_of_kafka_loads(tmp_path: Path) -> None:
    sink = loaded(tmp_path, "kafka", "kafka://127.0.0.1:1")
    assert (sink.topic, sink.password_file) == ("lake.leases", "kafka.password")
    assert sink.properties["sasl.mechanism"] == "SCRAM-SHA-512"


@pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make replication-test")
@pytest.mark.timeout(300)
async def test_the_snippet_of_kafka(tmp_path: Path) -> None:
    from tests.integration.test_sink_kafka import read_all
    from tests.integration.test_sink_kafka import sequences as record_sequences

    server = KafkaServer()
    try:
        server.start()
        sink = loaded(tmp_path, "kafka", server.url)
        # The broker of the tests asks for no password and has no certificate.
        plain = {name: value for name, value in sink.properties.items() if not name.startswith("sasl.")}
        sink = msgspec.structs.replace(sink, properties={**plain, "security.protocol": "PLAINTEXT"})
        last = await delivered(sink, tmp_path)
        found = await asyncio.to_thread(read_all, server, "lake.leases")
    finally:
        server.remove()
    assert record_sequences(found)[:last] == list(range(1, last + 1))


async def test_the_snippet_of_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"drop role if exists {PASSWORD_USER}".encode())
        connection.execute(f"create role {PASSWORD_USER} superuser login password '{PASSWORD}'".encode())
        last = await delivered(loaded(tmp_path, "postgres", postgres.url(user=PASSWORD_USER)), tmp_path)
        rows = connection.execute("select sequence_number from lease_events order by 1").fetchall()
        connection.execute("drop table lease_events")
        connection.execute(f"drop role {PASSWORD_USER}".encode())
    assert [row[0] for row in rows] == list(range(1, last + 1))


@pytest.fixture
def closed_nats() -> Iterator[NatsServer]:
    server = NatsServer(f"authorization {{ user: omnirelay, password: {PASSWORD} }}")
    try:
        server.start()
        yield server
    finally:
        server.remove()


async def test_the_snippet_of_nats(closed_nats: NatsServer, tmp_path: Path) -> None:
    servers = f"nats://omnirelay@127.0.0.1:1,127.0.0.1:{closed_nats.port}"
    last = await delivered(loaded(tmp_path, "nats", servers), tmp_path)
    found = await messages(closed_nats, "LEASES", user="omnirelay", password=PASSWORD)
    assert sequences(found) == list(range(1, last + 1))
    assert {message.subject for message in found} == {"lake.leases.resourcelease"}


async def test_the_snippet_of_governance(nats_server: NatsServer, tmp_path: Path) -> None:
    await delivered(loaded(tmp_path, "governance", nats_server.url), tmp_path)
    lines = [msgspec.json.decode(message.data) for message in await messages(nats_server, "OMNIRELAY_GOVERNANCE")]
    assert [line["action"] for line in lines] == ["enqueue"] * 20


async def test_the_snippet_of_otel(tmp_path: Path) -> None:
    receiver = Receiver()
    try:
        last = await delivered(loaded(tmp_path, "otel", receiver.url), tmp_path)
    finally:
        receiver.close()
    assert receiver.sequences() == list(range(1, last + 1))
    assert receiver.headers[0]["x-scope-orgid"] == "lake"
