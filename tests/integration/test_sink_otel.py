"""The OpenTelemetry sink against a receiver that reads OTLP as collectors do."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from omnirelay.errors import Unavailable
from omnirelay.replication.otel_logs import OtelSink
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkRefused
from omnirelay.testing.sinks import SHARD, SinkConformance, made_event, made_events
from tests.integration.nodes import Http
from tests.integration.shards import soon
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.integration.test_replication_node import sink as settings_of


def sequence_of(record: LogRecord) -> int:
    [found] = [each.value.int_value for each in record.attributes if each.key == "omnirelay.sequence"]
    return int(found)


class Receiver:
    """Takes exports of logs on a port of loopback, and answers as it is told."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.headers: list[dict[str, str]] = []
        self.status: Callable[[], int] = lambda: 200
        self.refuses: Callable[[LogRecord], bool] = lambda record: False
        self.answer: bytes | None = None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                status = receiver.status()
                answer = receiver.take(gzip.decompress(body)) if status == 200 else b""
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/logs"

    def take(self, body: bytes) -> bytes:
        if self.answer is not None:
            return self.answer
        request = ExportLogsServiceRequest.FromString(body)
        came = [
            record
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]
        taken = [record for record in came if not self.refuses(record)]
        self.records += taken
        if len(taken) == len(came):
            return b""
        partial = ExportLogsPartialSuccess(rejected_log_records=len(came) - len(taken), error_message="too odd")
        return bytes(ExportLogsServiceResponse(partial_success=partial).SerializeToString())

    def sequences(self) -> list[int]:
        return [sequence_of(record) for record in self.records]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


class TestOtelSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _on_a_receiver(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def make_sink(self, directory: Path) -> ReplicationSink:
        return OtelSink(self.receiver.url)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return self.receiver.sequences()


@pytest.fixture
async def sink(receiver: Receiver) -> OtelSink:
    return OtelSink(receiver.url, headers={"X-Scope-OrgID": "lake"})


async def test_bodies_are_the_events_byte_for_byte(receiver: Receiver, sink: OtelSink) -> None:
    events = made_events(20)
    await sink.open(SHARD)
    await sink.apply(events)
    await sink.close()
    assert [record.body.string_value.encode() for record in receiver.records] == [event.json() for event in events]
    [headers] = receiver.headers
    assert (headers["x-scope-orgid"], headers["content-type"]) == ("lake", "application/x-protobuf")


async def test_one_that_is_rejected_is_found_and_the_others_are_taken(receiver: Receiver, sink: OtelSink) -> None:
    receiver.refuses = lambda record: sequence_of(record) == 6
    with pytest.raises(SinkRefused, match="1 rejected, too odd") as caught:
        await sink.apply(made_events(10))
    assert caught.value.sequence == 6
    assert 6 not in receiver.sequences()
    await sink.close()


@pytest.mark.parametrize("status", [400, 413])
async def test_a_receiver_that_takes_none_of_a_batch_gets_it_in_halves(
    receiver: Receiver, sink: OtelSink, status: int
) -> None:
    statuses = iter([status, 200, 200])
    receiver.status = lambda: next(statuses)
    await sink.apply(made_events(2))
    assert receiver.sequences() == [event.sequence for event in made_events(2)]
    await sink.close()


@pytest.mark.parametrize("status", [401, 404, 429, 503])
async def test_any_other_answer_is_tried_again(receiver: Receiver, sink: OtelSink, status: int) -> None:
    receiver.status = lambda: status
    with pytest.raises(Unavailable, match=f"answered with {status}"):
        await sink.apply([made_event(1)])
    receiver.status = lambda: 200
    await sink.apply([made_event(1)])
    await sink.close()
    assert receiver.sequences() == [1]


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    receiver: Receiver, sink: OtelSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    await sink.apply([made_event(1)])
    await sink.close()
    assert receiver.sequences() == [1]


async def test_a_page_of_something_else_is_not_taken_for_a_confirmation(receiver: Receiver, sink: OtelSink) -> None:
    receiver.answer = b"<html>Welcome!</html>"
    with pytest.raises(Unavailable, match="no receiver of OTLP"):
        await sink.apply([made_event(1)])
    await sink.close()


async def test_times_outside_of_every_range_do_no_harm(receiver: Receiver, sink: OtelSink) -> None:
    events = [msgspec.structs.replace(made_event(1), timestamp=each) for each in (-5, 0, 1 << 62)]
    await sink.apply(events)
    await sink.close()
    assert [record.time_unix_nano for record in receiver.records][:2] == [0, 0]


async def test_a_node_goes_on_behind_what_a_receiver_rejects(receiver: Receiver, tmp_path: Path) -> None:
    receiver.refuses = lambda record: sequence_of(record) == 4
    quick = FollowSettings(linger_ms=0, retry_first_ms=1, retry_max_ms=5)
    settings = settings_of("logs", "otel", url=receiver.url, follow=quick)
    async with node_with(settings, data=tmp_path) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 10})
        await caught_up(node)
        [follower] = node.replication.find("logs")
        await soon(follower.wait_state("running"))
        assert follower.parked == 1
        last = node.components[0].shard().last_sequence
    assert sorted(set(receiver.sequences())) == [each for each in range(1, last + 1) if each != 4]
