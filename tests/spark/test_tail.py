"""What a node sends becomes again what its log holds."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import msgspec
import pytest
from hypothesis import given

from omnirelay.errors import NotFound, Unavailable
from omnirelay.lakehouse.source import LogReader
from omnirelay.lakehouse.source_options import read_options
from omnirelay.lakehouse.tail import Live, live_shards, stored_of
from omnirelay.wire.events import readable
from tests.property.event_strategies import any_stored


@given(any_stored())
def test_an_event_comes_back_byte_for_byte(event: dict[str, Any]) -> None:
    stored = msgspec.json.encode(event)
    assert stored_of(msgspec.json.encode(readable(stored))) == stored


@pytest.fixture
def starting() -> Iterator[str]:
    """What a node says of itself while it is still reading one of its logs."""
    components = [{"name": "jobs", "ready": False}, {"name": "other", "ready": True, "lastSequence": 7}]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = msgspec.json.encode({"components": components})
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def test_shard_that_a_node_is_still_reading_does_not_pass_for_one_without_events(starting: str) -> None:
    with pytest.raises(Unavailable, match=r"the shard 'jobs' of the node at .* does not serve yet"):
        live_shards(starting)
    assert live_shards(starting, ["other"]) == {"other": Live(7)}


def test_a_password_in_the_address_is_not_named(starting: str) -> None:
    with pytest.raises(Unavailable, match=r"the node at http://me:\*\*\*@127") as caught:
        live_shards(starting.replace("//", "//me:secret@"))
    assert "secret" not in caught.value.message


def test_shard_that_a_node_does_not_have_is_refused_with_those_it_has(starting: str) -> None:
    options = read_options({"url": starting, "shards": "nobody"})
    with pytest.raises(NotFound, match="option shards names the shard 'nobody'; there are other"):
        LogReader(options).partitions()
