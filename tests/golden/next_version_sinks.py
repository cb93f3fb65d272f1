"""Every kind of sink with its way there and back, for the log of the next schema version.

A passage delivers events to a real target and reads the target: it returns the documents that stand there, in order.
A new kind is one more line in `PASSAGES` (or `LONG_PASSAGES`); what needs a server takes it from the fixtures.
"""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import psycopg
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.files import FileSink
from omnirelay.replication.kafka_topic import KafkaSink
from omnirelay.replication.memory import MemorySink
from omnirelay.replication.nats_stream import NatsSink
from omnirelay.replication.objects import ObjectPerEventSink, SegmentSink
from omnirelay.replication.otel_logs import OtelSink
from omnirelay.replication.postgres_table import PostgresSink
from omnirelay.replication.settings import TABLE
from omnirelay.replication.sinks import ReplicationSink
from omnirelay.replication.tables import SqliteSink
from omnirelay.replication.webhook import WebhookSink
from omnirelay.segments.connecting import connect
from omnirelay.segments.reader import SegmentReader
from omnirelay.testing.sinks import SHARD
from tests.golden.make_next_version import REGION
from tests.integration.test_replication_webhook import Receiver
from tests.integration.test_sink_nats import messages, name_of
from tests.servers import KafkaServer, NatsServer, PostgresServer

Events: TypeAlias = Sequence[ReplicatedEvent]
Passage: TypeAlias = Callable[[Path, Events, pytest.FixtureRequest], Coroutine[Any, Any, list[bytes]]]
"""Gets a directory of its own, the events, and the fixtures. Returns the JSON of what the target holds."""


async def deliver(sink: ReplicationSink, events: Events, *, most: int = 50) -> None:
    """In several deliveries, one of them twice. Whole frames stay together, as some sinks keep them."""
    await sink.open(SHARD)
    try:
        for batch in [*batches_of(events, most), list(events[-most:])]:
            await sink.apply(batch)
    finally:
        await sink.close()


def batches_of(events: Events, most: int) -> list[list[ReplicatedEvent]]:
    return [list(events[at : at + most]) for at in range(0, len(events), most)]


async def through_file(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    await deliver(FileSink(directory, rotate_bytes=20_000), events)
    return [line for path in sorted((directory / SHARD).glob("*.jsonl")) for line in path.read_bytes().splitlines()]


async def through_sqlite(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    await deliver(SqliteSink(directory), events)
    connection = sqlite3.connect(directory / f"{SHARD}.db")
    try:
        rows = connection.execute(f"select event_json from {TABLE} order by sequence_number").fetchall()
    finally:
        connection.close()
    return [row[0].encode() for row in rows]


async def through_memory(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    sink = MemorySink()
    await deliver(sink, events)
    return [event.json() for event in sink.events]


async def through_webhook(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    receiver = Receiver()
    try:
        await deliver(WebhookSink(receiver.url), events)
    finally:
        receiver.close()
    read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
    posted = [bytes(event) for _, body in receiver.posts for event in elements(read(body)["events"])]
    return list(dict.fromkeys(posted))  # A receiver recognises by its number what comes again.


async def through_postgres(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    server: PostgresServer = request.getfixturevalue("postgres")
    await deliver(PostgresSink(server.url(), table="NextVersion"), events)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        rows = connection.execute(b"select event_json from NextVersion order by sequence_number").fetchall()
    return [row[0].encode() for row in rows]


async def through_nats(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    server: NatsServer = request.getfixturevalue("nats_server")
    name = name_of(directory)
    await deliver(NatsSink(server.url, subject=name, stream=name), events)
    return [message.data for message in await messages(server, name)]


async def through_kafka(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    server = KafkaServer()
    try:
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(_make_topic, server, "next")
        await deliver(KafkaSink(server.url, topic="next"), events)
        return list(dict.fromkeys(await asyncio.to_thread(_in_topic, server, "next", len(events))))
    finally:
        await asyncio.to_thread(server.remove)


def _make_topic(server: KafkaServer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.url.partition("://")[2]})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)


def _in_topic(server: KafkaServer, topic: str, most: int) -> list[bytes]:
    """Values of a topic, repetitions included, until there were so many different ones."""
    address = server.url.partition("://")[2]
    consumer = Consumer({"bootstrap.servers": address, "group.id": "next", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        values: list[bytes] = []
        while len(set(values)) < most:
            message = consumer.poll(60)
            assert message is not None, f"the topic ends after {len(values)} records"
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


async def through_otel(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    collector = Collector()
    try:
        await deliver(OtelSink(collector.url), events)
    finally:
        collector.close()
    return list(dict.fromkeys(collector.bodies))


class Collector:
    """Takes OTLP logs over HTTP and keeps the bodies of the records."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = gzip.decompress(self.rfile.read(int(self.headers["content-length"])))
                for resource in ExportLogsServiceRequest.FromString(data).resource_logs:
                    for scope in resource.scope_logs:
                        collector.bodies += [record.body.string_value.encode() for record in scope.log_records]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/logs"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


async def through_object_per_event(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    await deliver(ObjectPerEventSink(str(directory)), events)
    return [path.read_bytes() for path in sorted((directory / SHARD).glob("*.json"))]


async def through_parquet(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    await deliver(SegmentSink(str(directory), kind="parquet", compact_at=0), events)
    return await _in_segments(directory)


async def through_lines(directory: Path, events: Events, request: pytest.FixtureRequest) -> list[bytes]:
    await deliver(SegmentSink(str(directory), kind="jsonl", compact_at=2), events)
    return await _in_segments(directory)


async def _in_segments(directory: Path) -> list[bytes]:
    reader = SegmentReader(await connect(str(directory), {}, writable=False), SHARD)
    found: list[ReplicatedEvent] = []
    async for frame in reader.frames():
        found += events_of_frame(frame, REGION, found[-1].sequence if found else 0)
    return [event.json() for event in found]


LONG_PASSAGES: Final[dict[str, Passage]] = {"kafka": through_kafka}
"""Only in the long form: their servers take long to start."""

PASSAGES: Final[dict[str, Passage]] = {
    "file": through_file,
    "sqlite": through_sqlite,
    "memory": through_memory,
    "webhook": through_webhook,
    "postgres": through_postgres,
    "nats": through_nats,
    "otel": through_otel,
    "objects": through_parquet,
    "objects as lines": through_lines,
    "objects, one per event": through_object_per_event,
}
