"""The settings that the page of the sinks shows do what it says, on real servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from omnirelay.node.loading import load, show_rows
from omnirelay.replication.settings import SinkSettings
from tests.integration.nodes import Http
from tests.integration.shards import soon
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.integration.test_sink_nats import messages, sequences
from tests.integration.test_sink_otel import Receiver
from tests.servers import PASSWORD_USER, NatsServer, PostgresServer

PAGE = (Path(__file__).parents[2] / "docs/replication/sinks.md").read_text()
SNIPPETS = {
    kind: text
    for text, kind in re.findall(
        r"^## `\w+`\n\n```toml\n(\[.*?\nkind = \"(\w+)\"\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
}
PASSWORD = "only-in-the-file"


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
    return msgspec.structs.replace(sink, follow=msgspec.structs.replace(sink.follow, linger_ms=0))


async def delivered(sink: SinkSettings, directory: Path) -> int:
    """Run a node with the sink until everything is delivered; how many events there are."""
    async with node_with(sink, data=directory) as node, Http(node) as http:
        [follower] = node.replication.followers
        await soon(follower.wait_state("running"))
        await http.call("enqueue", {"items": [ITEM] * 20})
        await caught_up(node)
        return node.components[0].shard().last_sequence


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
