"""Telling another process what was intended and what was acknowledged.

One JSON object per line on the standard output, written at once and whole, so that whatever the parent has
read by the time this process is gone is exactly what this process had been told by then.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from omnirelay.errors import OmniRelayError

_encode = msgspec.json.Encoder().encode


class Recorder:
    def __init__(self, round_number: int) -> None:
        self.acknowledged = 0
        self._round = round_number
        self._calls = 0

    def intend(self, operation: str, **arguments: Any) -> str:
        """Say what is about to be asked for; returns the name of the call."""
        self._calls += 1
        call = f"{self._round}.{self._calls}"
        self.say("intent", call=call, op=operation, **arguments)
        return call

    def done(self, call: str, **outcome: Any) -> None:
        """The call returned: from here on its outcome may never be taken back."""
        self.acknowledged += 1
        self.say("done", call=call, **outcome)

    def refused(self, call: str, error: OmniRelayError, at_ms: int) -> None:
        self.say("refused", call=call, code=error.code, at=at_ms)

    def abandoned(self, call: str) -> None:
        """The caller left before the answer came: it may or may not have happened."""
        self.say("abandoned", call=call)

    def say(self, kind: str, **fields: Any) -> None:
        line = _encode({"kind": kind, **fields}) + b"\n"
        while line:
            line = line[os.write(1, line) :]
