"""Intake that something outside of the shard closes: causes beside the watermarks, in state, log and snapshots."""

from __future__ import annotations

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core import views
from omnirelay.core.closures import CLOSURES_MAX, Closure
from omnirelay.core.options import QueueOptions
from omnirelay.core.snapshot import digest, dump
from omnirelay.core.why import why
from omnirelay.errors import InvalidArgument, ResourceExhausted
from omnirelay.node.sink_keys import fields_of_sink, sink_problems
from tests.builders import START_MS, WORKER, Kernel, new_item, replay
from tests.gates import fill, grant, signal, through_snapshot

LAG = "replication.lag:audit"
REASON = "sink audit is 120 events behind, 100 are allowed"


def close(kernel: Kernel, cause: str = LAG, reason: str = REASON) -> bool:
    closed: bool = kernel.do(cmd.CloseIntake(cause, reason))
    return closed


def reopen(kernel: Kernel, cause: str = LAG) -> bool:
    opened: bool = kernel.do(cmd.OpenIntake(cause, "it has caught up"))
    return opened


def refused(kernel: Kernel) -> ResourceExhausted:
    error = kernel.refusal(cmd.EnqueueItems([new_item()], WORKER))
    assert isinstance(error, ResourceExhausted)
    return error


def test_a_cause_closes_intake_with_its_reason_until_it_opens_it_again() -> None:
    kernel = Kernel()
    kernel.enqueue()
    assert close(kernel)
    error = refused(kernel)
    assert (error.code, error.message) == ("error.resourcelease.backpressure", REASON)
    assert error.details["causes"] == LAG
    assert error.retry_after_ms is not None
    view = views.backpressure(kernel.state)
    assert (view.active, view.since, view.reason) == (True, START_MS, REASON)
    assert view.causes == (Closure(LAG, REASON, START_MS),)
    assert why(kernel.state, 1, kernel.now_ms).intake == REASON
    kernel.now_ms += 7
    assert reopen(kernel)
    kernel.enqueue()
    view = views.backpressure(kernel.state)
    assert (view.active, view.since, view.reason, view.causes) == (False, START_MS + 7, None, ())
    assert why(kernel.state, 1, kernel.now_ms).intake is None


def test_the_event_names_the_cause_the_reason_and_what_else_closes_intake() -> None:
    kernel = Kernel(QueueOptions(high_watermark=2, low_watermark=0))
    fill(kernel, 2)
    signal(kernel)
    close(kernel)
    closing = kernel.events[-1]
    assert isinstance(closing, ev.BackpressureChanged)
    assert (closing.active, closing.cause, closing.reason, closing.others) == (True, LAG, REASON, ["depth"])
    assert (closing.pending, closing.high_watermark, closing.low_watermark) == (2, 2, 0)
    close(kernel, "other", "because")
    reopen(kernel)
    opening = kernel.events[-1]
    assert isinstance(opening, ev.BackpressureChanged)
    assert (opening.active, opening.cause, opening.others) == (False, LAG, ["depth", "other"])
    heard = views.changed_backpressure(kernel.state, opening, "s")
    assert (heard.active, [cause.cause for cause in heard.causes]) == (True, ["depth", "other"])
    assert heard.causes[1].reason == "because"


def test_what_lives_goes_on_while_intake_is_closed() -> None:
    kernel = Kernel()
    fill(kernel, 5)
    close(kernel)
    first, second, third, fourth = grant(kernel, 4)
    kernel.complete(first.token)
    kernel.do(cmd.ExtendLease(second.token, WORKER))
    kernel.do(cmd.FailItem(second.token, WORKER, mode="dead"))
    kernel.do(cmd.ReleaseItem(third.token, WORKER))
    answer = kernel.do(cmd.CompleteItem(fourth.token, WORKER, follow_ups=[new_item("next")]))
    assert answer.follow_up_ids
    kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(everything=True)))
    assert kernel.state.pending_count == 4
    refused(kernel)


def test_a_repeated_request_is_answered_while_intake_is_closed() -> None:
    kernel = Kernel()
    item = new_item(request_id="r")
    kernel.do(cmd.EnqueueItems([item], WORKER))
    close(kernel)
    [again] = kernel.do(cmd.EnqueueItems([item], WORKER)).results
    assert again.duplicate


def test_saying_it_twice_changes_nothing_and_keeps_the_first_reason() -> None:
    kernel = Kernel()
    assert not reopen(kernel)
    assert close(kernel)
    assert not close(kernel, reason="another reason")
    assert refused(kernel).message == REASON
    assert reopen(kernel)
    assert not reopen(kernel)
    assert sum(isinstance(event, ev.BackpressureChanged) for event in kernel.events) == 2


def test_a_cause_does_not_touch_the_cooldown_of_the_watermarks() -> None:
    kernel = Kernel(QueueOptions(high_watermark=2, low_watermark=0, backpressure_cooldown_ms=1_000))
    fill(kernel, 2)
    assert signal(kernel)
    for lease in grant(kernel, 2):
        kernel.complete(lease.token)
    due = kernel.state.backpressure_due()
    kernel.now_ms += 500
    close(kernel)
    reopen(kernel)
    assert kernel.state.backpressure_due() == due
    kernel.now_ms += 500
    assert signal(kernel)
    assert not kernel.state.backpressure


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (cmd.CloseIntake("", REASON), "cause"),
        (cmd.CloseIntake("depth", REASON), "cause"),
        (cmd.CloseIntake("x" * 2_000, REASON), "cause"),
        (cmd.CloseIntake("x", "  "), "reason"),
        (cmd.CloseIntake("x", "a\x00b"), "reason"),
        (cmd.OpenIntake(" "), "cause"),
    ],
)
def test_a_bad_cause_is_refused_by_name(command: cmd.Command, field: str) -> None:
    error = Kernel().refusal(command)
    assert isinstance(error, InvalidArgument)
    assert error.details["field"] == field


def test_causes_are_bounded() -> None:
    kernel = Kernel()
    for number in range(CLOSURES_MAX):
        close(kernel, f"cause {number}")
    assert isinstance(kernel.refusal(cmd.CloseIntake("one more", REASON)), InvalidArgument)


def test_causes_survive_log_and_snapshot() -> None:
    kernel = Kernel()
    close(kernel)
    close(kernel, "other", "because")
    copy = through_snapshot(kernel.state)
    assert copy.closures == kernel.state.closures
    assert digest(copy) == digest(replay(kernel.events)) == digest(kernel.state)
    reopen(kernel)
    reopen(kernel, "other")
    assert digest(through_snapshot(kernel.state)) == digest(kernel.state)


def test_a_state_that_never_had_one_is_written_as_it_always_was() -> None:
    kernel = Kernel(QueueOptions(high_watermark=1))
    kernel.enqueue()
    signal(kernel)
    _, chunks = dump(kernel.state)
    assert not any(b"closures" in chunk for chunk in chunks)
    close(kernel)
    _, chunks = dump(kernel.state)
    assert sum(b"closures" in chunk for chunk in chunks) == 1


# -- settings --------------------------------------------------------------------------------------


def test_limits_go_with_required_sinks_only() -> None:
    limits = {"kind": "memory", "lag_events_max": 5, "lag_max_ms": 7, "max_retained_bytes": 9}
    assert sink_problems(limits, (), ["s"]) == [
        (key, "goes with required = true only") for key in ("lag_events_max", "lag_max", "max_retained_bytes")
    ]
    assert sink_problems({**limits, "required": True}, (), ["s"]) == []
    assert sink_problems({**limits}, ("required",), ["s"]) == []


def test_what_happens_beyond_a_limit_needs_the_limit() -> None:
    asked = {"kind": "memory", "required": True, "on_retention_exceeded": "drop_requirement"}
    assert sink_problems(asked, (), ["s"]) == [("on_retention_exceeded", "has no meaning without max_retained_bytes")]
    assert sink_problems({**asked, "max_retained_bytes": 1}, (), ["s"]) == []
    assert fields_of_sink({**asked, "max_retained_bytes": 1})["follow"].on_retention_exceeded == "drop_requirement"
