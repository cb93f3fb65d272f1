"""Sinks of a whole node: started, seen, handled and stopped with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnirelay.core.options import QueueOptions
from omnirelay.engine.settings import EngineSettings
from omnirelay.errors import LogTrimmed
from omnirelay.log import SqliteLog
from omnirelay.node.node import Node
from omnirelay.replication.memory import MemorySink
from omnirelay.replication.settings import FollowSettings, SinkSettings
from omnirelay.testing.clock import FakeClock
from tests.integration.nodes import Http, settings_for
from tests.integration.shards import Place, enqueued, frames_of, items, soon
from tests.integration.stream_peers import peer_of
from tests.patience import PATIENCE_MS

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}
QUICK = FollowSettings(linger_ms=0, retry_first_ms=1, retry_max_ms=5)


def sink(name: str, kind: str = "memory", **fields: Any) -> SinkSettings:
    return SinkSettings(name=name, kind=kind, **{"follow": QUICK, **fields})


@asynccontextmanager
async def node_with(
    *sinks: SinkSettings, data: Path | None = None, namespaces: tuple[str, ...] = ("resourcelease",)
) -> AsyncIterator[Node]:
    settings = settings_for(data, *namespaces, options=QueueOptions())
    node = Node(msgspec.structs.replace(settings, sinks=sinks))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def caught_up(node: Node) -> None:
    for component in node.components:
        last = component.shard().last_sequence
        for follower in node.replication.find(shard=component.namespace):
            await soon(follower.wait_confirmed(last))


@pytest.mark.parametrize("kind", ["file", "sqlite", "governance"])
async def test_two_nodes_do_not_share_a_target(kind: str, tmp_path: Path) -> None:
    shared = sink("shared", kind, path=str(tmp_path / "target"))
    async with node_with(shared, data=tmp_path / "a") as first:
        async with Http(first) as http:
            await http.call("enqueue", ITEM)
        await caught_up(first)
        owner = first.components[0].shard().log.log_id
        async with node_with(shared, data=tmp_path / "b") as second:
            async with Http(second) as http:
                await http.call("enqueue", {"items": [ITEM] * 9})
            [follower] = second.replication.find()
            await soon(follower.wait_state("failed"))
            assert owner in (follower.last_error or "")
        async with Http(first) as http:
            await http.call("enqueue", ITEM)
        await caught_up(first)
        [status] = first.replication.status()
        assert (status.state, status.failures) == ("running", 0)


async def test_every_shard_is_followed_by_the_sinks_that_want_it(tmp_path: Path) -> None:
    sinks = (
        sink("all", "file"),
        sink("only", "sqlite", shards=("b",), path=str(tmp_path / "elsewhere")),
        sink("off", enabled=False),
    )
    async with node_with(*sinks, data=tmp_path / "data", namespaces=("a", "b")) as node:
        async with Http(node, "a") as a, Http(node, "b") as b:
            await a.call("enqueue", ITEM)
            await b.call("enqueue", {"items": [ITEM] * 3})
        await caught_up(node)
        assert sorted((each.sink, each.shard) for each in node.replication.status()) == [
            ("all", "a"),
            ("all", "b"),
            ("only", "b"),
        ]
        log = node.components[1].shard().log
        expected = sum(frame.count for frame in await frames_of(log))
    lines = [
        line
        for path in (tmp_path / "data" / "sinks" / "all" / "b").iterdir()
        for line in path.read_bytes().splitlines()
    ]
    assert len(lines) == expected
    assert (tmp_path / "elsewhere" / "b.db").exists()
    assert not (tmp_path / "elsewhere" / "a.db").exists()


async def test_checkpoints_outlive_the_node(tmp_path: Path) -> None:
    for _ in range(3):
        async with node_with(sink("audit", "governance"), data=tmp_path) as node, Http(node) as http:
            await http.call("enqueue", ITEM)
            await caught_up(node)
    [path] = (tmp_path / "sinks" / "audit" / "resourcelease").iterdir()
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert [(line["action"], line["resourceId"]) for line in lines] == [("enqueue", "orders")] * 3


async def test_governance_knows_what_an_earlier_life_leased(tmp_path: Path) -> None:
    async with node_with(sink("audit", "governance"), data=tmp_path) as node, Http(node) as http:
        await http.call("enqueue", ITEM)
        lease = await http.call("lease", {"peerId": "anna"})
        await caught_up(node)
    async with node_with(sink("audit", "governance"), data=tmp_path) as node, Http(node) as http:
        await http.call("complete", {"ownershipToken": lease["ownershipToken"]})
        await caught_up(node)
    [path] = (tmp_path / "sinks" / "audit" / "resourcelease").iterdir()
    last = msgspec.json.decode(path.read_bytes().splitlines()[-1])
    assert (last["action"], last["resourceId"], last["peer"]) == ("completion", "orders", "anna")
    assert last["fence"] == lease["ownershipToken"]["fence"]


# -- what is seen of them ------------------------------------------------------------------------


async def test_a_failing_sink_is_reported_everywhere_and_makes_nothing_unready(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    sinks = (
        sink("good"),
        sink("bad", "file", path=str(blocked / "x")),
        sink("hook", "webhook", url="http://127.0.0.1:1"),
    )
    async with node_with(*sinks) as node, Http(node) as http:
        [good], [bad], [hook] = (node.replication.find(each.name) for each in sinks)
        await soon(bad.wait_state("failed"))
        await soon(hook.wait_state("retrying"))
        await http.call("enqueue", ITEM)
        last = node.components[0].shard().last_sequence
        await soon(good.wait_confirmed(last))
        ready = await http.client.get("/readyz")
        assert ready.status_code == 200
        seen = {each["sink"]: each for each in ready.json()["sinks"]}
        assert (seen["good"]["state"], seen["good"]["checkpoint"], seen["good"]["lagEvents"]) == ("running", last, 0)
        assert (seen["bad"]["state"], seen["bad"]["lagEvents"]) == ("failed", last)
        assert "cannot write to" in seen["bad"]["reason"]
        page = (await http.client.get("/omnirelay/control/replication")).json()
        states = {each["sink"]: each["state"] for each in page["sinks"]}
        assert states == {"good": "running", "bad": "failed", "hook": "retrying"}
        metrics = (await http.client.get("/metrics")).text
        prefix = "omnirelay_resourcelease_replication"
        assert f'{prefix}_events_total{{event_type="Enqueue",shard="resourcelease",sink="good"}} 1.0' in metrics
        assert f'{prefix}_failures_total{{shard="resourcelease",sink="bad"}} 1.0' in metrics
        assert f'{prefix}_lag_seconds_count{{shard="resourcelease",sink="good"}}' in metrics
        for name, state in states.items():
            assert f'{prefix}_state{{shard="resourcelease",sink="{name}",state="{state}"}} 1.0' in metrics
        assert f'{prefix}_parked{{shard="resourcelease",sink="hook"}} 0.0' in metrics


async def test_a_sink_that_could_not_be_made_is_made_when_it_is_resumed(tmp_path: Path) -> None:
    settings = sink("hook", "webhook", url="http://127.0.0.1:1", secret_file="secret")
    async with node_with(settings, data=tmp_path) as node:
        [follower] = node.replication.find("hook")
        await soon(follower.wait_state("failed"))
        assert "cannot read the secret" in (follower.last_error or "")
        (tmp_path / "secret").write_text("x\n")
        await follower.resume()
        await soon(follower.wait_state("retrying"))
        assert "cannot reach" in (follower.last_error or "")


async def test_an_unknown_kind_is_a_failed_sink() -> None:
    async with node_with(sink("x", "parrot")) as node:
        [follower] = node.replication.find("x")
        await soon(follower.wait_state("failed"))
        assert "there is no sink of kind 'parrot'" in (follower.last_error or "")


# -- what operators do ---------------------------------------------------------------------------


async def test_sinks_are_handled_by_procedures() -> None:
    async with node_with(sink("one"), sink("two")) as node, Http(node) as http, Http(node, "replication") as control:
        await http.call("enqueue", ITEM)
        await caught_up(node)
        status = await control.call("status")
        assert [each["sink"] for each in status["sinks"]] == ["one", "two"]
        assert (await control.client.get("/omnirelay/control/replication")).json() == status
        assert None not in status["sinks"][0].values(), "what there is none of is left out"
        assert (status["sinks"][0]["lagBytes"], status["sinks"][0]["requirementDropped"]) == (0, False)
        [paused] = (await control.call("pause", {"sink": "one"}))["sinks"]
        assert (paused["sink"], paused["state"]) == ("one", "paused")
        await http.call("enqueue", ITEM)
        [two] = node.replication.find("two")
        await soon(two.wait_confirmed(node.components[0].shard().last_sequence))
        [behind] = (await control.call("status", {"sink": "one"}))["sinks"]
        assert behind["lagEvents"] == 1
        await control.call("resume", {"sink": "one", "shard": "resourcelease"})
        await caught_up(node)
        memory = node.replication.sink("one", "resourcelease")
        assert isinstance(memory, MemorySink)
        before = len(memory.events)
        await control.call("reset", {"sink": "one", "sequence": 0})
        await caught_up(node)
        assert len(memory.events) == before
        for verb in ("pause", "resume", "reset"):
            refused = await control.post(verb, {"sink": "three", "sequence": 0})
            assert (refused.status_code, refused.json()["code"]) == (404, "replication.unknown_sink")
        refused = await control.post("reset", {"sink": "one", "sequence": 10**9})
        assert refused.status_code == 400


async def test_the_page_of_sinks_shows_what_its_query_asks_for() -> None:
    sinks = (sink("one"), sink("two", shards=("b",)))
    async with node_with(*sinks, namespaces=("a", "b")) as node, Http(node, "replication") as control:
        await caught_up(node)
        for asked, expected in (
            ({}, [("one", "a"), ("one", "b"), ("two", "b")]),
            ({"sink": "one"}, [("one", "a"), ("one", "b")]),
            ({"shard": "b"}, [("one", "b"), ("two", "b")]),
            ({"sink": "two", "shard": "b"}, [("two", "b")]),
        ):
            page = await control.client.get("/omnirelay/control/replication", params=asked)
            assert [(each["sink"], each["shard"]) for each in page.json()["sinks"]] == expected
            assert page.json() == await control.call("status", asked)
        for wrong in ({"sink": "three"}, {"sink": ""}, {"shard": "c"}, {"sink": "two", "shard": "a"}):
            page = await control.client.get("/omnirelay/control/replication", params=wrong)
            assert (page.status_code, page.json()["code"]) == (404, "replication.unknown_sink")
        for query, field in (("sinks=one", "sinks"), ("sink=one&sink=two", "sink")):
            page = await control.client.get(f"/omnirelay/control/replication?{query}")
            assert (page.status_code, page.json()["metadata"]) == (400, {"field": field})


@pytest.mark.parametrize("wrong", [{}, {"to": 1}, {"sequence": None}], ids=str)
async def test_a_reset_that_does_not_say_where_to_changes_nothing(wrong: dict[str, Any]) -> None:
    async with node_with(sink("one")) as node, Http(node) as http, Http(node, "replication") as control:
        await http.call("enqueue", ITEM)
        await caught_up(node)
        [follower] = node.replication.find("one")
        await control.call("pause", {"sink": "one"})
        before = follower.checkpoint
        refused = await control.post("reset", {"sink": "one", **wrong})
        assert (refused.status_code, refused.json()["metadata"]) == (400, {"field": "sequence"})
        assert refused.json()["message"] == "sequence is required (in $)"
        assert follower.checkpoint == before > 0


async def test_a_node_without_sinks_says_so() -> None:
    async with node_with() as node, Http(node, "replication") as control:
        assert await control.call("status") == {"sinks": []}
        assert (await control.client.get("/omnirelay/control/replication")).json() == {"sinks": []}


# -- required sinks ------------------------------------------------------------------------------


async def test_nothing_is_trimmed_that_a_guard_needs(tmp_path: Path) -> None:
    place, clock = Place("sqlite", tmp_path), FakeClock()
    needed = 4
    async with await place.open(clock, settings=EngineSettings(snapshot_every_events=0)) as shard:
        shard.add_trim_guard(lambda: needed)
        shard.add_trim_guard(lambda: 10**9)
        for _ in range(2):
            for _ in range(5):
                await enqueued(shard)
            await shard.snapshot()
        await enqueued(shard, *items(3))
        assert (await shard.trim(retention_ms=0)).sequence == needed - 1
        assert (await frames_of(shard.log, needed))[0].first == needed
        needed = 10**9
        anchor = await shard.trim(retention_ms=0)
        assert 4 < anchor.sequence < shard.last_sequence
        with pytest.raises(LogTrimmed):
            await frames_of(shard.log, needed := 4)


async def test_the_log_keeps_what_a_required_sink_has_not_confirmed(tmp_path: Path) -> None:
    required = FollowSettings(linger_ms=0, required=True)
    async with node_with(sink("audit", follow=required), sink("optional"), data=tmp_path) as node, Http(node) as http:
        shard = node.components[0].shard()
        assert isinstance(shard.log, SqliteLog)
        for follower in node.replication.followers:
            await follower.pause()
        for _ in range(2):
            await http.call("enqueue", {"items": [ITEM] * 5})
            await http.call("enqueue", ITEM)
            await shard.snapshot()
        await http.call("enqueue", ITEM)
        assert (await shard.trim(retention_ms=0)).sequence <= 2
        [audit] = node.replication.find("audit")
        await audit.resume()
        await soon(audit.wait_confirmed(shard.last_sequence))
        anchor = await shard.trim(retention_ms=0)
        assert anchor.sequence > 2
        [optional] = node.replication.find("optional")
        await optional.resume()
        if optional.checkpoint < anchor.sequence:
            await soon(optional.wait_state("failed"))


async def test_a_node_stops_soon_although_a_sink_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnirelay.replication.following.GRACE_MS", 50)
    asked, hung_up = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # Until the other side has had enough.
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hook = sink("hook", "webhook", url=f"http://127.0.0.1:{port}/", follow=FollowSettings(timeout_ms=600_000))
    async with node_with(hook) as node, Http(node) as http:
        await http.call("enqueue", ITEM)
        await soon(asked.wait())
        await soon(node.stop())
        await soon(hung_up.wait())
    server.close()


async def test_streams_hear_of_the_end_of_a_node_before_a_sink_that_hangs_is_given_up() -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await may_answer.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hook = sink("hook", "webhook", url=f"http://127.0.0.1:{port}/", follow=FollowSettings(timeout_ms=600_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omnirelay.replication.following.GRACE_MS", PATIENCE_MS)
        async with node_with(hook) as node, peer_of(node.url) as peer, Http(node) as http:
            await peer.open(credit=1)
            await http.call("enqueue", ITEM)
            await peer.leases(1)
            await soon(asked.wait())
            stopping = asyncio.create_task(node.stop())
            await peer.closed()
            assert not stopping.done()
            patch.setattr("omnirelay.replication.following.GRACE_MS", 50)
            may_answer.set()
            await soon(stopping)
    server.close()
