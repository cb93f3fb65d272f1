"""Calls to a shard, and what each answer is allowed to rest on: durable events, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from omnirelay.core import commands as cmd
from omnirelay.core.answers import CompleteAnswer, FailAnswer, GrantedLease, HeartbeatAnswer
from omnirelay.core.events import RestoredItem
from omnirelay.core.payload import Caller
from omnirelay.engine.shard import Shard
from omnirelay.errors import FailedPrecondition, LogOutcomeUnknown, NotFound, Unavailable
from tests.builders import new_item, replay
from tests.property.shard_facts import Facts

Call = tuple[str, Any, Any]

WRITES: st.SearchStrategy[Call] = st.one_of(
    st.tuples(st.just("enqueue"), st.integers(1, 3), st.sampled_from([None, None, "r1", "r2", "r3"])),
    st.tuples(st.just("lease"), st.integers(1, 3), st.sampled_from([0, 0, 500, 5_000])),
    st.tuples(st.just("repeat"), st.integers(1, 3), st.sampled_from(["c1", "c2"])),
    st.tuples(st.sampled_from(["complete", "fail", "release", "heartbeat"]), st.integers(0, 9), st.integers(0, 2)),
    st.tuples(st.just("acks"), st.integers(0, 9), st.integers(1, 4)),
)
CALLS: st.SearchStrategy[Call] = st.one_of(
    WRITES,
    WRITES,
    st.tuples(st.sampled_from(["get", "wait"]), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("stats"), st.just(0), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.booleans()),
    st.tuples(st.sampled_from(["drain", "restore", "redrive"]), st.integers(1, 3), st.just(0)),
)
UNAVAILABLE = (Unavailable, LogOutcomeUnknown)
"""Errors that say nothing about what happened: allowed whenever the log failed or the shard is going."""


class Callers:
    """Everyone who calls the shard, and what they were told."""

    def __init__(self) -> None:
        self.delivered: dict[str, GrantedLease] = {}
        """Leases that reached their caller, by lease id."""
        self.known: list[int] = []
        """Items whose enqueue was answered."""
        self.drained: list[RestoredItem] = []
        self.calls = 0

    async def call(self, shard: Shard, facts: Callable[[], Facts], call: Call) -> None:
        """Make the call and check the answer the moment it is there. Raises AssertionError, or is cancelled."""
        kind, number, more = call
        self.calls += 1
        verb: Callable[..., Awaitable[None]] = getattr(self, f"_{kind}", self._acknowledge)
        with suppress(*UNAVAILABLE):
            await (verb(shard, facts, number, more) if verb != self._acknowledge else verb(shard, facts, *call))

    # -- coming in and going out -----------------------------------------------------------------

    async def _enqueue(self, shard: Shard, facts: Callable[[], Facts], count: int, request: str | None) -> None:
        items = [new_item(f"{self.calls}-{n}") for n in range(count)]
        if request is not None:
            items = [new_item(request, request_id=request)]
        answer = await shard.enqueue(items)
        for result in answer.results:
            assert result.sequence_id in facts().enqueued, "an enqueue was answered before it was durable"
            self.known.append(result.sequence_id)

    async def _lease(self, shard: Shard, facts: Callable[[], Facts], count: int, wait_ms: int) -> None:
        self._take(await shard.lease(Caller(peer_id="w"), max_items=count, wait_ms=wait_ms), facts())

    async def _repeat(self, shard: Shard, facts: Callable[[], Facts], count: int, request: str) -> None:
        self._take(await shard.lease(Caller(peer_id="w"), max_items=count, request_id=request), facts())

    def _take(self, granted: list[GrantedLease], facts: Facts) -> None:
        for lease in granted:
            token = lease.token
            durable = facts.granted.get(token.lease_id)
            assert durable == (token.sequence_id, token.attempt, token.fence), "a grant was shown too early"
            self.delivered[token.lease_id] = lease

    async def _drain(self, shard: Shard, facts: Callable[[], Facts], count: int, _: int) -> None:
        page = await shard.drain(max_items=count)
        for item in page.items:
            assert any(item.sequence_id in event.sequence_ids for event in facts().drains())
        self.drained += page.items

    async def _restore(self, shard: Shard, facts: Callable[[], Facts], count: int, _: int) -> None:
        items, self.drained = self.drained[:count], self.drained[count:]
        answer = await shard.restore(items)
        assert answer.restored_count + answer.duplicate_count == len(items)
        assert all(item.sequence_id in facts().enqueued for item in items)

    async def _redrive(self, shard: Shard, facts: Callable[[], Facts], _: int, __: int) -> None:
        before = len(facts().redrives())
        count = await shard.redrive(everything=True)
        assert len(facts().redrives()) - before >= count

    async def _cancel(self, shard: Shard, facts: Callable[[], Facts], pick: int, force: bool) -> None:
        if not self.known:
            return
        sequence_id = self.known[-1 - pick % len(self.known)]
        try:
            answer = await shard.cancel(sequence_id, force=force)
        except NotFound:
            self._check_gone(sequence_id, facts())
            return
        if answer.cancel_requested:
            assert sequence_id in facts().cancel_requested
        else:
            assert facts().ended.get(sequence_id) or sequence_id in facts().redriven

    # -- acknowledging ---------------------------------------------------------------------------

    def _pick(self, pick: int) -> GrantedLease | None:
        """A lease that reached its caller; the last ones are the most likely to live."""
        leases = list(self.delivered.values())
        return leases[-1 - pick % len(leases)] if leases else None

    def _command(self, kind: str, lease: GrantedLease, how: int) -> Any:
        caller = Caller(peer_id="w")
        if kind == "complete":
            follow_ups = [new_item(f"after-{lease.fence}")] if how == 1 else None
            return cmd.CompleteItem(lease.token, caller, follow_ups=follow_ups)
        if kind == "fail":
            return cmd.FailItem(lease.token, caller, mode=("retry", "dead", "release")[how % 3])
        if kind == "release":
            return cmd.ReleaseItem(lease.token, caller, delay_ms=(None, 0, 300)[how % 3])
        return cmd.ExtendLease(lease.token, caller)

    async def _acknowledge(self, shard: Shard, facts: Callable[[], Facts], kind: str, pick: int, how: int) -> None:
        lease = self._pick(pick)
        if lease is not None:
            [outcome] = await shard.acknowledge([self._command(kind, lease, how)])
            self._check_outcome(shard, facts(), kind, lease, outcome)

    async def _acks(self, shard: Shard, facts: Callable[[], Facts], pick: int, count: int) -> None:
        kinds = ["complete", "heartbeat", "fail", "release"]
        chosen = [(kinds[(pick + n) % 4], self._pick(pick + n)) for n in range(count)]
        made = [(kind, lease) for kind, lease in chosen if lease is not None]
        outcomes = await shard.acknowledge([self._command(kind, lease, 0) for kind, lease in made])
        for (kind, lease), outcome in zip(made, outcomes, strict=True):
            self._check_outcome(shard, facts(), kind, lease, outcome)

    def _check_outcome(self, shard: Shard, facts: Facts, kind: str, lease: GrantedLease, outcome: Any) -> None:
        lease_id = lease.token.lease_id
        if isinstance(outcome, HeartbeatAnswer):
            assert outcome.expires_at <= facts.deadlines[lease_id], "an extension was shown too early"
        elif isinstance(outcome, CompleteAnswer | FailAnswer):
            assert facts.verbs.get(lease_id) == kind, f"{kind} was answered before it was durable"
            follow_ups = outcome.follow_up_ids if isinstance(outcome, CompleteAnswer) else None
            assert facts.enqueued.issuperset(follow_ups or ())
        else:
            assert isinstance(outcome, FailedPrecondition), outcome
            over = lease_id in facts.verbs or shard.now_ms() >= facts.deadlines[lease_id]
            assert over, f"{kind} was refused because of something that is not durable: {outcome!r}"

    # -- looking ---------------------------------------------------------------------------------

    async def _get(self, shard: Shard, facts: Callable[[], Facts], pick: int, _: int, wait_ms: int = 0) -> None:
        if not self.known:
            return
        sequence_id = self.known[-1 - pick % len(self.known)]
        try:
            view = await shard.get(sequence_id, wait_ms=wait_ms)
        except NotFound:
            self._check_gone(sequence_id, facts())
            return
        token = view.ownership_token
        if token is not None:
            assert facts().granted.get(token.lease_id), "a lease was shown too early"
            assert view.expires_at is not None
            assert view.expires_at <= facts().deadlines[token.lease_id]
        elif view.state not in ("ready", "delayed"):
            assert any(how == view.state for how in facts().ends(sequence_id)), "an end was shown too early"

    async def _wait(self, shard: Shard, facts: Callable[[], Facts], pick: int, _: int) -> None:
        await self._get(shard, facts, pick, 0, wait_ms=2_000)

    async def _stats(self, shard: Shard, facts: Callable[[], Facts], _: int, __: int) -> None:
        """Counts are those of one moment, and that moment is durable."""
        stats = await shard.stats()
        durable = facts().events
        assert stats.last_sequence <= facts().last, "a state was shown that a crash could take back"
        state = replay([event for event in durable if event.sequence_number <= stats.last_sequence])
        assert stats.pending_count == state.pending_count
        assert stats.active_lease_count == state.leased.live
        assert stats.dead_letter_count == len(state.dead)
        assert stats.completed_count == len(state.finished)

    def _check_gone(self, sequence_id: int, facts: Facts) -> None:
        assert "drained" in facts.ends(sequence_id), f"item {sequence_id} vanished"
