"""The Kafka sink against a real broker. In the long form only: a broker takes its time to start."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from omnirelay.errors import Unavailable
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.governance import governance_schema
from omnirelay.replication.kafka_topic import KafkaSink
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkRefused
from omnirelay.testing.sinks import SHARD, SinkConformance, made_event, made_events
from tests.integration.nodes import Http
from tests.integration.test_replication_node import ITEM, node_with
from tests.integration.test_replication_node import sink as settings_of
from tests.patience import PATIENCE_S
from tests.servers import KafkaServer

pytestmark = [
    pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make replication-test"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaServer]:
    server = KafkaServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def topic_of(directory: Path) -> str:
    return f"t{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}"


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return topic_of(tmp_path)


def read_all(server: KafkaServer, topic: str) -> list[Message]:
    """Every record of a topic, partition after partition, to the end as it is now."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.url.partition("://")[2],
            "group.id": "reader",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        found: dict[int, list[Message]] = {each: [] for each in partitions}
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "nothing came"
            error = message.error()
            if error is None:
                found[message.partition() or 0].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                raise AssertionError(error)
        return [message for partition in found.values() for message in partition]
    finally:
        consumer.close()


def headers_of(message: Message) -> dict[str, bytes]:
    return dict(cast(list[tuple[str, bytes]], message.headers() or []))


def sequences(found: Sequence[Message]) -> list[int]:
    return [int(headers_of(message)["omnirelay.sequence"]) for message in found]


def make_topic(server: KafkaServer, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.url.partition("://")[2]})
    made = admin.create_topics([NewTopic(topic, 3, 1, config=config)])
    made[topic].result(PATIENCE_S)


class TestKafkaSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _on_a_broker(self, kafka: KafkaServer) -> None:
        self.server = kafka

    def make_sink(self, directory: Path) -> ReplicationSink:
        return KafkaSink(self.server.url, topic=topic_of(directory))

    async def read_back(self, directory: Path) -> Sequence[int]:
        return sequences(await asyncio.to_thread(read_all, self.server, topic_of(directory)))


async def delivered(sink: KafkaSink, batch: Sequence[ReplicatedEvent]) -> None:
    """As a follower does: again until it is taken."""
    while True:
        try:
            return await sink.apply(batch)
        except Unavailable:
            continue


async def test_a_record_has_the_event_its_shard_and_headers(kafka: KafkaServer, topic: str) -> None:
    sink = KafkaSink(kafka.url, topic=topic)
    await sink.open(SHARD)
    events = [made_event(1), msgspec.structs.replace(made_event(2), event_type="Später\r\n")]
    await sink.apply(events)
    await sink.close()
    found = await asyncio.to_thread(read_all, kafka, topic)
    assert [message.value() for message in found] == [event.json() for event in events]
    assert {message.key() for message in found} == {SHARD.encode()}
    assert headers_of(found[1]) == {
        "omnirelay.shard": SHARD.encode(),
        "omnirelay.sequence": b"2",
        "omnirelay.type": "Später\r\n".encode(),
    }


async def test_what_the_topic_refuses_is_named_and_nothing_behind_it_comes_first(
    kafka: KafkaServer, topic: str
) -> None:
    make_topic(kafka, topic, **{"max.message.bytes": "10000"})
    # What cannot be squeezed, because a broker looks at the size after that.
    large = msgspec.structs.replace(made_event(3), region=os.urandom(10_000).hex())
    events = [made_event(1), made_event(2), large, made_event(4)]
    sink = KafkaSink(kafka.url, topic=topic)
    await sink.open(SHARD)
    await sink.apply(events[:2])
    with pytest.raises(SinkRefused, match="size") as caught:
        await sink.apply([large])
    assert caught.value.sequence == 3
    with pytest.raises((SinkRefused, Unavailable)):
        await sink.apply(events[2:])
    assert 4 not in sequences(await asyncio.to_thread(read_all, kafka, topic))
    await sink.apply(events[3:])
    await sink.close()
    assert sequences(await asyncio.to_thread(read_all, kafka, topic)) == [1, 2, 4]


async def test_a_broker_that_is_killed_has_every_event_in_order(kafka: KafkaServer, topic: str) -> None:
    make_topic(kafka, topic)
    events = made_events(4_000)
    sink = KafkaSink(kafka.url, topic=topic, timeout_ms=20_000)
    await sink.open(SHARD)
    for start in range(0, len(events), 1_000):
        batch = events[start : start + 1_000]
        delivering = asyncio.create_task(sink.apply(batch))
        if start in (1_000, 3_000):
            await asyncio.to_thread(kafka.kill)
            await asyncio.to_thread(kafka.start)
        await asyncio.wait((delivering,))
        assert isinstance(delivering.exception(), Unavailable | None)
        await delivered(sink, batch)
    await sink.close()
    found = await asyncio.to_thread(read_all, kafka, topic)
    first_of = {int(headers_of(message)["omnirelay.sequence"]): message.value() for message in reversed(found)}
    # Deduplicated by where each first stands: all of them, once, in order.
    assert list(dict.fromkeys(sequences(found))) == [event.sequence for event in events]
    assert [first_of[event.sequence] for event in events] == [event.json() for event in events]


async def test_a_broker_that_hangs_is_given_up_in_time(kafka: KafkaServer, topic: str) -> None:
    make_topic(kafka, topic)
    sink = KafkaSink(kafka.url, topic=topic, timeout_ms=2_000)
    await sink.open(SHARD)
    kafka.pause()
    try:
        with pytest.raises(Unavailable, match="2 of 2 events not confirmed in time"):
            await sink.apply([made_event(1), made_event(2)])
    finally:
        kafka.resume()
    await delivered(sink, [made_event(1), made_event(2), made_event(3)])
    await sink.close()
    found = sequences(await asyncio.to_thread(read_all, kafka, topic))
    assert list(dict.fromkeys(found)) == [1, 2, 3]


async def test_a_topic_that_is_missing_is_waited_for(kafka: KafkaServer, topic: str) -> None:
    sink = KafkaSink(kafka.url, topic=topic, properties={"allow.auto.create.topics": "false"})
    with pytest.raises(Unavailable, match=f"the topic {topic} cannot be used"):
        await sink.open(SHARD)
    make_topic(kafka, topic)
    assert await sink.open(SHARD) is None
    await sink.close()


async def test_a_node_sends_events_and_governance_and_catches_up(kafka: KafkaServer, tmp_path: Path) -> None:
    quick = FollowSettings(linger_ms=0, retry_first_ms=10, retry_max_ms=500)
    events, deeds = topic_of(tmp_path), f"{topic_of(tmp_path)}.deeds"
    sinks = (
        settings_of("bus", "kafka", url=kafka.url, topic=events, follow=quick),
        settings_of("audit", "governance", url=kafka.url, topic=deeds, follow=quick),
    )
    async with node_with(*sinks, data=tmp_path) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 50})
        await asyncio.to_thread(kafka.kill)
        lease = await http.call("lease", {"peerId": "anna"})
        await http.call("complete", {"ownershipToken": lease["ownershipToken"]})
        await asyncio.to_thread(kafka.start)
        last = node.components[0].shard().last_sequence
        for follower in node.replication.find():
            await asyncio.wait_for(follower.wait_confirmed(last), PATIENCE_S)
    found = sequences(await asyncio.to_thread(read_all, kafka, events))
    assert list(dict.fromkeys(found)) == list(range(1, last + 1))
    lines: dict[int, dict[str, Any]] = {}
    for message in await asyncio.to_thread(read_all, kafka, deeds):
        line = msgspec.json.decode(message.value() or b"")
        lines.setdefault(line["sequenceNumber"], line)
    assert [line["action"] for line in lines.values()] == ["enqueue"] * 50 + ["grant", "completion"]
    validator = jsonschema_rs.validator_for(governance_schema())
    for line in lines.values():
        validator.validate(line)
