"""What workers do, as rules of the state machine: enqueue, lease, heartbeat, complete, fail, release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from omnirelay.core import commands as cmd
from omnirelay.core.decide import apply
from tests.builders import lease_id
from tests.property import strategies as draw
from tests.property.comparing import assert_grant, through_snapshot
from tests.property.core_machine import PICKS, CoreDriver
from tests.property.model import Record, Token, Who
from tests.property.strategies import caller_of, new_item_of, token_of


def was_leased(machine: CoreDriver) -> bool:
    return bool(machine.tokens)


class WorkRules(CoreDriver):
    repeat: Callable[[], None] | None = None

    # -- coming in -----------------------------------------------------------------------------

    @rule(specs=st.lists(draw.MOSTLY_GOOD_SPECS, min_size=1, max_size=4), who=draw.WHO)
    def enqueue(self, specs: list[Record], who: Who) -> None:
        done = self.command(
            cmd.EnqueueItems([new_item_of(spec) for spec in specs], caller_of(who)),
            lambda: self.model.enqueue(specs, who, self.now),
        )
        if done is not None:
            answer, (results, pending, leased) = done
            assert [(each.sequence_id, each.duplicate) for each in answer.results] == results
            numbers = [number for number, _ in results]
            assert answer.all_new == (not any(duplicate for _, duplicate in results))
            assert not answer.all_new or numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert (answer.pending_count, answer.active_lease_count) == (pending, leased)
            self.acknowledged |= {sequence_id for sequence_id, _ in results}

    # -- leasing -------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.acknowledged))
    @rule(who=draw.WHO, count=st.integers(1, 4), duration=draw.DURATIONS, request=draw.REQUESTS)
    def grant(self, who: Who, count: int, duration: int | None, request: str | None) -> None:
        done = self.command(
            cmd.GrantLeases(caller_of(who), count, duration, request),
            lambda: self._expect_grant(who, count, duration, request),
        )
        if done is not None:
            answer, expected = done
            assert len(answer) == len(expected)
            for granted, lease in zip(answer, expected, strict=True):
                assert_grant(granted, lease, self.model, self.now)

    def _expect_grant(self, who: Who, count: int, duration: int | None, request: str | None) -> list[Record]:
        """Which lease id and fence a new lease gets is not for the model to say: both count up here. Nor is the order
        of items, as long as every ready one has its turn: the machine of the gates has a model of that.
        """
        everything = cmd.GrantLeases(items_max=1000)
        turns = [lease.sequence_id for lease in apply(through_snapshot(self.state), everything, self.now, 0, str, [])]
        fresh, leases = self.model.grant(who, count, duration, request, self.now, turns)
        if fresh:
            for index, lease in enumerate(leases):
                item, fence = lease["item"], self.state.sequence + 1 + index
                token = (item["sequence_id"], item["attempt"], lease_id(len(self.tokens) + 1), fence)
                self.model.name_lease(lease, token)
                self.tokens.append((token, who))
        return leases

    @rule(
        specs=st.lists(draw.GOOD_SPECS, min_size=1, max_size=3),
        who=draw.WHO,
        request=draw.REQUESTS,
        mode=st.sampled_from([None, None, "dead", "retry"]),
    )
    def enqueue_and_lease(self, specs: list[Record], who: Who, request: str | None, mode: str | None) -> None:
        """What most stories begin with: some work that is leased, and one piece of it maybe given up."""
        self.enqueue(specs, who)
        self.grant(who, len(specs), None, request)
        if mode is not None and self.tokens:
            self.fail(1, "", mode, (None, None), None, 0)

    def _token(self, pick: int, how: str) -> tuple[Token, Who]:
        """A token to acknowledge with: of a live lease for most picks, of any lease ever for the others."""
        live = [item["lease"]["token"] for item in self.model.having("leased")]
        known = [entry for entry in self.tokens if entry[0] in live] if live and pick % 5 else self.tokens
        return draw.mangle(*known[-1 - pick // 5 % len(known)], how)

    @precondition(was_leased)
    @rule(pick=PICKS, how=draw.MANGLED, progress=draw.PROGRESS, late=draw.LATE_MS)
    def heartbeat(self, pick: int, how: str, progress: Record | None, late: int) -> None:
        self._heartbeat(*self._token(pick, how), progress, late)

    @precondition(was_leased)
    @rule(
        pick=PICKS,
        progress=draw.PROGRESS,
        every_ms=st.sampled_from([100, 299, 450, 800]),
        times=st.integers(2, 6),
    )
    def keep_heartbeating(self, pick: int, progress: Record | None, every_ms: int, times: int) -> None:
        """A worker at work, that reports sooner than it has to, or just in time."""
        token, who = self._token(pick, "")
        for _ in range(times):
            self.now += every_ms
            self._heartbeat(token, who, progress, 0)

    def _heartbeat(self, token: Token, who: Who, progress: Record | None, late: int) -> None:
        given = None if progress is None else cmd.Progress(**progress)
        done = self.command(
            cmd.ExtendLease(token_of(token), caller_of(who), given),
            lambda: self.model.heartbeat(token, who, progress, self.now, self.now - late),
            self.now - late,
        )
        if done is not None:
            answer, (lease, may, must) = done
            assert may if answer.extended else not must, (may, must, answer)
            if answer.extended:
                self.model.extend(lease, self.now)
            assert answer.expires_at == lease["deadline"], "a heartbeat never fakes an extension"
            assert answer.remaining_ms == lease["deadline"] - self.now
            assert answer.heartbeat_after_ms == self.model.interval(lease["duration"])
            assert answer.cancel_requested == lease["item"]["cancel"]

    @precondition(was_leased)
    @rule(
        pick=PICKS,
        how=draw.MANGLED,
        result=draw.RESULTS,
        follow_ups=st.one_of(st.just([]), st.lists(draw.MOSTLY_GOOD_SPECS, max_size=3)),
        late=draw.LATE_MS,
    )
    def complete(
        self,
        pick: int,
        how: str,
        result: tuple[bytes, str | None] | None,
        follow_ups: list[Record],
        late: int,
    ) -> None:
        token, who = self._token(pick, how)
        self.repeat = lambda: self._complete(token, who, result, follow_ups, late)
        self.repeat()

    def _complete(
        self,
        token: Token,
        who: Who,
        result: tuple[bytes, str | None] | None,
        follow_ups: list[Record],
        late: int,
    ) -> None:
        body, encoding = result or (None, None)
        items = [new_item_of(spec) for spec in follow_ups]
        done = self.command(
            cmd.CompleteItem(token_of(token), caller_of(who), body, encoding, items or None),
            lambda: self.model.complete(token, who, result, follow_ups, self.now, self.now - late),
            self.now - late,
        )
        if done is not None:
            assert done[0].follow_up_ids == done[1]
            self.acknowledged |= set(done[1] or ())

    @precondition(was_leased)
    @rule(
        pick=PICKS,
        how=draw.MANGLED,
        mode=st.sampled_from(["retry", "retry", "release", "dead"]),
        error=draw.ERRORS,
        delay=draw.DELAYS,
        late=draw.LATE_MS,
    )
    def fail(
        self,
        pick: int,
        how: str,
        mode: Any,
        error: tuple[str | None, str | None],
        delay: int | None,
        late: int,
    ) -> None:
        token, who = self._token(pick, how)
        self.repeat = lambda: self._fail(token, who, mode, error, delay, late)
        self.repeat()

    def _fail(
        self,
        token: Token,
        who: Who,
        mode: Any,
        error: tuple[str | None, str | None],
        delay: int | None,
        late: int,
    ) -> None:
        done = self.command(
            cmd.FailItem(token_of(token), caller_of(who), mode, error[0], error[1], delay),
            lambda: self.model.fail(token, who, mode, error, delay, self.now, self.now - late),
            self.now - late,
        )
        self._check_end(done)

    @precondition(was_leased)
    @rule(pick=PICKS, how=draw.MANGLED, delay=draw.DELAYS, late=draw.LATE_MS)
    def release(self, pick: int, how: str, delay: int | None, late: int) -> None:
        token, who = self._token(pick, how)
        self.repeat = lambda: self._release(token, who, delay, late)
        self.repeat()

    @precondition(lambda self: self.repeat is not None)
    @rule()
    def acknowledge_again(self) -> None:
        """A caller that did not hear the answer asks again, whatever has happened since."""
        assert self.repeat is not None
        self.repeat()

    def _release(self, token: Token, who: Who, delay: int | None, late: int) -> None:
        done = self.command(
            cmd.ReleaseItem(token_of(token), caller_of(who), delay),
            lambda: self.model.release(token, who, delay, self.now, self.now - late),
            self.now - late,
        )
        self._check_end(done)

    def _check_end(self, done: tuple[Any, Any] | None) -> None:
        if done is not None:
            answer, (where, not_before) = done
            assert answer.state == where
            if isinstance(not_before, int | None):
                assert answer.not_before == not_before
            else:
                assert not_before.low <= answer.not_before <= not_before.high
