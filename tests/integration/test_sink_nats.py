"""The NATS sink against a real server with JetStream: what the stream holds, and what becomes of it in a crash."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import jsonschema_rs
import msgspec
import nats
import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from omnirelay.errors import Unavailable
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.governance import governance_schema
from omnirelay.replication.nats_stream import NatsSink
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkRefused, SinkUnusable
from omnirelay.testing.sinks import LOG_ID, SHARD, SinkConformance, made_event, made_events
from tests.integration.nodes import Http
from tests.integration.shards import soon
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.integration.test_replication_node import sink as settings_of
from tests.patience import PATIENCE_S
from tests.servers import NatsServer


def name_of(directory: Path) -> str:
    """A stream and a subject of its own for every directory."""
    return f"s{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}"


async def with_stream(server: NatsServer, use: Callable[[JetStreamContext], Any], **how: Any) -> Any:
    connection = await nats.connect(server.url, connect_timeout=int(PATIENCE_S), **how)
    try:
        return await use(connection.jetstream(timeout=PATIENCE_S))
    finally:
        await connection.close()


async def messages(server: NatsServer, stream: str, **how: Any) -> list[Msg]:
    """Everything that a stream holds, as a consumer gets it."""

    async def read(context: JetStreamContext) -> list[Msg]:
        count = (await context.stream_info(stream)).state.messages
        consumer = await context.subscribe(">", stream=stream, ordered_consumer=True)
        return [await consumer.next_msg(PATIENCE_S) for _ in range(count)]

    return list(await with_stream(server, read, **how))


async def messages_left(server: NatsServer, stream: str) -> int:
    return int((await with_stream(server, lambda context: context.stream_info(stream))).state.messages)


def sequences(found: Sequence[Msg]) -> list[int]:
    return [int((message.headers or {})["OmniRelay-Sequence"]) for message in found]


@pytest.fixture
def name(tmp_path: Path) -> str:
    return name_of(tmp_path)


class TestNatsSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, nats_server: NatsServer) -> None:
        self.server = nats_server

    def make_sink(self, directory: Path) -> ReplicationSink:
        name = name_of(directory)
        return NatsSink(self.server.url, subject=name, stream=name)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return sequences(await messages(self.server, name_of(directory)))


async def deliver(
    server: NatsServer, name: str, *batches: Sequence[ReplicatedEvent], log_id: str = LOG_ID, **how: Any
) -> None:
    sink = NatsSink(server.url, **{"subject": name, "stream": name, **how})
    sink.of_log(log_id)
    try:
        assert await sink.open(SHARD) is None
        for batch in batches:
            await sink.apply(batch)
    finally:
        await sink.close()


# -- what the stream holds -----------------------------------------------------------------------


async def test_a_message_has_the_event_and_headers_to_sort_it_by(nats_server: NatsServer, name: str) -> None:
    strange = msgspec.structs.replace(made_event(2), event_type="Später\r\nEvil: 1")
    await deliver(nats_server, name, [made_event(1), strange])
    first, second = await messages(nats_server, name)
    assert first.data == made_event(1).json()
    assert first.subject == f"{name}.{SHARD}"
    assert first.headers == {
        "Nats-Msg-Id": f"{name}.{SHARD}/{LOG_ID}/1",
        "Nats-Expected-Stream": name,
        "OmniRelay-Shard": SHARD,
        "OmniRelay-Sequence": "1",
        "OmniRelay-Event-Type": "Enqueue",
    }
    assert second.data == strange.json()
    assert (second.headers or {})["OmniRelay-Event-Type"] == "Sp%C3%A4ter%0D%0AEvil%3A 1"


async def test_the_stream_itself_leaves_out_what_it_has(nats_server: NatsServer, name: str) -> None:
    events = made_events(50)
    await deliver(nats_server, name, events[:30], events[10:], events)
    assert sequences(await messages(nats_server, name)) == [event.sequence for event in events]


async def test_events_of_another_log_are_not_taken_for_those_of_the_same_numbers(
    nats_server: NatsServer, name: str
) -> None:
    await deliver(nats_server, name, made_events(5))
    await deliver(nats_server, name, made_events(5), log_id="begun-anew")
    assert sequences(await messages(nats_server, name)) == [event.sequence for event in made_events(5)] * 2


@pytest.mark.parametrize("kept", ["nothing", "another shard", "the end"])
async def test_what_was_purged_is_filled_in_again(nats_server: NatsServer, name: str, kept: str) -> None:
    events = made_events(20)
    await deliver(nats_server, name, events[:10], events[10:])
    if kept == "another shard":
        await with_stream(nats_server, lambda context: context.publish(f"{name}.other", b"{}"))
    purges: dict[str, dict[str, Any]] = {
        "nothing": {},
        "another shard": {"subject": f"{name}.{SHARD}"},
        "the end": {"keep": 5},
    }
    await with_stream(nats_server, lambda context: context.purge_stream(name, **purges[kept]))
    # As long as it lasts: the stream remembers ids for two minutes.
    await deliver(nats_server, name, events[:10], events[10:], events[10:])
    found = [each for each in await messages(nats_server, name) if each.subject == f"{name}.{SHARD}"]
    expected = [event.sequence for event in events]
    assert sequences(found) == (expected[-5:] if kept == "the end" else []) + expected


async def test_what_was_consumed_does_not_come_again(nats_server: NatsServer, name: str) -> None:
    queue = StreamConfig(name=name, subjects=[f"{name}.>"], retention=RetentionPolicy.WORK_QUEUE)
    await with_stream(nats_server, lambda context: context.add_stream(queue))
    await deliver(nats_server, name, made_events(5))
    await with_stream(nats_server, lambda context: context.purge_stream(name))
    await deliver(nats_server, name, made_events(5))
    assert await messages_left(nats_server, name) == 0


async def test_a_stream_is_made_in_files_for_all_shards(nats_server: NatsServer, name: str) -> None:
    await deliver(nats_server, name)
    config = (await with_stream(nats_server, lambda context: context.stream_info(name))).config
    assert (config.storage, config.subjects) == (StorageType.FILE, [f"{name}.>"])


async def test_a_stream_that_nobody_may_make_is_waited_for(nats_server: NatsServer, name: str) -> None:
    with pytest.raises(Unavailable, match=f"there is no stream {name}, and create = false"):
        await deliver(nats_server, name, create=False)
    await with_stream(nats_server, lambda context: context.add_stream(name=name, subjects=[f"{name}.*"]))
    await deliver(nats_server, name, [made_event(1)], create=False)
    assert sequences(await messages(nats_server, name)) == [1]


async def test_a_stream_of_other_subjects_is_refused(nats_server: NatsServer, name: str) -> None:
    await with_stream(nats_server, lambda context: context.add_stream(name=name, subjects=[f"{name}.other"]))
    with pytest.raises(SinkUnusable, match=f"does not take {name}.{SHARD}: its subjects are {name}.other"):
        await deliver(nats_server, name)


async def test_what_is_too_large_is_refused_before_anything_behind_it_is_sent(
    nats_server: NatsServer, name: str
) -> None:
    wanted = StreamConfig(name=name, subjects=[f"{name}.>"], max_msg_size=4_000)
    await with_stream(nats_server, lambda context: context.add_stream(wanted))
    large = msgspec.structs.replace(made_event(2), region="x" * 5_000)
    with pytest.raises(SinkRefused, match="are more than the") as caught:
        await deliver(nats_server, name, [made_event(1), large, made_event(3)])
    assert caught.value.sequence == 2
    assert sequences(await messages(nats_server, name)) in ([], [1])


async def test_a_full_stream_that_refuses_more_never_gets_a_gap(nats_server: NatsServer, name: str) -> None:
    wanted = StreamConfig(name=name, subjects=[f"{name}.>"], max_bytes=5_000, discard=DiscardPolicy.NEW)
    await with_stream(nats_server, lambda context: context.add_stream(wanted))
    # One that has no room is followed by one that would have some.
    events = [
        msgspec.structs.replace(made_event(number), region="x" * (3_000 if number == 5 else 10))
        for number in range(1, 9)
    ]
    with pytest.raises(Unavailable, match="maximum bytes exceeded"):
        await deliver(nats_server, name, events)
    assert sequences(await messages(nats_server, name)) == [1, 2, 3, 4]
    wanted.max_bytes = 100_000
    await with_stream(nats_server, lambda context: context.update_stream(wanted))
    await deliver(nats_server, name, events)
    assert sequences(await messages(nats_server, name)) == [1, 2, 3, 4, 5, 6, 7, 8]


# -- servers that want to know who comes ---------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "user", "how"),
    [
        ("authorization { user: anna, password: right-one }", "anna@", {"user": "anna", "password": "right-one"}),
        ('authorization { token: "right-one" }', "", {"token": "right-one"}),
    ],
    ids=["user", "token"],
)
async def test_a_password_is_taken_and_never_told(more: str, user: str, how: dict[str, Any]) -> None:
    server = NatsServer(more)
    try:
        server.start()
        url = server.url.replace("//", f"//{user}")
        wrong = NatsSink(url, password="hidden-guess")
        with pytest.raises(Unavailable, match="Authorization") as caught:
            await wrong.open(SHARD)
        assert "hidden-guess" not in repr(caught.value)
        await wrong.close()
        right = NatsSink(url, password="right-one")
        await right.open(SHARD)
        await right.apply([made_event(1)])
        await right.close()
        assert sequences(await messages(server, "OMNIRELAY_EVENTS", **how)) == [1]
    finally:
        server.remove()


# -- crashes -------------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[NatsServer]:
    server = NatsServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


async def test_a_server_that_is_killed_in_the_middle_has_every_event_in_order(own_server: NatsServer) -> None:
    events = made_events(3_000)
    random = Random(7)
    sink = NatsSink(own_server.url)
    await sink.open(SHARD)
    for start in range(0, len(events), 500):
        batch = events[start : start + 500]
        certain = start == 1_000
        if certain:
            own_server.pause()  # The others may come too late to matter; this kill does not.
        delivering = asyncio.create_task(sink.apply(batch))
        await asyncio.sleep(random.uniform(0, 0.03))
        await asyncio.to_thread(own_server.kill)
        await asyncio.wait((delivering,))
        assert delivering.exception() is not None or not certain
        # What was acknowledged is there after the crash; of what was not, the beginning.
        await asyncio.to_thread(own_server.start)
        held = sequences(await messages(own_server, "OMNIRELAY_EVENTS"))
        assert held == [event.sequence for event in events[: len(held)]]
        assert len(held) >= start + (0 if delivering.exception() else len(batch))
        await delivered(sink, batch)
    await sink.close()
    found = await messages(own_server, "OMNIRELAY_EVENTS")
    assert [message.data for message in found] == [event.json() for event in events]


async def repeated(work: Callable[[], Awaitable[object]]) -> None:
    """As a follower does: again until it is done."""
    while True:
        try:
            await work()
            return
        except Unavailable:
            continue


async def delivered(sink: NatsSink, batch: Sequence[ReplicatedEvent]) -> None:
    await repeated(lambda: sink.apply(batch))


async def test_a_server_that_hangs_is_given_up_in_time_and_catches_up(own_server: NatsServer) -> None:
    sink = NatsSink(own_server.url, timeout_ms=1_000)
    # On a busy machine this little time may be too short for a connection.
    await repeated(lambda: sink.open(SHARD))
    own_server.pause()
    try:
        with pytest.raises(Unavailable, match=r"no acknowledgement within 0\.9 s"):
            await sink.apply([made_event(1)])
    finally:
        own_server.resume()
    await delivered(sink, [made_event(1), made_event(2)])
    await sink.close()
    assert sequences(await messages(own_server, "OMNIRELAY_EVENTS")) == [1, 2]


async def test_a_node_catches_up_with_a_server_that_was_down(own_server: NatsServer, tmp_path: Path) -> None:
    own_server.stop(signal.SIGKILL)
    quick = FollowSettings(linger_ms=0, retry_first_ms=1, retry_max_ms=20)
    sinks = (
        settings_of("bus", "nats", url=own_server.url, follow=quick),
        settings_of("audit", "governance", url=own_server.url, follow=quick),
    )
    async with node_with(*sinks, data=tmp_path) as node, Http(node) as http:
        followers = node.replication.find()
        for follower in followers:
            await soon(follower.wait_state("retrying"))
        await http.call("enqueue", {"items": [ITEM] * 50})
        await asyncio.to_thread(own_server.start)
        await caught_up(node)
        await asyncio.to_thread(own_server.kill)
        lease = await http.call("lease", {"peerId": "anna"})
        await http.call("complete", {"ownershipToken": lease["ownershipToken"]})
        for follower in followers:
            await soon(follower.wait_state("retrying"))
        await asyncio.to_thread(own_server.start)
        await caught_up(node)
        last = node.components[0].shard().last_sequence
    assert sequences(await messages(own_server, "OMNIRELAY_EVENTS")) == list(range(1, last + 1))
    lines = [msgspec.json.decode(message.data) for message in await messages(own_server, "OMNIRELAY_GOVERNANCE")]
    assert [line["action"] for line in lines] == ["enqueue"] * 50 + ["grant", "completion"]
    assert lines[-1]["peer"] == "anna"
    validator = jsonschema_rs.validator_for(governance_schema())
    for line in lines:
        validator.validate(line)
