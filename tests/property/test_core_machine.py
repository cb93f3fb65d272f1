"""Core against the naive model: every command, time, crashes, snapshots.

The rules of workers are in `core_machine_work`, what must hold after each step in `core_machine`; here is
what operators and time do.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core import views
from omnirelay.core.decide import apply
from omnirelay.core.items import STATE_NAMES
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ErrorInfo, OwnershipToken
from omnirelay.core.snapshot import digest
from tests.builders import lease_ids, replay
from tests.property import strategies as draw
from tests.property.comparing import assert_drained, through_snapshot
from tests.property.core_machine import PICKS, CoreDriver
from tests.property.core_machine_work import WorkRules
from tests.property.model import Record, Who
from tests.property.strategies import caller_of, payload_of, plain_token, selection_of, token_of

CODES = ["app.boom", "error.resourcelease.undelivered", "error.resourcelease.attempts_exhausted"]

_decode_drained = msgspec.json.Decoder(ev.RestoredItem).decode


def has_pending(machine: CoreDriver) -> bool:
    return bool(machine.model.having("ready", "delayed"))


def has_dead(machine: CoreDriver) -> bool:
    return bool(machine.model.dead())


class CoreMachine(WorkRules):
    def _item(self, pick: int) -> int:
        """An item that is or was, or one that never existed."""
        known = sorted(self.acknowledged)
        return known[-1 - pick % len(known)] if pick % 10 else self.model.next_id + 7

    # -- operators -----------------------------------------------------------------------------

    @precondition(lambda self: bool(self.acknowledged))
    @rule(pick=PICKS, force=st.sampled_from([False, False, True]), reason=st.sampled_from([None, "no longer wanted"]))
    def cancel(self, pick: int, force: bool, reason: str | None) -> None:
        leased = self.model.having("leased")
        sequence_id = leased[-1]["sequence_id"] if leased and pick % 3 else self._item(pick)
        done = self.command(
            cmd.CancelItem(sequence_id, reason=reason, force=force),
            lambda: self.model.cancel(sequence_id, reason, force, self.now),
        )
        if done is not None:
            answer, expected = done
            assert (answer.success, answer.state, answer.cancel_requested) == expected

    @precondition(has_pending)
    @rule(count=st.integers(1, 6))
    def drain(self, count: int) -> None:
        listed = [item.sequence_id for item in self.state.ready]
        done = self.command(cmd.DrainItems(count), lambda: self.model.drain(count, self.now, listed))
        assert done is not None
        answer, (page, remaining) = done
        assert answer.remaining_count == remaining
        for drained, item in zip(answer.items, page, strict=True):
            assert_drained(drained, item)
            self.drained.append((msgspec.json.encode(drained), item))

    @precondition(lambda self: bool(self.drained))
    @rule(picks=st.lists(PICKS, min_size=1, max_size=4), who=draw.WHO)
    def restore_drained(self, picks: list[int], who: Who) -> None:
        """Back where they came from: once, twice, or beside what has come to life again since."""
        self._restore([self.drained[-1 - pick % len(self.drained)] for pick in picks], who)

    @rule(
        specs=st.lists(draw.GOOD_SPECS, min_size=1, max_size=3),
        fences=st.lists(st.sampled_from([None, None, 3, 50, 1 << 40]), min_size=3, max_size=3),
        apart=st.sampled_from([-3, 0, 1, 1_000]),
        attempt=st.integers(1, 4),
        who=draw.WHO,
    )
    def restore_foreign(
        self, specs: list[Record], fences: list[int | None], apart: int, attempt: int, who: Who
    ) -> None:
        """Items of another shard, with ids, attempts and fences of their own."""
        items: list[tuple[bytes, Record]] = []
        for index, (spec, fence) in enumerate(zip(specs, fences, strict=False)):
            sequence_id = max(1, self.model.next_id + apart + index)
            last = None if fence is None else (sequence_id, attempt, f"foreign-{index}", fence)
            restored = ev.RestoredItem(
                sequence_id=sequence_id,
                payload=payload_of(spec),
                attempt=attempt,
                enqueued_at=self.now - 5_000,
                priority=spec["priority"],
                weight=spec["weight"],
                not_before=None if spec["delay"] is None else self.now + spec["delay"],
                max_attempts=spec["max_attempts"],
                last_error=None if fence is None else ErrorInfo("elsewhere"),
                last_ownership_token=None if last is None else OwnershipToken(*last),
            )
            known = {
                "sequence_id": sequence_id,
                "spec": spec,
                "attempt": attempt,
                "enqueued_at": restored.enqueued_at,
                "not_before": restored.not_before,
                "last_error": None if fence is None else ("elsewhere", None),
                "last_token": last,
                "progress": None,
                "parent": None,
                "request": None,
            }
            items.append((msgspec.json.encode(restored), known))
        self._restore(items, who)

    def _restore(self, items: list[tuple[bytes, Record]], who: Who) -> None:
        before = set(self.model.items)
        done = self.command(
            cmd.RestoreItems([_decode_drained(data) for data, _ in items], caller_of(who)),
            lambda: self.model.restore([item for _, item in items], who, self.now),
        )
        if done is not None:
            answer, expected = done
            renumbered = [(each.sequence_id, each.new_sequence_id) for each in answer.renumbered]
            assert (answer.restored_count, answer.duplicate_count, renumbered) == expected
            self.acknowledged |= set(self.model.items) - before

    @precondition(has_dead)
    @rule(pick=PICKS, spec=draw.MOSTLY_GOOD_SPECS)
    def edit(self, pick: int, spec: Record) -> None:
        spec = {**spec, "delay": None, "request": spec["request"] if pick % 3 == 0 else None}
        dead = self.model.dead()
        sequence_id = dead[pick % len(dead)]["sequence_id"] if dead and pick % 5 else self._item(pick)
        self.command(cmd.EditDeadLetter(sequence_id, payload_of(spec)), lambda: self.model.edit(sequence_id, spec))

    def _selection(self, picks: list[int], how: str) -> Record:
        dead = [item["sequence_id"] for item in self.model.dead()]
        kinds: dict[str, Record] = {
            "ids": {"ids": [dead[pick % len(dead)] for pick in picks] if dead else [self._item(picks[0])]},
            "any": {"ids": [self._item(pick) for pick in picks]},
            "type": {"type": ["table", "stream", "view"][picks[0] % 3]},
            "code": {"code": CODES[picks[0] % len(CODES)]},
            "all": {"all": True},
        }
        after = 0 if picks[0] % 2 or not self.model.deaths else self.model.deaths[picks[0] % len(self.deaths)]
        return {"count": 1 + picks[0] % 3, "after": after, **kinds[how]}

    def _stamp(self, order: int) -> int:
        return self.deaths[self.model.deaths.index(order)] if order else 0

    @precondition(has_dead)
    @rule(
        picks=st.lists(PICKS, min_size=1, max_size=3),
        how=st.sampled_from(["all", "all", "ids", "type", "code", "any"]),
        rate=st.sampled_from([None, None, 2, 0.5]),
        fail=st.booleans(),
    )
    def redrive(self, picks: list[int], how: str, rate: float | None, fail: bool) -> None:
        """Dead letters come back, and maybe fail again: their attempts count from here."""
        selection = self._selection(picks, how)
        done = self.command(
            cmd.RedriveItems(selection_of(selection, self._stamp(selection["after"])), rate_per_second=rate),
            lambda: self.model.redrive(selection, rate, self.now),
        )
        if done is not None:
            answer, (count, go_on) = done
            assert (answer.count, answer.next) == (count, go_on if go_on is None else self._stamp(go_on))
        if fail:
            self.grant((None, "p1"), 4, None, None)
            self.fail(1, "", "retry", (None, None), None, 0)

    @precondition(has_dead)
    @rule(
        picks=st.lists(PICKS, min_size=1, max_size=3),
        how=st.sampled_from(["ids", "type", "code", "any"]),
    )
    def purge(self, picks: list[int], how: str) -> None:
        selection = self._selection(picks, how)
        done = self.command(
            cmd.PurgeItems(selection_of(selection, self._stamp(selection["after"]))),
            lambda: self.model.purge(selection, self.now),
        )
        if done is not None:
            answer, (count, go_on) = done
            assert (answer.count, answer.next) == (count, go_on if go_on is None else self._stamp(go_on))

    @precondition(lambda self: len(self.events) % 9 == 7)
    @rule(options=draw.OPTIONS)
    def change_options(self, options: QueueOptions) -> None:
        self.command(cmd.ChangeOptions(options), lambda: self.model.change_options(draw.plain_options(options)))

    # -- time ----------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.tokens))
    @rule(picks=st.lists(PICKS, min_size=1, max_size=3))
    def return_undelivered(self, picks: list[int]) -> None:
        tokens = [self.tokens[-1 - pick % len(self.tokens)][0] for pick in picks]
        self.command(
            cmd.ReturnUndelivered([token_of(token) for token in tokens]),
            lambda: self.model.undelivered(tokens, self.now),
        )

    @rule(ms=draw.STEPS_MS, upkeep=st.sampled_from([True, True, False]), count=st.sampled_from([1, 2, 1_000]))
    def let_time_pass(self, ms: int, upkeep: bool, count: int) -> None:
        """What an engine does about it: delays first, expiries last, then the caps."""
        self.now += ms
        if not upkeep:
            return
        work = self.state.time_has_work(self.now)
        changed = self.model.advance(self.now)
        assert work == changed, "the engine would sleep through this, or wake for nothing"
        if work:
            self.command(cmd.AdvanceTime(), lambda: None)
        late = self.model.due(self.now)
        if late:
            done = self.command(cmd.ExpireLeases(count), lambda: self.model.expire(count, self.now))
            assert done is not None
            assert done[0] == done[1]
        if self.state.caps_exceeded():
            done = self.command(cmd.EnforceCaps(), lambda: self.model.enforce_caps(self.now))
            assert done is not None
            assert done[0] == done[1]
            assert not self.state.caps_exceeded()
        else:
            assert self.model.enforce_caps(self.now) == 0

    @precondition(lambda self: bool(self.model.having("leased")))
    @rule()
    def prove_life(self) -> None:
        self.model.advance(self.now)
        self.command(cmd.AdvanceTime(), lambda: None)

    # -- crashes and snapshots -----------------------------------------------------------------

    @precondition(lambda self: bool(self.acknowledged))
    @rule(down=draw.STEPS_MS, generation=st.sampled_from([None, None, None, None, 0, 10**12]))
    def crash_and_recover(self, down: int, generation: int | None) -> None:
        """All that is left is the log. A start on history not proven complete jumps ahead of it first."""
        self.state = replay(self.events)
        assert digest(self.state) == self.digest
        last_event_at = self.state.time
        self.now += down
        if generation is not None:
            highest = self.state.sequence + generation
            self.command(cmd.StartGeneration("witness missing", highest), lambda: None)
            assert self.state.sequence >= highest + (1 << 32)
            self.model.start_generation(self.state.next_sequence_id)
        self.command(cmd.ElectLeader(2, "node-2", last_event_at), lambda: self.model.restart(last_event_at, self.now))

    @precondition(lambda self: bool(self.acknowledged))
    @rule()
    def go_on_from_a_snapshot(self) -> None:
        self.state = through_snapshot(self.state)
        assert digest(self.state) == self.digest

    @precondition(has_pending)
    @rule(who=draw.WHO, count=st.integers(1, 8), request=draw.REQUESTS)
    def replay_grants_the_same_next(self, who: Who, count: int, request: str | None) -> None:
        """A replica, a recovery and the live shard would all make the same next grants."""
        command = cmd.GrantLeases(caller_of(who), count, None, request)
        ends: list[tuple[list[tuple[int, ...] | None], str]] = []
        for state in (replay(self.events), through_snapshot(self.shadow), through_snapshot(self.state)):
            granted = apply(state, command, self.now, self.now, lease_ids(), [])
            ends.append(([plain_token(each.token)[:2] for each in granted], digest(state)))  # type: ignore[index]
        assert ends[0] == ends[1] == ends[2]

    @precondition(lambda self: bool(self.acknowledged))
    @rule(name=st.sampled_from(STATE_NAMES))
    def look(self, name: str) -> None:
        """Listings and counts agree with the model and change nothing."""
        page = views.peek(self.state, state_name=name)
        assert {each.sequence_id for each in page.items} == {item["sequence_id"] for item in self.model.having(name)}
        assert page.next is None
        stats = views.stats(self.state, self.now)
        assert stats.ready_count == len(self.model.having("ready"))
        assert stats.completed_count == len(self.model.finished())
        assert digest(self.state) == self.digest


@pytest.mark.timeout(7_200 if draw.LONG else 900)
def test_core_does_what_the_naive_model_says() -> None:
    run_state_machine_as_test(CoreMachine, settings=draw.profile(200, long=5_000))
