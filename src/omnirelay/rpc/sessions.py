"""Duplex procedures: a session lives as long as its connection and speaks whenever it has something to say.

    transport ── receive(data) ─▶ Session ── outlet.send(data) ─▶ transport

Both directions are plain calls on the event loop: nothing waits, so nothing holds up what comes behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from omnirelay.rpc.calls import RequestMeta

NORMAL = 1000
GOING_AWAY = 1001
POLICY = 1008
TOO_BIG = 1009
RESTARTING = 1012


class Outlet(Protocol):
    """The way out of a session, as its transport provides it."""

    @property
    def congested(self) -> bool:
        """The peer does not read as fast as it is written to. Answers may still be sent, nothing else should be."""
        ...

    def send(self, data: bytes, *, binary: bool = False) -> None:
        """Send one message, as text unless it is `binary`. A peer that leaves too much unread is dropped."""
        ...

    def close(self, code: int = NORMAL, reason: str = "") -> None: ...


class Session(Protocol):
    subprotocol: str | None
    """Which of the ways to talk that the peer offered this session takes; None: the one without a name."""

    def receive(self, data: bytes) -> None:
        """One message of the peer."""
        ...

    def received(self) -> None:
        """That was all that has come so far."""
        ...

    def resumed(self) -> None:
        """The peer has caught up: the outlet is not congested any more."""
        ...

    def closed(self) -> None:
        """The connection is gone. Called once; nothing can be sent any more."""
        ...


OpenSession: TypeAlias = Callable[[RequestMeta, Outlet], Session]
"""Begins a session. Raises OmniRelayError when there can be none."""
