"""The webhook sink against a real HTTP server that sometimes refuses."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from omnirelay.errors import Unavailable
from omnirelay.replication.governance import governance_schema
from omnirelay.replication.sinks import ReplicationSink, SinkRefused, SinkUnusable
from omnirelay.replication.webhook import WebhookSink
from omnirelay.testing.sinks import LOG_ID, SHARD, SinkConformance, made_events
from tests.integration.nodes import Http
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.integration.test_replication_node import sink as settings_of

EVENTS = made_events(12)
SECRET = b"between us"

Answer = Callable[[dict[str, Any]], int]


class Receiver:
    """Takes what is posted, and answers with the status that `answer` makes of it."""

    def __init__(self) -> None:
        self.answer: Answer = lambda body: 200
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.taken: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.posts.append(({name.lower(): value for name, value in self.headers.items()}, body))
                read = msgspec.json.decode(body)
                status = receiver.answer(read)
                if status == 200:
                    receiver.taken += sequences(read)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/events"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def sequences(body: dict[str, Any]) -> list[int]:
    return [event["sequenceNumber"] for event in body["events"]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


class TestWebhookSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _receiver(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def make_sink(self, directory: Path) -> ReplicationSink:
        return WebhookSink(self.receiver.url)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return self.receiver.taken


async def deliver(sink: WebhookSink, events: Sequence[Any] = EVENTS) -> None:
    await sink.open(SHARD)
    try:
        await sink.apply(events)
    finally:
        await sink.close()


async def test_governance_goes_to_a_webhook_as_lines_of_its_schema(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "audit.secret").write_bytes(SECRET + b"\n")
    audit = settings_of(
        "audit", "governance", url=receiver.url, secret_file="audit.secret", headers={"X-Team": "governance"}
    )
    async with node_with(audit, data=tmp_path) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 3})
        leased = await http.call("lease", {"maxItems": 2, "waitMs": 0}, Rpc_Caller="worker-1")
        done, failed = ({"ownershipToken": lease["ownershipToken"]} for lease in leased["leases"])
        await http.call("heartbeat", {"acks": [done]})
        await http.call("complete", {"acks": [done]})
        await http.call("fail", {"acks": [failed]})
        await caught_up(node)
        log_id = node.components[0].shard().log.log_id
    lines = [line for _, body in receiver.posts for line in msgspec.json.decode(body)["events"]]
    actions = Counter(line["action"] for line in lines)
    assert actions == {"enqueue": 3, "grant": 2, "heartbeat": 1, "completion": 1, "failure": 1}
    assert {line["peer"] for line in lines if line["action"] != "enqueue"} == {"worker-1"}
    validator = jsonschema_rs.validator_for(governance_schema())
    for line in lines:
        validator.validate(line)
    numbers = [line["sequenceNumber"] for line in lines]
    assert numbers == sorted(set(numbers))
    for headers, body in receiver.posts:
        assert headers["x-team"] == "governance"
        read = msgspec.json.decode(body)
        first, last = sequences(read)[0], sequences(read)[-1]
        assert headers["idempotency-key"] == f"governance:resourcelease:{log_id}:{first}-{last}"
        signature = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
        assert headers["x-omnirelay-signature"] == f"sha256={signature}"


async def test_a_delivery_is_signed_and_has_a_key_by_which_a_repeat_is_known(receiver: Receiver) -> None:
    sink = WebhookSink(receiver.url, secret=SECRET, headers={"Authorization": "Bearer x"})
    sink.of_log(LOG_ID)
    await deliver(sink, EVENTS[:3])
    await deliver(sink, EVENTS[:3])
    (headers, body), again = receiver.posts
    assert again[1] == body
    assert headers["idempotency-key"] == again[0]["idempotency-key"] == f"{SHARD}:{LOG_ID}:1-3"
    assert headers["x-omnirelay-signature"] == f"sha256={hmac.new(SECRET, body, hashlib.sha256).hexdigest()}"
    assert (headers["authorization"], headers["content-type"]) == ("Bearer x", "application/json")
    read = msgspec.json.decode(body)
    assert (read["shard"], read["first"], read["last"]) == (SHARD, 1, 3)
    assert read["events"] == [msgspec.json.decode(event.json()) for event in EVENTS[:3]]


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_a_refused_batch_is_halved_until_the_bad_event_stands_alone(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda body: status if 6 in sequences(body) else 200
    with pytest.raises(SinkRefused, match=f"refused it with {status}") as caught:
        await deliver(WebhookSink(receiver.url))
    assert caught.value.sequence == 6
    assert receiver.taken == [1, 2, 3, 4, 5][: len(receiver.taken)]


async def test_a_body_that_is_too_large_is_sent_in_parts(receiver: Receiver) -> None:
    receiver.answer = lambda body: 413 if len(body["events"]) > 3 else 200
    await deliver(WebhookSink(receiver.url))
    assert receiver.taken == [event.sequence for event in EVENTS]


@pytest.mark.parametrize("status", [301, 401, 403, 404, 408, 409, 429, 500, 503])
async def test_anything_else_is_tried_again_as_a_whole(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda body: status
    with pytest.raises(Unavailable, match=f"answered with {status}"):
        await deliver(WebhookSink(receiver.url))
    assert len(receiver.posts) == 1


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    sink = WebhookSink(receiver.url)
    await sink.open(SHARD)
    await sink.apply(EVENTS)
    await sink.close()
    assert receiver.taken == [event.sequence for event in EVENTS]
    monkeypatch.setenv("ALL_PROXY", "nonsense://127.0.0.1:9")
    with pytest.raises(SinkUnusable, match="proxy"):
        await WebhookSink("http://receiver.invalid").open(SHARD)


async def test_nobody_there_is_tried_again(receiver: Receiver) -> None:
    with pytest.raises(Unavailable, match="cannot reach"):
        await deliver(WebhookSink("http://127.0.0.1:1/"))


async def test_no_message_shows_what_may_be_secret_in_an_address(receiver: Receiver) -> None:
    receiver.answer = lambda body: 503
    there = receiver.url.removeprefix("http://").split("/")[0]
    for url in (
        f"http://bot:hunter2@{there}/hook?sig=hunter2",
        f"http://{there}/services/hunter2",
        "http://hunter2@127.0.0.1:1/",
    ):
        with pytest.raises(Unavailable) as refusal:
            await deliver(WebhookSink(url))
        assert "hunter2" not in str(refusal.value)
        assert "http://127.0.0.1:" in str(refusal.value)


def test_an_address_that_is_none_is_unusable() -> None:
    with pytest.raises(SinkUnusable):
        WebhookSink("ftp://x")
