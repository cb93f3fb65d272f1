"""The shard against crashes: concurrent calls, time, slow and failing disks, kills at any point.

Every answer is checked against the durable events the moment it is there (`shard_calls`), and every
durable event against what must never happen (`shard_facts`): two leases on an item, a fence that does
not rise, an item that vanishes. After a crash the log must hold all that answers rested on, and a
replay of it must be the state that is served. A call that was not answered may have happened or not.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from omnirelay.core.options import QueueOptions
from omnirelay.core.snapshot import digest
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import LogUnavailable
from omnirelay.log.base import EventLog
from omnirelay.log.memory import MemoryLog
from omnirelay.log.sqlite import SqliteLog
from omnirelay.testing.clock import FakeClock
from tests.builders import lease_ids, replay
from tests.patience import PATIENCE_S
from tests.property.shard_calls import CALLS, WRITES, Call, Callers
from tests.property.shard_facts import Facts, HeldLog, events_of
from tests.property.strategies import LONG, profile

OPTIONS = QueueOptions(
    lease_duration_ms=3_000, heartbeat_interval_ms=500, max_delivery_attempts=2, requeue_delay_ms=200, max_undelivered=1
)
SETTINGS = st.builds(
    EngineSettings,
    frame_events_max=st.sampled_from([20_000, 20_000, 3, 1]),
    stage_events_min=st.sampled_from([256, 1]),
)


class ShardMachine(RuleBasedStateMachine):
    """Over a log in memory; `SqliteShardMachine` does the same on a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.ids = lease_ids()
        self.callers = Callers()
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.failures: list[BaseException] = []
        self.excused: set[str] = set()
        """Leases of a life before a crash whose callers were never answered."""
        self.shard: Shard | None = None
        self.log: HeldLog | None = None
        self.settings = EngineSettings()
        self.calls_before = 0
        """Calls of the lives before this one: a life without any has nothing to lose."""
        self.make_storage()

    def make_storage(self) -> None:
        self.memory = MemoryLog("jobs")

    def writer(self) -> Any:
        return self.memory.reopen()

    def abandon(self, log: Any) -> None:
        """What a kill does to the log below."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):  # Only there so that a hang is a failure.
                await work

        self.runner.run(bounded())
        if self.failures:
            raise self.failures[0]

    # -- life ----------------------------------------------------------------------------------

    @initialize(settings=SETTINGS, calls=st.lists(CALLS, max_size=3))
    def start(self, settings: EngineSettings, calls: list[Call]) -> None:
        self.settings = settings
        self.run(self._open())
        self.run(self._submit([("enqueue", 3, None), ("lease", 2, 0), *calls], 10))

    async def _open(self) -> None:
        self.calls_before = self.callers.calls
        before = None if self.log is None else self.log.facts
        self.log = HeldLog(self.writer())
        for event in await events_of(self.log.inner):
            self.log.facts.take(event)
        facts = self.log.facts
        if before is not None:
            assert facts.events[: len(before.events)] == before.events, "something durable is gone"
        self.excused |= set(facts.live.values()) - set(self.callers.delivered)
        self.shard = await Shard.open(
            cast(EventLog, self.log), options=OPTIONS, clock=self.clock, settings=self.settings, ids=self.ids
        )
        await self._check_replay()

    async def _check_replay(self) -> None:
        """The log alone gives the state that is served, and state_at and tail know it too."""
        assert self.shard is not None
        assert self.log is not None
        events = await events_of(self.log.inner)
        assert events == self.log.facts.events
        assert digest(replay(events)) == digest(self.shard.state)
        middle = events[len(events) // 2].sequence_number
        before = replay([event for event in events if event.sequence_number <= middle])
        assert digest(await self.shard.state_at(middle)) == digest(before)

    def facts(self) -> Facts:
        assert self.log is not None
        return self.log.facts

    def alive(self) -> Shard:
        """The shard, started again when it was given up."""
        assert self.shard is not None
        if self.shard.failure is not None and not self._stalled():
            self.crash_and_reopen(0, 0)
        return self.shard

    def _stalled(self) -> bool:
        """The disk refuses for now: the shard tries again by itself."""
        assert self.shard is not None
        return isinstance(self.shard.failure, LogUnavailable)

    # -- calls ---------------------------------------------------------------------------------

    @rule(calls=st.lists(CALLS, min_size=1, max_size=6), ticks=st.integers(0, 12))
    def submit(self, calls: list[Call], ticks: int) -> None:
        self.alive()
        self.run(self._submit(calls, ticks))

    async def _submit(self, calls: list[Call], ticks: int) -> None:
        """Start calls and let the loop turn a few times: whatever has not come by then is still under way."""
        assert self.shard is not None
        for call in calls:
            task = asyncio.get_running_loop().create_task(self.callers.call(self.shard, self.facts, call))
            self.tasks[task] = None
            task.add_done_callback(self._done)
        for _ in range(ticks):
            await asyncio.sleep(0)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failures.append(error)

    @rule(
        where=st.sampled_from(["before", "after"]),
        first=st.one_of(WRITES.map(lambda call: [call]), st.lists(CALLS, min_size=2, max_size=4)),
        second=st.lists(CALLS, min_size=1, max_size=4),
        ticks=st.integers(1, 5),
        leaves=st.lists(st.integers(0, 9), max_size=2),
        crash=st.booleans(),
    )
    def overtake(
        self,
        where: str,
        first: list[Call],
        second: list[Call],
        ticks: int,
        leaves: list[int],
        crash: bool,
    ) -> None:
        """Calls that come while others are being made durable: none may be told what is not durable yet."""
        self.alive()
        self.the_disk_is_slow(where)
        self.run(self._submit(first, ticks))
        self.run(self._submit(second, ticks))
        for pick in leaves:
            self.a_caller_goes_away(pick, 1)
        if crash:
            self.crash_and_reopen(0, 0)
        else:
            self.settle()

    @precondition(lambda self: bool(self.tasks))
    @rule(pick=st.integers(0, 9), ticks=st.integers(0, 5))
    def a_caller_goes_away(self, pick: int, ticks: int) -> None:
        async def go() -> None:
            callers = list(self.tasks)
            if callers:
                callers[pick % len(callers)].cancel()
            for _ in range(ticks):
                await asyncio.sleep(0)

        self.run(go())

    @rule(ms=st.sampled_from([1, 100, 199, 500, 1_000, 3_000, 10_000]))
    def let_time_pass(self, ms: int) -> None:
        self.alive()
        self.run(self.clock.advance(ms))

    @rule(ms=st.sampled_from([2_000, 2_001, 60_000]), passes=st.booleans())
    def stand_still(self, ms: int, passes: bool) -> None:
        """As a stopped process does: all timers are late, and whoever calls may come before them."""
        self.alive()
        self.clock.move(ms)
        if passes:
            self.run(self.clock.advance(0))

    @rule()
    def settle(self) -> None:
        """Let everything finish; then nothing may be held by nobody, and the log tells the whole story."""
        self.alive()
        assert self.log is not None
        self.log.before.set()
        self.log.after.set()
        self.run(self._settle())

    async def _settle(self) -> None:
        assert self.shard is not None
        for _ in range(100):
            before = self.shard.last_sequence
            await self._barrier(self.shard)
            if self.shard.failure is not None and not self._stalled():
                return
            if before == self.shard.last_sequence == self.shard.state.sequence:
                break
        else:
            raise AssertionError("the shard does not come to rest")
        await self._check_replay()
        held = {item.lease.token.lease_id for item in self.shard.state.items.values() if item.lease is not None}
        assert held <= set(self.callers.delivered) | self.excused, "a lease is held by nobody"

    async def _barrier(self, shard: Shard) -> None:
        """Wait for what is under way: a read is answered after it. A disk that refuses gets its time."""
        reading = asyncio.ensure_future(shard.stats())
        while not reading.done():
            await asyncio.wait([reading], timeout=0.001)
            if self._stalled():
                await self.clock.advance(100)
        if isinstance(reading.exception(), LogUnavailable):
            await self.clock.advance(100)
        # A caller that was cancelled gives its lease back some turns of the loop later, on its way out of every layer.
        for _ in range(25):
            await asyncio.sleep(0)

    # -- disks ---------------------------------------------------------------------------------

    @rule(where=st.sampled_from(["before", "after", "nowhere", "nowhere"]))
    def the_disk_is_slow(self, where: str) -> None:
        assert self.log is not None
        for gate, name in ((self.log.before, "before"), (self.log.after, "after")):
            gate.clear() if name == where else gate.set()
        self.run(self._submit([], 5))

    @precondition(lambda self: self.log is not None and isinstance(self.log.inner, MemoryLog))
    @rule(fault=st.sampled_from(["definite", "definite", "unknown-lost", "unknown-kept"]))
    def the_disk_fails(self, fault: Any) -> None:
        assert self.log is not None
        self.log.inner.fail_next_append(fault)

    @precondition(lambda self: self.callers.calls > self.calls_before)
    @rule(ticks=st.integers(0, 6), down_ms=st.sampled_from([0, 1, 1_000, 60_000]))
    def crash_and_reopen(self, ticks: int, down_ms: int) -> None:
        self.run(self._crash(ticks))
        self.clock.move(down_ms)
        self.run(self._open())

    async def _crash(self, ticks: int) -> None:
        assert self.shard is not None
        assert self.log is not None
        for _ in range(ticks):
            await asyncio.sleep(0)
        self.shard.kill()
        self.abandon(self.log.inner)
        await asyncio.sleep(0)
        waiting = list(self.tasks)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    @precondition(lambda self: self.callers.calls > self.calls_before)
    @rule()
    def close_and_reopen(self) -> None:
        shard = self.alive()
        assert self.log is not None
        self.log.before.set()
        self.log.after.set()

        self.run(self._close(shard))
        self.run(self._open())

    async def _close(self, shard: Shard) -> None:
        """Close while time goes on: a disk that is full is given up, and who waits is answered at last."""
        closing = asyncio.ensure_future(shard.close())
        while not closing.done() or self.tasks:
            await self.clock.advance(100)
            await asyncio.wait([closing, *self.tasks], timeout=0.001)
        await closing

    def teardown(self) -> None:
        try:
            if self.shard is not None and not self.failures:
                self.settle()
        finally:
            if self.shard is not None:
                self.runner.run(self._crash(0))
            self.runner.close()


class SqliteShardMachine(ShardMachine):
    def make_storage(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="omnirelay-shard-")

    def writer(self) -> Any:
        return SqliteLog.open(Path(self.directory.name), "jobs")

    def abandon(self, log: Any) -> None:
        log.abandon()

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


@pytest.mark.timeout(7_200 if LONG else 900)
def test_answers_rest_on_durable_events_whatever_happens_to_the_shard() -> None:
    run_state_machine_as_test(ShardMachine, settings=profile(120, steps=30, long=3_000))


STEPS = st.one_of(
    st.tuples(st.just("submit"), st.lists(CALLS, min_size=1, max_size=6), st.integers(0, 12)),
    st.tuples(
        st.just("overtake"),
        st.sampled_from(["before", "after"]),
        st.lists(CALLS, min_size=1, max_size=4),
        st.lists(CALLS, min_size=1, max_size=4),
        st.integers(1, 5),
        st.lists(st.integers(0, 9), max_size=2),
        st.booleans(),
    ),
    st.tuples(st.just("let_time_pass"), st.sampled_from([1, 500, 3_000, 10_000])),
    st.tuples(st.sampled_from(["settle", "close_and_reopen"])),
    st.tuples(st.just("crash_and_reopen"), st.integers(0, 6), st.sampled_from([0, 1_000, 60_000])),
)


@pytest.mark.timeout(7_200 if LONG else 900)
@profile(40)
@given(settings=SETTINGS, script=st.lists(STEPS, min_size=5, max_size=20))
def test_answers_rest_on_durable_events_on_a_disk(settings: EngineSettings, script: list[tuple[Any, ...]]) -> None:
    """A script and no state machine: threads decide what has come when, and draws must not depend on that."""
    machine = SqliteShardMachine()
    try:
        machine.start(settings, [])
        for step, *arguments in script:
            getattr(machine, step)(*arguments)
    finally:
        machine.teardown()
