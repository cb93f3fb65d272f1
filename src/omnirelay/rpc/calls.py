"""One call: what came with it, and what goes back. The same for every transport.

Plain classes: the constructor that `dataclass` writes would not be compiled with the rest, and every call makes three.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from omnirelay.errors import DeadlineExceeded
from omnirelay.wire.requests import WAIT_MAX_MS

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

ANSWER_SECONDS = 0.001
"""What is left before a deadline for an answer that must not become an error because of it."""

AnswerForm: TypeAlias = Literal["json", "packed", "compact"]
"""How an answer is written: as JSON, as MessagePack, or as MessagePack with its compact forms."""


class RequestMeta:
    """What a caller says about its call besides the body. Header names are in lower case."""

    __slots__ = (
        "answer_form",
        "caller",
        "deadline",
        "encoding",
        "headers",
        "principal",
        "procedure",
        "routing_delegate",
        "routing_key",
        "service",
        "shard_key",
        "transport",
    )

    def __init__(
        self,
        *,
        procedure: str,
        service: str = "",
        caller: str | None = None,
        encoding: str | None = None,
        transport: str = "in-process",
        shard_key: str | None = None,
        routing_key: str | None = None,
        routing_delegate: str | None = None,
        deadline: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        principal: str | None = None,
        answer_form: AnswerForm = "json",
    ) -> None:
        self.procedure = procedure
        self.service = service
        self.caller = caller
        self.encoding = encoding
        self.transport = transport
        self.shard_key = shard_key
        self.routing_key = routing_key
        self.routing_delegate = routing_delegate
        self.deadline = deadline
        """In the time of the event loop, which is `time.monotonic`; None: the caller waits for as long as it takes."""
        self.headers = headers
        self.principal = principal
        """Who the caller is, when somebody has verified it. Never taken from a header."""
        self.answer_form: AnswerForm = answer_form

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


class Call:
    """A call on its way to a handler."""

    __slots__ = ("body", "meta", "packed")

    def __init__(self, meta: RequestMeta, body: bytes = b"", packed: bool = False) -> None:
        self.meta = meta
        self.body = body
        self.packed = packed
        """The body is MessagePack."""


class Reply:
    """What goes back. `undelivered` is called when nobody is there any more to take it."""

    __slots__ = ("body", "encoding", "headers", "undelivered")

    def __init__(
        self,
        body: bytes = b"",
        headers: Mapping[str, str] = NO_HEADERS,
        encoding: str = "json",
        undelivered: Callable[[], None] | None = None,
    ) -> None:
        self.body = body
        self.headers = headers
        self.encoding = encoding
        self.undelivered = undelivered


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
