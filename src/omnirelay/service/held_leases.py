"""Which stream holds which lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from omnirelay.core import events as ev
from omnirelay.core.payload import OwnershipToken


class Holder(Protocol):
    """A stream, as far as this is concerned."""

    def ended(self, token: OwnershipToken) -> None:
        """The lease is over, or another stream has it."""
        ...

    def lost(self, token: OwnershipToken) -> None: ...

    def cancel_requested(self, token: OwnershipToken) -> None: ...

    def stop(self) -> None: ...


class HeldLeases:
    """Which stream of a shard holds which leases, so that a cancellation or a loss reaches the right one."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[OwnershipToken, Holder]] = {}

    def add(self, token: OwnershipToken, stream: Holder) -> None:
        """The stream holds it from now on. One that held it before is dead or its peer has gone over: when that one
        ends, it must not release what is worked on here.
        """
        before = self._streams.get(token.sequence_id)
        if before is not None and before[1] is not stream:
            before[1].ended(before[0])
        self._streams[token.sequence_id] = (token, stream)

    def remove(self, token: OwnershipToken, stream: Holder) -> None:
        held = self._streams.get(token.sequence_id)
        if held is not None and held[1] is stream and held[0].lease_id == token.lease_id:
            del self._streams[token.sequence_id]

    def stop(self) -> None:
        """The shard is about to close: every stream gives back what its peer has not begun, while there is somebody to
        take it.
        """
        for stream in {id(stream): stream for _, stream in self._streams.values()}.values():
            stream.stop()

    def take(self, events: Sequence[ev.Event]) -> None:
        """Look at durable events: tell streams what they could not know."""
        if not self._streams:
            return
        for event in events:
            kind = type(event)
            if kind is ev.Completed or kind is ev.Failed or kind is ev.Released or kind is ev.Expired:
                token = event.ownership  # type: ignore[union-attr]
                held = self._streams.get(token.sequence_id)
                if held is not None and held[0].lease_id == token.lease_id:
                    del self._streams[token.sequence_id]
                    if kind is ev.Expired:
                        held[1].lost(held[0])
                    else:
                        held[1].ended(held[0])
            elif kind is ev.CancelRequested or kind is ev.Cancelled:
                held = self._streams.get(event.sequence_id)  # type: ignore[union-attr]
                if held is not None:
                    if kind is ev.CancelRequested:
                        held[1].cancel_requested(held[0])
                    else:
                        del self._streams[event.sequence_id]  # type: ignore[union-attr]
                        held[1].lost(held[0])
