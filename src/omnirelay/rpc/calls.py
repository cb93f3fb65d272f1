"""One call: what came with it, and what goes back. The same for every transport."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from omnirelay.errors import DeadlineExceeded
from omnirelay.wire.requests import WAIT_MAX_MS

NO_HEADERS: Mapping[str, str] = {}

ANSWER_SECONDS = 0.001
"""What is left before a deadline for an answer that must not become an error because of it."""

AnswerForm: TypeAlias = Literal["json", "packed", "compact"]
"""How an answer is written: as JSON, as MessagePack, or as MessagePack with its compact forms."""


@dataclass(slots=True, kw_only=True)
class RequestMeta:
    """What a caller says about its call besides the body. Header names are in lower case."""

    procedure: str
    service: str = ""
    caller: str | None = None
    encoding: str | None = None
    transport: str = "in-process"
    shard_key: str | None = None
    routing_key: str | None = None
    routing_delegate: str | None = None
    deadline: float | None = None
    """In the time of the event loop, which is `time.monotonic`; None: the caller waits for as long as it takes."""
    headers: Mapping[str, str] = field(default_factory=dict)
    principal: str | None = None
    """Who the caller is, when somebody has verified it. Never taken from a header."""
    answer_form: AnswerForm = "json"

    @property
    def peer_id(self) -> str | None:
        """What the caller calls itself, outside of the body."""
        return self.caller or self.headers.get("x-peer-id")

    def remaining_ms(self) -> float | None:
        """Time until the deadline. Raises DeadlineExceeded when it has passed."""
        if self.deadline is None:
            return None
        remaining_ms = (self.deadline - time.monotonic()) * 1000
        if remaining_ms <= 0:
            raise deadline_passed()
        return remaining_ms

    def wait_ms(self, asked_ms: int | None, *, without_deadline_ms: int) -> int:
        """How long a call that may wait does: as asked, but always back just before the deadline."""
        if self.deadline is None:
            return without_deadline_ms if asked_ms is None else asked_ms
        remaining_ms = (self.deadline - time.monotonic()) * 1000
        # The answer has to travel too; a tenth of what is left, 100 ms at most, is for that.
        usable_ms = max(0, int(min(WAIT_MAX_MS, remaining_ms - min(100.0, remaining_ms / 10))))
        return usable_ms if asked_ms is None else min(asked_ms, usable_ms)

    @property
    def answer_by(self) -> float | None:
        """The last moment for an answer that must not become an error because of the deadline."""
        return None if self.deadline is None else self.deadline - ANSWER_SECONDS


def deadline_passed() -> DeadlineExceeded:
    return DeadlineExceeded("the deadline of the call has passed")


@dataclass(slots=True)
class Call:
    """A call on its way to a handler."""

    meta: RequestMeta
    body: bytes = b""
    packed: bool = False
    """The body is MessagePack."""


@dataclass(slots=True)
class Reply:
    """What goes back. `undelivered` is called when nobody is there any more to take it."""

    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "json"
    undelivered: Callable[[], None] | None = None


@dataclass(slots=True)
class Message:
    """One message of a server stream; `id` lets a reader that lost the connection go on behind it."""

    body: bytes = b""
    id: str | None = None
    kind: str | None = None
    """None is what the stream is for; others tell of the stream itself."""


ENDED = "end"
"""The kind of the last message of a stream that came to its end: a connection may end without a word, too. Its body is
an empty object: browsers pass over events without data.
"""


Messages = AsyncIterator[Message]
