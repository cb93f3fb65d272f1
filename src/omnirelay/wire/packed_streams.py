"""Messages of the lease stream as MessagePack: one map, or an array of them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omnirelay.wire import requests as asked
from omnirelay.wire.forms import is_array
from omnirelay.wire.packed import UNREADABLE, as_json, check_elements, has_progress, parsed, spelled_out
from omnirelay.wire.reading import OBJECTS_MAX
from omnirelay.wire.streams import MESSAGES_MAX, Received, StreamMessage, read_messages


class _Outline(asked.Incoming):
    """What a message is made of, without a look at what is in it: no more than a few objects."""

    id: msgspec.Raw = msgspec.Raw()
    open: msgspec.Raw = msgspec.Raw()
    withdraw: msgspec.Raw = msgspec.Raw()
    credit: msgspec.Raw = msgspec.Raw()
    begin: msgspec.Raw = msgspec.Raw()
    acks: msgspec.Raw = msgspec.Raw()
    call: msgspec.Raw = msgspec.Raw()
    abandon: msgspec.Raw = msgspec.Raw()
    clock: msgspec.Raw = msgspec.Raw()


_one = msgspec.msgpack.Decoder(StreamMessage)
_many = msgspec.msgpack.Decoder(Annotated[list[StreamMessage], Meta(max_length=MESSAGES_MAX)])
_outline = msgspec.msgpack.Decoder(_Outline)
_outlines = msgspec.msgpack.Decoder(Annotated[list[_Outline], Meta(max_length=MESSAGES_MAX)])


def read_packed_messages(data: bytes) -> list[Received]:
    """One message or an array of them. Raises InvalidArgument when it is not MessagePack, or not made of maps.

    What does not fit at first sight is read as the JSON it stands for.
    """
    try:
        if len(data) > OBJECTS_MAX or has_progress(data):
            _check(data)
        messages = _many.decode(data) if is_array(data) else [_one.decode(data)]
    except UNREADABLE:
        value = parsed(data)
        for message in value if isinstance(value, list) else [value]:
            _spell_out(message)
        return read_messages(as_json(value))
    return [Received(message, message.acks, packed=True) for message in messages]


def _spell_out(message: Any) -> None:
    """Leave no compact forms in the request of a call, in whatever case the names around it are."""
    for call in _named("call", message):
        kinds = [asked.REQUESTS.get(verb) for verb in _named("verb", call) if isinstance(verb, str)]
        for request in _named("request", call):
            for kind in kinds:
                spelled_out(kind, request)


def _named(name: str, value: Any) -> list[Any]:
    if not isinstance(value, dict):
        return []
    return [each for key, each in value.items() if isinstance(key, str) and key.lower() == name]


def _check(data: bytes) -> None:
    """Refuse too many elements, and names that are none. Those of the request of a call are looked at by who reads it:
    it may be one of the large batches that are bounded by their type, and counting costs more than reading those.
    """
    outlines = _outlines.decode(data) if is_array(data) else [_outline.decode(data)]
    size = 0
    for outline in outlines:
        acks = bytes(outline.acks)
        if has_progress(acks):
            check_elements(acks, names=True)
        size += len(acks) + sum(len(bytes(each)) for each in (outline.open, outline.begin, outline.abandon))
    if size > OBJECTS_MAX:
        check_elements(data)
