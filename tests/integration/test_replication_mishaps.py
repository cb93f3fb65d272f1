"""Followers whose sink ends in ways of its own, or whose target is worked on while they are paused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import apsw
import msgspec
import pytest

from omnirelay.errors import InvalidArgument
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.kinds import SinkPlace, kind_rebuilds_state, make_sink
from omnirelay.replication.pacing import Pace
from omnirelay.replication.settings import TABLE, SinkSettings
from omnirelay.replication.sinks import SinkRefused
from omnirelay.replication.tables import SqliteSink
from tests.integration.nodes import Http
from tests.integration.shards import NAMESPACE, enqueued, items, soon
from tests.integration.test_replication_following import QUICK, Recorder, caught_up, following, log_of, memory_shard
from tests.integration.test_replication_node import ITEM, node_with
from tests.integration.test_replication_node import caught_up as node_caught_up
from tests.integration.test_replication_node import sink as settings_of


async def cancelled() -> None:
    """What a library does whose own task was cancelled, say because it lost its connection."""
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


# -- sinks that end in ways of their own -----------------------------------------------------------


async def test_a_cancellation_inside_a_sink_is_a_failed_delivery_like_any_other() -> None:
    broken = True
    sink = Recorder(lambda events: cancelled() if broken else None)
    async with memory_shard() as shard, following(shard, sink) as follower:
        await soon(follower.wait_state("retrying"))
        assert "was cancelled" in (follower.last_error or "")
        broken = False
        await enqueued(shard)
        await caught_up(follower, shard)
        await soon(follower.wait_state("running"))
        assert [event.sequence for event in sink.taken] == [event.sequence for event in await log_of(shard)]


async def test_a_cancellation_while_a_sink_closes_does_not_end_its_follower() -> None:
    class Sink(Recorder):
        async def close(self) -> None:
            await super().close()
            await cancelled()

    async with memory_shard() as shard:
        sink = Sink()
        async with following(shard, sink) as follower:
            await caught_up(follower, shard)
            await follower.reset(0)  # Closes and opens it.
            await caught_up(follower, shard)
            assert sink.closed == 1


async def test_a_follower_that_ends_unexpectedly_has_failed_and_begins_again_when_resumed() -> None:
    class Ended(BaseException):
        """What nobody expects a sink to raise."""

    def answer(events: Sequence[ReplicatedEvent]) -> None:
        if broken:
            raise Ended("out of order")

    broken = True
    sink = Recorder(answer)
    async with memory_shard() as shard, following(shard, sink) as follower:
        await soon(follower.wait_state("failed"))
        assert follower.last_error == "Ended: out of order"
        broken = False
        await follower.resume()
        await caught_up(follower, shard)
        await soon(follower.wait_state("running"))


async def test_a_parked_event_that_is_delivered_after_all_is_no_longer_parked() -> None:
    checkpoints, bad = Checkpoints(None), {3, 6}

    def answer(events: Sequence[ReplicatedEvent]) -> None:
        for event in events:
            if event.sequence in bad:
                raise SinkRefused("too long", sequence=event.sequence)

    sink = Recorder(answer)
    async with memory_shard() as shard, following(shard, sink, checkpoints) as follower:
        await enqueued(shard, *items(8))
        await caught_up(follower, shard)
        assert follower.status().parked == 2
        bad.remove(3)
        await follower.reset(0)
        await caught_up(follower, shard)
        assert follower.status().parked == 1
        assert [each.sequence for each in await checkpoints.parked("lake", shard.log.shard)] == [6]
        bad.clear()
        await follower.reset(5)
        await caught_up(follower, shard)
        assert follower.status().parked == 0
    await checkpoints.close()


# -- a target that is worked on --------------------------------------------------------------------


async def test_a_pause_is_answered_when_the_delivery_under_way_has_ended() -> None:
    checkpoints, gate = Checkpoints(None), asyncio.Event()
    sink = Recorder(lambda events: gate.wait())
    async with memory_shard() as shard, following(shard, sink, checkpoints) as follower:
        await soon(sink.delivered(1))
        pausing = asyncio.create_task(follower.pause())
        await asyncio.sleep(0)  # Now it is before the next one at the checkpoints.
        assert (await soon(checkpoints.load("lake", shard.log.shard))).paused
        assert not pausing.done()
        gate.set()
        await soon(pausing)
        status = follower.status()
        assert (status.state, status.checkpoint) == ("paused", sink.taken[-1].sequence)
        assert (sink.opened, sink.closed) == (1, 1)
        await enqueued(shard)
        await follower.resume()
        await caught_up(follower, shard)
        assert (sink.opened, sink.closed) == (2, 1)
        assert [event.sequence for event in sink.taken] == [event.sequence for event in await log_of(shard)]
    await checkpoints.close()


async def test_what_waits_for_company_is_not_delivered_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    lingering, linger = asyncio.Event(), Pace.linger

    async def seen(pace: Pace, seconds: float) -> None:
        lingering.set()
        await linger(pace, seconds)

    monkeypatch.setattr(Pace, "linger", seen)
    async with memory_shard() as shard:
        sink = Recorder()
        async with following(shard, sink, settings=msgspec.structs.replace(QUICK, linger_ms=600_000)) as follower:
            await soon(lingering.wait())
            await follower.pause()
        assert sink.deliveries == []


async def test_resume_opens_the_target_again_even_if_it_was_not_paused() -> None:
    sink = Recorder()
    async with memory_shard() as shard, following(shard, sink) as follower:
        await caught_up(follower, shard)
        await follower.resume()
        await enqueued(shard)
        await caught_up(follower, shard)
        assert (sink.opened, sink.closed) == (2, 1)


async def test_a_sink_that_keeps_failing_opens_its_target_again() -> None:
    def answer(events: Sequence[ReplicatedEvent]) -> None:
        if sink.opened == 1:
            raise ConnectionError("this connection is of no use any more")

    sink = Recorder(answer)
    async with memory_shard() as shard, following(shard, sink) as follower:
        await caught_up(follower, shard)
        assert (sink.opened, sink.closed) == (2, 1)


async def test_a_target_that_refuses_an_event_is_not_opened_again() -> None:
    def answer(events: Sequence[ReplicatedEvent]) -> None:
        raise SinkRefused("never", sequence=events[0].sequence)

    sink = Recorder(answer)
    settings = msgspec.structs.replace(QUICK, on_refusal="block")
    async with memory_shard() as shard, following(shard, sink, settings=settings):
        await soon(sink.delivered(8))
        assert sink.opened == 1


async def test_a_table_that_was_dropped_is_made_and_filled_again(tmp_path: Path) -> None:
    path = tmp_path / f"{NAMESPACE}.db"
    async with memory_shard() as shard, following(shard, SqliteSink(tmp_path)) as follower:
        await enqueued(shard, *items(5))
        await caught_up(follower, shard)
        database = apsw.Connection(str(path))
        database.execute(f"drop table {TABLE}")
        await enqueued(shard)
        await caught_up(follower, shard)
        await soon(follower.wait_state("running"))
        found = [row[0] for row in database.execute(f"select sequence_number from {TABLE} order by 1")]
        database.close()
        assert found == [event.sequence for event in await log_of(shard)]


async def test_a_sink_that_was_never_opened_can_be_set_ahead(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("in the way")
    async with node_with(settings_of("files", "file", path=str(target))) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 3})
        [follower] = node.replication.find("files")
        await soon(follower.wait_state("failed"))
        await follower.reset(2)
        target.unlink()
        await follower.resume()
        await node_caught_up(node)
        lines = [line for path in target.rglob("*.jsonl") for line in path.read_bytes().splitlines()]
        assert msgspec.json.decode(lines[0])["sequenceNumber"] == 3


async def test_a_foreign_sink_that_was_never_opened_is_not_said_to_rebuild_a_state() -> None:
    async with node_with(settings_of("odd", "no_such_kind")) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 3})
        [follower] = node.replication.find("odd")
        await soon(follower.wait_state("failed"))
        with pytest.raises(InvalidArgument, match="was not opened yet"):
            await follower.reset(2)


def test_what_is_said_of_a_kind_is_what_its_sinks_say(tmp_path: Path) -> None:
    place = SinkPlace("lake", NAMESPACE, tmp_path, lambda item, lease: None)
    urls = {
        **dict.fromkeys(("file", "sqlite", "objects", "governance", "memory")),
        **dict.fromkeys(("webhook", "otel"), "http://127.0.0.1:9/"),
        "postgres": "postgresql://127.0.0.1:9/db",
        "nats": "nats://127.0.0.1:9",
        "kafka": "kafka://127.0.0.1:9",
    }
    for kind, url in urls.items():
        made = make_sink(SinkSettings(name="lake", kind=kind, url=url), place)
        assert made.rebuilds_state is kind_rebuilds_state(kind), kind
    assert kind_rebuilds_state("parrot") is None
