"""Required sinks that fall behind: intake closes with their reason, opens by itself, and nothing else stands still."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnirelay.core import events as ev
from omnirelay.core.answers import BackpressureSignal
from omnirelay.core.options import QueueOptions
from omnirelay.engine.leading import NEW_LEADER
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import ResourceExhausted
from omnirelay.node.loading import load
from omnirelay.node.node import Node
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.following import Follower
from omnirelay.replication.settings import FollowSettings, SinkSettings
from omnirelay.testing.clock import FakeClock
from tests.cli.processes import command, environment
from tests.integration.nodes import Http, settings_for
from tests.integration.shards import Place, enqueued, events_of, items, on_every_log, one_lease, soon, start

LIMITED = FollowSettings(
    linger_ms=0, retry_first_ms=1, retry_max_ms=5, timeout_ms=600_000, required=True, lag_events_max=10
)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks that hang are left to themselves at once."""
    monkeypatch.setattr("omnirelay.replication.following.GRACE_MS", 10)


class Gated:
    """A sink that takes deliveries only while its gate is open, one by one when it is let."""

    rebuilds_state = False

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        """A delivery has come: the sink is open, and how far it is behind is known."""
        self.taken: list[int] = []

    async def open(self, shard: str) -> int | None:
        return None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        self.asked.set()
        await self.gate.wait()
        self.taken += [event.sequence for event in events]

    async def close(self) -> None:
        """Nothing to close."""


class Down(Gated):
    """A sink whose target takes nothing, and says so at once."""

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        raise ConnectionError("the target is down")


class Ear:
    """Hears every change of backpressure."""

    def __init__(self, shard: Shard) -> None:
        self.heard: list[BackpressureSignal] = []
        self._more = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        shard.add_backpressure_listener(self._hear)

    def _hear(self, signal: BackpressureSignal) -> None:
        self.heard.append(signal)
        task = asyncio.get_running_loop().create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._more:
            self._more.notify_all()

    async def wait(self, *, active: bool) -> BackpressureSignal:
        return await self._wait_for(lambda signal: signal.active == active)

    async def wait_causes(self, *causes: str) -> BackpressureSignal:
        return await self._wait_for(lambda signal: {each.cause for each in signal.causes} == set(causes))

    async def _wait_for(self, wanted: Callable[[BackpressureSignal], bool]) -> BackpressureSignal:
        async with self._more:
            await soon(self._more.wait_for(lambda: bool(self.heard) and wanted(self.heard[-1])))
        return self.heard[-1]


@asynccontextmanager
async def following(
    shard: Shard, sink: Any, settings: FollowSettings = LIMITED, *, name: str = "audit", path: Path | None = None
) -> AsyncIterator[Follower]:
    checkpoints = Checkpoints(path)
    follower = Follower(name, sink, shard, checkpoints, settings)
    shard.add_trim_guard(follower.needs_from)
    follower.start()
    try:
        yield follower
    finally:
        await follower.stop()
        await checkpoints.close()


def with_limits(**limits: Any) -> FollowSettings:
    return msgspec.structs.replace(LIMITED, **limits)


async def refused(shard: Shard) -> ResourceExhausted:
    with pytest.raises(ResourceExhausted) as caught:
        await shard.enqueue(items(1))
    assert caught.value.code == "error.resourcelease.backpressure"
    return caught.value


# -- too many events -----------------------------------------------------------------------------


@on_every_log
async def test_a_sink_beyond_its_limit_closes_intake_and_opens_it_again(kind: str, tmp_path: Path) -> None:
    async with await Place(kind, tmp_path).open(FakeClock()) as shard:
        ear, sink = Ear(shard), Gated()
        async with following(shard, sink) as follower:
            await enqueued(shard, *items(12))
            closed = await ear.wait(active=True)
            [cause] = closed.causes
            assert cause.cause == "replication.lag:audit"
            assert "required sink audit: it was behind by" in cause.reason
            assert "10 are allowed" in cause.reason
            assert (await refused(shard)).message == cause.reason
            status = follower.status()
            assert (status.closes_intake, status.requirement_dropped) == (cause.reason, False)
            waiting = start(shard.enqueue(items(1), wait_ms=60_000))
            # What lives goes on, although every event of it puts the sink further behind.
            lease = await one_lease(shard)
            await shard.heartbeat(lease.token)
            await shard.complete(lease.token, follow_ups=items(1, "next"))
            await shard.fail((await one_lease(shard)).token)
            assert not waiting.done()
            sink.gate.set()
            opened = await ear.wait(active=False)
            assert opened.causes == ()
            assert len((await soon(waiting)).results) == 1
            await soon(follower.wait_confirmed(shard.last_sequence))
            assert follower.status().closes_intake is None
        changes = [event for event in await events_of(shard.log) if isinstance(event, ev.BackpressureChanged)]
        assert [(event.active, event.cause) for event in changes] == [
            (True, "replication.lag:audit"),
            (False, "replication.lag:audit"),
        ]


async def test_sinks_and_watermarks_do_not_open_what_another_closed(tmp_path: Path) -> None:
    options = QueueOptions(high_watermark=20, low_watermark=2, backpressure_cooldown_ms=0)
    async with await Place("memory", tmp_path).open(FakeClock(), options=options) as shard:
        ear, first, second = Ear(shard), Gated(), Gated()
        async with following(shard, first, name="a"), following(shard, second, name="b"):
            await enqueued(shard, *items(25))
            await ear.wait_causes("depth", "replication.lag:a", "replication.lag:b")
            first.gate.set()
            await ear.wait_causes("depth", "replication.lag:b")
            assert "sink b" in (await refused(shard)).message
            for lease in await shard.lease(max_items=25):
                await shard.complete(lease.token)
            # Completing is work for the first sink, too: it may close intake again until it has caught up.
            await ear.wait_causes("replication.lag:b")
            await refused(shard)
            second.gate.set()
            await ear.wait(active=False)
            await enqueued(shard)


async def test_an_optional_sink_is_only_reported() -> None:
    async with await Place("memory", Path("unused")).open(FakeClock()) as shard:
        sink = Gated()
        async with following(shard, sink, with_limits(required=False)) as follower:
            await enqueued(shard, *items(50))
            await enqueued(shard, *items(50))
            status = follower.status()
            assert (status.lag_events > 10, status.closes_intake, shard.backpressure.active) == (True, None, False)


async def test_without_a_limit_nothing_closes() -> None:
    async with await Place("memory", Path("unused")).open(FakeClock()) as shard:
        sink = Gated()
        async with following(shard, sink, with_limits(lag_events_max=0)) as follower:
            await enqueued(shard, *items(2_000))
            await soon(sink.asked.wait())
            assert follower.requirement is not None
            follower.requirement.look()
            assert (follower.status().closes_intake, shard.backpressure.active) == (None, False)


# -- too long ------------------------------------------------------------------------------------


async def test_a_sink_that_is_late_closes_intake_although_little_happens() -> None:
    clock = FakeClock()
    async with await Place("memory", Path("unused")).open(clock) as shard:
        ear, sink = Ear(shard), Gated()
        async with following(shard, sink, with_limits(lag_events_max=0, lag_max_ms=60_000)) as follower:
            await enqueued(shard)
            await clock.advance(61_000)
            closed = await ear.wait(active=True)
            assert "60 s are allowed" in closed.causes[0].reason
            sink.gate.set()
            await ear.wait(active=False)
            assert follower.status().lag_ms == 0


async def test_nobody_is_late_for_what_happened_while_the_node_was_down(tmp_path: Path) -> None:
    place, clock = Place("sqlite", tmp_path), FakeClock()
    async with await place.open(clock) as shard:
        await enqueued(shard, *items(3))
    await clock.advance(3_600_000)
    async with await place.open(clock) as shard:
        sink = Gated()
        async with following(shard, sink, with_limits(lag_max_ms=60_000)) as follower:
            await soon(sink.asked.wait())
            status = follower.status()
            assert ((status.lag_ms or 0) >= 3_600_000, status.closes_intake) == (True, None)


# -- restarts ------------------------------------------------------------------------------------


@on_every_log
async def test_a_sink_that_is_gone_after_a_restart_does_not_keep_the_shard_closed(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path / "log"), FakeClock()
    shard = await place.open(clock)
    ear, sink = Ear(shard), Gated()
    async with following(shard, sink, path=tmp_path / "checkpoints.db"):
        await enqueued(shard, *items(12))
        await ear.wait(active=True)
        place.crash(shard)
    async with await place.open(clock) as shard:
        assert not shard.backpressure.active
        last = [event for event in await events_of(shard.log) if isinstance(event, ev.BackpressureChanged)][-1]
        assert (last.active, last.cause, last.reason) == (False, "replication.lag:audit", NEW_LEADER)
        await enqueued(shard)


async def test_a_sink_that_is_still_behind_after_a_restart_closes_intake_again(tmp_path: Path) -> None:
    place, clock = Place("sqlite", tmp_path / "log"), FakeClock()
    for round_ in range(3):
        async with await place.open(clock) as shard:
            ear = Ear(shard)
            async with following(shard, Down(), path=tmp_path / "checkpoints.db") as follower:
                if round_ == 0:
                    await enqueued(shard, *items(12))
                assert "audit" in ((await ear.wait(active=True)).reason or "")
                await refused(shard)
                await follower.pause()
                assert follower.status().closes_intake is not None


async def test_a_jump_of_the_numbers_is_no_lag(tmp_path: Path) -> None:
    place, clock = Place("sqlite", tmp_path / "log"), FakeClock()
    async with await place.open(clock) as shard:
        await enqueued(shard, *items(3))
        await shard.log.backup(tmp_path / "copy" / "jobs")
    async with await Place("sqlite", tmp_path / "copy").open(clock) as shard:
        assert shard.last_sequence > 1 << 32
        sink = Gated()
        async with following(shard, sink) as follower:
            await enqueued(shard)
            await soon(sink.asked.wait())
            assert follower.status().lag_events == len(await events_of(shard.log)) < 10
            assert not shard.backpressure.active
            sink.gate.set()
            await soon(follower.wait_confirmed(shard.last_sequence))
            assert follower.status().lag_events == 0


# -- too much log --------------------------------------------------------------------------------


@on_every_log
async def test_a_sink_that_holds_back_too_much_closes_intake(kind: str, tmp_path: Path) -> None:
    async with await Place(kind, tmp_path).open(FakeClock()) as shard:
        ear, sink = Ear(shard), Gated()
        async with following(shard, sink, with_limits(lag_events_max=0, max_retained_bytes=20_000)) as follower:
            await soon(sink.asked.wait())
            for _ in range(20):
                if not shard.backpressure.active:
                    await enqueued(shard, *items(10))
            closed = await ear.wait(active=True)
            assert closed.causes[0].cause == "replication.retention:audit"
            assert "20,000 are allowed" in closed.causes[0].reason
            assert 20_000 < (follower.status().lag_bytes or 0) < 60_000
            sink.gate.set()
            await ear.wait(active=False)


async def test_a_requirement_that_is_dropped_lets_the_log_go_and_says_what_to_do(tmp_path: Path) -> None:
    quiet = EngineSettings(snapshot_every_events=0)
    limits = with_limits(max_retained_bytes=3_000, on_retention_exceeded="drop_requirement")
    async with await Place("sqlite", tmp_path).open(FakeClock(), settings=quiet) as shard:
        sink = Gated()
        async with following(shard, sink, limits) as follower:
            await soon(follower.wait_state("starting", "running"))
            for _ in range(3):
                await enqueued(shard, *items(20))
                await shard.snapshot()
            await enqueued(shard)
            status = follower.status()
            assert (status.required, status.requirement_dropped, status.closes_intake) == (True, True, None)
            assert not shard.backpressure.active
            anchor = await shard.trim(retention_ms=0)
            assert anchor.sequence > 20
            pausing = asyncio.create_task(follower.pause())
            await asyncio.sleep(0)  # From here on it is paused; it is answered when the delivery under way has ended.
            sink.gate.set()
            await soon(pausing)
            await follower.reset(0)
            await follower.resume()
            await soon(follower.wait_state("failed"))
            assert f"the log of jobs begins after {anchor.sequence}" in (follower.last_error or "")
            assert follower.last_error is not None
            advice = f"omnirelay replication reset audit --shard {follower.shard_name} --to {anchor.sequence}"
            assert advice in follower.last_error
            await follower.reset(anchor.sequence)
            await soon(follower.wait_confirmed(shard.last_sequence))
            assert not follower.status().requirement_dropped
            assert sink.taken[-1] == shard.last_sequence


async def test_the_log_keeps_its_retention_whatever_sinks_confirm(tmp_path: Path) -> None:
    clock = FakeClock()
    async with await Place("sqlite", tmp_path).open(clock, settings=EngineSettings(snapshot_every_events=0)) as shard:
        sink = Gated()
        sink.gate.set()
        async with following(shard, sink) as follower:
            for _ in range(3):
                await enqueued(shard, *items(5))
                await shard.snapshot()
            await soon(follower.wait_confirmed(shard.last_sequence))
            await clock.advance(24 * 3_600_000 - 60_000)
            assert (await shard.trim()).sequence == 0
            await clock.advance(120_000)
            assert (await shard.trim()).sequence > 0


# -- sinks beside each other -----------------------------------------------------------------------


class Slow(Gated):
    """Takes a turn of the event loop for every event."""

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        for event in events:
            await asyncio.sleep(0)
            self.taken.append(event.sequence)


async def test_a_sink_that_hangs_and_one_that_is_slow_hold_up_neither_callers_nor_others() -> None:
    settings = FollowSettings(linger_ms=0, batch_events=100, timeout_ms=600_000)
    async with await Place("memory", Path("unused")).open(FakeClock()) as shard:
        hanging, slow, quick = Gated(), Slow(), Gated()
        quick.gate.set()
        async with (
            following(shard, hanging, settings, name="hanging") as stuck,
            following(shard, slow, settings, name="slow") as trailing,
            following(shard, quick, settings, name="quick") as leading,
        ):
            for _ in range(30):
                await soon(shard.enqueue(items(100)))
                for lease in await soon(shard.lease(max_items=50)):
                    await soon(shard.complete(lease.token))
            await soon(leading.wait_confirmed(shard.last_sequence))
            assert stuck.checkpoint == 0
            assert stuck.status().lag_events == shard.last_sequence
            await soon(trailing.wait_confirmed(shard.last_sequence))
            expected = [event.sequence_number for event in await events_of(shard.log)]
            assert quick.taken == slow.taken == expected
            assert hanging.taken == []


# -- what a whole node shows of it ---------------------------------------------------------------


@asynccontextmanager
async def receiver(gate: asyncio.Event) -> AsyncIterator[str]:
    """An HTTP server that takes deliveries once the gate is open."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
                await gate.wait()
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        gate.set()
        server.close()


async def test_a_node_says_everywhere_why_its_intake_is_closed() -> None:
    gate = asyncio.Event()
    async with receiver(gate) as url:
        audit = SinkSettings(name="audit", kind="webhook", url=url, follow=LIMITED)
        node = Node(msgspec.structs.replace(settings_for(None), sinks=(audit,)))
        await node.start()
        try:
            await _check_what_a_node_says(node, gate)
        finally:
            await node.stop()


async def _check_what_a_node_says(node: Node, gate: asyncio.Event) -> None:
    ear = Ear(node.components[0].shard())
    item = {"payload": {"resourceType": "table", "resourceId": "orders"}}
    async with Http(node) as http, Http(node, "replication") as control:
        await http.call("enqueue", {"items": [item] * 12})
        reason = (await ear.wait(active=True)).reason
        assert reason is not None
        refused = await http.post("enqueue", item)
        assert (refused.status_code, refused.json()["code"]) == (429, "error.resourcelease.backpressure")
        assert refused.json()["message"] == reason
        assert "retry-after" in refused.headers
        pressure = (await http.call("stats"))["stats"]["backpressure"]
        assert (pressure["isActive"], pressure["reason"]) == (True, reason)
        assert [cause["cause"] for cause in pressure["causes"]] == ["replication.lag:audit"]
        assert (await http.call("why", {"sequenceId": 1}))["intake"] == reason
        ready = await http.client.get("/readyz")
        assert ready.status_code == 200  # Whoever leases and completes is served.
        [shard], [sink] = ready.json()["shards"], ready.json()["sinks"]
        assert (shard["backpressure"], shard["intake"], sink["closesIntake"]) == (True, reason, reason)
        [component] = (await http.client.get("/omnirelay/introspect")).json()["components"]
        assert component["intake"] == reason
        [status] = (await control.call("status"))["sinks"]
        assert (status["closesIntake"], status["requirementDropped"]) == (reason, False)
        assert status["lagBytes"] > 0
        metrics = (await http.client.get("/metrics")).text
        labels = '{shard="resourcelease",sink="audit"}'
        assert f"omnirelay_resourcelease_replication_closes_intake{labels} 1.0" in metrics
        assert f"omnirelay_resourcelease_replication_requirement_dropped{labels} 0.0" in metrics
        assert (
            'omnirelay_resourcelease_backpressure_transitions_total{shard="resourcelease",to="closed"} 1.0' in metrics
        )
        for arguments in (["backpressure"], ["stats"], ["why", "1"], ["replication", "status"]):
            shown = await asyncio.to_thread(_shown, *arguments, "--url", node.url)
            assert "required sink audit" in shown, arguments
        gate.set()
        await ear.wait(active=False)
        await http.call("enqueue", item)
        assert "closes_intake" + labels + " 0.0" in (await http.client.get("/metrics")).text


def _shown(*arguments: str) -> str:
    done = subprocess.run(
        command(*arguments), env={**environment(), "COLUMNS": "300"}, capture_output=True, text=True, check=True
    )
    return " ".join(done.stdout.split())


# -- the page --------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs/replication/README.md").read_text()
SECTION = PAGE.split("\n## Required sinks\n")[1].split("\n## ")[0]


async def test_the_example_of_the_page_runs() -> None:
    [block] = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    await asyncio.to_thread(exec, compile(block, "docs/replication/README.md", "exec"), {"__name__": "__main__"})


def test_the_configuration_of_the_page_loads(tmp_path: Path) -> None:
    [block] = re.findall(r"^```toml\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    (tmp_path / "omnirelay.toml").write_text(block)
    [audit] = load(tmp_path / "omnirelay.toml", {}, {}).settings.sinks
    follow = audit.follow
    assert (follow.required, follow.lag_events_max, follow.lag_max_ms) == (True, 200_000, 900_000)
    assert (follow.max_retained_bytes, follow.on_retention_exceeded) == (10 << 30, "drop_requirement")
