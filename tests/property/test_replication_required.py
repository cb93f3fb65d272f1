"""Causes that close intake, against a model that is too simple to be wrong: a set of names and two watermarks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core import views
from omnirelay.core.options import QueueOptions
from omnirelay.core.snapshot import digest
from omnirelay.errors import ResourceExhausted
from tests.builders import WORKER, Kernel, new_item, replay
from tests.crash.plan import LONG
from tests.gates import through_snapshot

HIGH, LOW, COOLDOWN_MS = 6, 2, 100
CAUSES = ("replication.lag:a", "replication.lag:b", "replication.retention:a")

steps = st.one_of(
    st.tuples(st.just("close"), st.sampled_from(CAUSES)),
    st.tuples(st.just("open"), st.sampled_from(CAUSES)),
    st.tuples(st.just("enqueue"), st.integers(1, 4)),
    st.tuples(st.just("complete"), st.integers(1, 5)),
    st.tuples(st.just("wait"), st.sampled_from([1, COOLDOWN_MS // 2, COOLDOWN_MS])),
    st.tuples(st.just("snapshot"), st.just(0)),
)


class Model:
    """Intake is closed while the set is not empty, or the depth is between its watermarks on the way down."""

    def __init__(self) -> None:
        self.pending = 0
        self.deep = False
        self.changed_at: int | None = None
        self.causes: set[str] = set()

    @property
    def closed(self) -> bool:
        return self.deep or bool(self.causes)

    def signal(self, now_ms: int) -> None:
        wanted = self.pending <= LOW if self.deep else self.pending >= HIGH
        if wanted and (self.changed_at is None or now_ms >= self.changed_at + COOLDOWN_MS):
            self.deep, self.changed_at = not self.deep, now_ms


@settings(max_examples=2_000 if LONG else 150, deadline=None)
@given(st.lists(steps, max_size=60))
def test_causes_never_clear_each_other(script: list[tuple[str, int | str]]) -> None:
    kernel = Kernel(QueueOptions(high_watermark=HIGH, low_watermark=LOW, backpressure_cooldown_ms=COOLDOWN_MS))
    model = Model()
    for verb, value in script:
        if verb == "close":
            assert kernel.do(cmd.CloseIntake(str(value), f"{value} is behind")) == (value not in model.causes)
            model.causes.add(str(value))
        elif verb == "open":
            assert kernel.do(cmd.OpenIntake(str(value))) == (value in model.causes)
            model.causes.discard(str(value))
        elif verb == "enqueue":
            command = cmd.EnqueueItems([new_item() for _ in range(int(value))], WORKER)
            if model.closed:
                refusal = kernel.refusal(command)
                assert isinstance(refusal, ResourceExhausted)
                assert all(f"{cause} is behind" in refusal.message for cause in model.causes)
                assert ("items are pending" in refusal.message) == model.deep
            else:
                kernel.do(command)
                model.pending += int(value)
        elif verb == "complete":
            for lease in kernel.do(cmd.GrantLeases(WORKER, int(value))):
                kernel.complete(lease.token)
                model.pending -= 1
        elif verb == "wait":
            kernel.now_ms += int(value)
        else:
            kernel.state = through_snapshot(kernel.state)
        kernel.do(cmd.SignalBackpressure())
        model.signal(kernel.now_ms)
        view = views.backpressure(kernel.state)
        assert view.active == model.closed
        assert {cause.cause for cause in view.causes} == model.causes | ({"depth"} if model.deep else set())
    assert digest(replay(kernel.events)) == digest(kernel.state)
    _check_that_events_tell_the_whole_story(kernel.events, model)


def _check_that_events_tell_the_whole_story(events: list[ev.Event], model: Model) -> None:
    """A reader outside that follows `active`, `cause` and `others` knows at every event whether intake is closed."""
    held: set[str] = set()
    for event in events:
        if isinstance(event, ev.BackpressureChanged):
            cause = event.cause or "depth"
            assert set(event.others or ()) == held - {cause}
            held = held | {cause} if event.active else held - {cause}
    assert bool(held) == model.closed
