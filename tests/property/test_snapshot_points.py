"""A snapshot of any moment, and the events after it, give what the whole log gives: also where several pauses end
at once, and where limits hold everybody back.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core import commands as cmd
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.snapshot import digest
from tests.builders import Kernel, new_item, replay
from tests.property.comparing import through_snapshot
from tests.property.gates_driver import next_grants
from tests.property.strategies import profile

TYPES = ["a", "b", "c"]
TENANTS = ["x", "y"]
ITEMS = st.lists(
    st.builds(
        new_item,
        resource_type=st.sampled_from(TYPES),
        attributes=st.sampled_from(TENANTS).map(lambda tenant: {"tenant": tenant}),
        priority=st.sampled_from([5, 5, 0]),
        weight=st.sampled_from([1, 1, 3]),
        delay_ms=st.sampled_from([None, None, None, 1_000]),
    ),
    min_size=1,
    max_size=4,
)
SCOPES = st.sampled_from([{"resource_type": kind} for kind in TYPES] + [{"tenant": tenant} for tenant in TENANTS])
STEPS = st.one_of(
    st.tuples(st.just("enqueue"), ITEMS),
    st.tuples(st.just("lease"), st.integers(1, 2)),
    st.tuples(st.just("end"), st.sampled_from(["complete", "fail", "release"])),
    st.tuples(st.just("pause"), st.tuples(SCOPES, st.sampled_from([1_000, 1_000, 2_000, None]))),
    st.tuples(st.just("resume"), SCOPES),
    st.tuples(st.just("wait"), st.sampled_from([10, 1_000, 2_000])),
)
OPTIONS = st.sampled_from(
    [
        QueueOptions(),
        QueueOptions(limits=[Limit(by="tenant", max=2)]),
        QueueOptions(limits=[Limit(by="type", match="a", max=1), Limit(by="tenant", match="x", max=3)]),
        QueueOptions(ordering="exclusive"),
    ]
)


def take_step(kernel: Kernel, verb: str, what: Any) -> None:
    if verb == "enqueue":
        kernel.enqueue(*what)
    elif verb == "lease":
        kernel.lease(what)
    elif verb == "end":
        leased = [item.lease.token for item in kernel.state.leased if item.lease is not None]
        if leased:
            {"complete": kernel.complete, "fail": kernel.fail, "release": kernel.release}[what](leased[0])
    elif verb == "pause":
        scope, lasts_ms = what
        kernel.do(cmd.PauseScope(**scope, until_ms=None if lasts_ms is None else kernel.now_ms + lasts_ms))
    elif verb == "resume":
        kernel.do(cmd.ResumeScope(**what))
    else:
        kernel.pass_time(what)


@profile(400)
@given(options=OPTIONS, before=st.lists(STEPS, max_size=25), after=st.lists(STEPS, max_size=15))
def test_a_snapshot_and_the_events_after_it_give_what_the_whole_log_gives(
    options: QueueOptions, before: list[tuple[str, Any]], after: list[tuple[str, Any]]
) -> None:
    kernel = Kernel(options)
    for verb, what in before:
        take_step(kernel, verb, what)
    snapshot, written = through_snapshot(kernel.state), len(kernel.events)
    for verb, what in after:
        take_step(kernel, verb, what)
    recovered = replay(kernel.events[written:], snapshot)
    assert digest(recovered) == kernel.digest() == digest(kernel.replayed())
    assert next_grants(recovered, kernel.now_ms) == next_grants(through_snapshot(kernel.state), kernel.now_ms)
