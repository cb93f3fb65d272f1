"""Requests on their way out: each is encoded when it is known over which connection it goes, and in which form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from omnirelay.client.arguments import as_texts
from omnirelay.client.items import ItemSpec, is_plain
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import InvalidArgument
from omnirelay.wire import requests as asked
from omnirelay.wire.forms import Form
from omnirelay.wire.streams import StreamAck

_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


def json_of(value: Any) -> bytes:
    """A value of a caller as JSON. Raises TypeError, ValueError, OverflowError or RecursionError when JSON does not
    have it, so also for NaN and infinity, of which the encoder makes null.
    """
    text = _json(value)
    if b"null" in text:  # Else there is none of them: looking at everything takes longer than encoding it.
        _check_finite(msgspec.to_builtins(value))
    return text


def _check_finite(value: Any) -> None:
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            left.extend(each.values())
        elif isinstance(each, list | tuple):
            left.extend(each)
        elif isinstance(each, float) and not math.isfinite(each):
            raise ValueError(f"it has {each!r}, which is no number there")


def encoded(message: Any, encode: Callable[[Any], bytes] = _json) -> bytes:
    """What a caller gave, as it is sent. Raises InvalidArgument when that cannot be, before anything is sent."""
    try:
        return encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"this cannot be sent as JSON: {error}", field="body") from None


def encoded_ack(ack: StreamAck, form: Form) -> bytes:
    return encoded(ack, _packed_ack if form.binary else _json)


def _packed_ack(ack: StreamAck) -> bytes:
    """With the data of its progress as JSON has it: that is how it is kept, and what JSON does not have is refused here
    in either form.
    """
    progress = ack.progress
    if progress is not None and progress.data is not None:
        ack = replace(ack, progress=replace(progress, data=msgspec.json.decode(_json(progress.data))))
    return _pack(ack)


class Asking:
    """A request of any verb. A repeat is sent as the first was: nothing that a caller changes meanwhile counts."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._encoded: dict[bool, bytes] = {}

    def body(self, *, packed: bool) -> bytes:
        body = self._encoded.get(packed)
        if body is None:
            body = self._encoded[packed] = self._packed() if packed else self._json()
        return body

    def _json(self) -> bytes:
        return encoded(self._request)

    def _packed(self) -> bytes:
        return encoded(self._request, _pack)


class AskingItems(Asking):
    """An enqueue. Raises InvalidArgument when an item has a value that is none."""

    def __init__(self, items: list[ItemSpec], wait_ms: int | None) -> None:
        super().__init__(None)
        self._items = items
        self._wait_ms = wait_ms
        if len(items) == 1:
            as_texts("attributes", items[0].attributes)
        plain = is_plain(items[0]) and (len(items) == 1 or all(map(is_plain, items)))
        self._wires = None if plain else [item.wire() for item in items]

    def _json(self) -> bytes:
        return encoded(self._spelled_out())

    def _packed(self) -> bytes:
        if self._wires is None:
            return encoded({"items": self._items, "waitMs": self._wait_ms}, _pack)
        return encoded(self._spelled_out(), _pack)

    def _spelled_out(self) -> asked.EnqueueRequest:
        wires = self._wires or [item.wire() for item in self._items]
        if len(wires) > 1:
            return asked.EnqueueRequest(items=list(wires), wait_ms=self._wait_ms)
        [wire] = wires
        return asked.EnqueueRequest(
            payload=wire.payload,
            priority=wire.priority,
            weight=wire.weight,
            not_before=wire.not_before,
            delay_ms=wire.delay_ms,
            max_attempts=wire.max_attempts,
            wait_ms=self._wait_ms,
        )


class AskingTokens(Asking):
    """Acknowledgements that say nothing but which leases they are about."""

    def __init__(self, tokens: Sequence[OwnershipToken]) -> None:
        super().__init__(None)
        self._tokens = tokens

    def _json(self) -> bytes:
        return encoded({"acks": [{"ownershipToken": token} for token in self._tokens]})

    def _packed(self) -> bytes:
        return encoded({"acks": [astuple(token) for token in self._tokens]}, _pack)
