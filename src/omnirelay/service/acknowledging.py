"""Acknowledgements as commands: from what a peer sent to what it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omnirelay.core import commands as cmd
from omnirelay.core.events import FailMode
from omnirelay.core.intake import refuse
from omnirelay.core.payload import Caller
from omnirelay.wire import requests as asked


def heartbeat(ack: asked.HeartbeatAck, caller: Caller) -> cmd.ExtendLease:
    return cmd.ExtendLease(ack.token(), caller, None if ack.progress is None else ack.progress.value())


def complete(ack: asked.CompleteAck, caller: Caller) -> cmd.CompleteItem:
    follow_ups = None if ack.follow_ups is None else asked.item_values(ack.follow_ups)
    return cmd.CompleteItem(ack.token(), caller, ack.result, ack.result_encoding, follow_ups)


def fail(ack: asked.FailAck, caller: Caller) -> cmd.FailItem:
    return cmd.FailItem(
        ack.token(), caller, _fail_mode(ack), ack.reason, ack.error_code, ack.delay_ms, ack.metadata or None
    )


_FAIL_MODES: dict[str, FailMode] = {"retry": "retry", "release": "release", "dead": "dead"}


def _fail_mode(ack: asked.FailAck) -> FailMode:
    if ack.mode is None:
        return "retry" if ack.requeue else "dead"
    mode = _FAIL_MODES.get(ack.mode.lower())
    if mode is None:
        refuse("mode", "must be retry, release or dead")
    return mode


def release(ack: asked.ReleaseAck, caller: Caller) -> cmd.ReleaseItem:
    return cmd.ReleaseItem(ack.token(), caller, ack.delay_ms)


ACKS: dict[Any, type[asked.Acknowledgement]] = {
    heartbeat: asked.HeartbeatAck,
    complete: asked.CompleteAck,
    fail: asked.FailAck,
    release: asked.ReleaseAck,
}
"""What each of them is made of."""

ACKNOWLEDGE: dict[str, Callable[[Any, Caller], Any]] = {
    "heartbeat": heartbeat,
    "complete": complete,
    "fail": fail,
    "release": release,
}
"""Acknowledgements by verb: from what a peer sent to the command it means."""
