"""Events as JSON text for readers outside, without taking them apart.

What readers get is what is stored, with instants as text and `metadata` behind it. For nearly all events it can be cut
out of the stored bytes: the log writes its own names in its own order and without white space, so the instant of an
event stands last. One with a name that is not ours goes the slow way, `document_of`. Both ways give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from types import NoneType
from typing import Any, Final, Union, get_args

import msgspec

from omnirelay.core.events import Event
from omnirelay.wire.events import INSTANTS, document_of
from omnirelay.wire.instants import instant

_ABSENT: Final = msgspec.Raw(b"")
_LOOKED_AT: Final = ("metadata", "principal", "schemaVersion")
_TOGETHER: Final = 500
"""Read in one step, which holds the interpreter lock for less than a millisecond."""
_encode = msgspec.json.Encoder().encode

_UNUSUAL: Final = re.compile(
    rb',"(?:metadata|schemaVersion|principal|progress|items|notBefore|enqueuedAt|until|downFrom|expiresAt":[^1"])'
)
"""Names that make more of an event than its end and its deadline read otherwise, or that hold what others wrote."""
_BEGINNING: Final = b'\n{"eventType":"'
_DEADLINE: Final = b'"expiresAt":1'
_WITH_DEADLINE: Final = (_BEGINNING + b'LeaseGranted",', _BEGINNING + b'Heartbeat",')
"""The events that have one, always."""
_DEADLINES_MAX: Final = 8
"""Leases of one call have one deadline, and a commit has few calls."""


def lines_of(
    stored: Sequence[bytes | msgspec.Raw], *, shard: str, region: str | None, pending: int | None, active: int | None
) -> bytes:
    """The texts of events of one commit, each with a line feed behind it.

    Most commits are of one instant, and their lines are made without looking at single events: what all of them end
    with is replaced in one go, and so is every deadline.
    """
    around = (shard, region, pending, active)
    lines: bytes | None = b""
    if stored:
        # A line feed cannot stand inside of JSON that has no white space; without one, every line is one event. To look
        # for it before there are some is a matter of one search, which is far quicker than counting.
        alone = b"\n" not in b"".join(stored)
        lines = _lines_of(b"\n".join([b"", *stored, b""]), len(stored), *around) if alone else None
    if lines is None:
        events = [bytes(each) for each in stored]
        texts = texts_of(events, shard=shard, region=region, pending=pending, active=active)
        lines = b"\n".join([*texts, b""])
    return lines


def _lines_of(
    text: bytes, count: int, shard: str, region: str | None, pending: int | None, active: int | None
) -> bytes | None:
    """None when it takes more than replacing. The text begins with a line feed, and has one behind every event."""
    if text.count(_BEGINNING) != count or _UNUSUAL.search(text):
        return None
    digits = text[text.rfind(b":") + 1 : -2]
    if not digits.isdigit():
        return None
    stands, reads = endings_at(int(digits), shard, region, pending, active)
    # As many as there must be; one more would be a field that only looks like ours, further inside.
    deadlines = sum(map(text.count, _WITH_DEADLINE))
    ended, text = replaced(text, stands + b"\n", reads + b"\n")
    if ended != count:
        return None
    dated = with_deadlines(text, deadlines)
    return None if dated is None else dated[1:]


def with_deadlines(text: bytes, count: int) -> bytes | None:
    """With so many deadlines as readers get them; None when there are others, or more different ones than few."""
    for _ in range(_DEADLINES_MAX + 1):
        at = text.find(_DEADLINE)
        if at < 0:
            return text if count == 0 else None
        member = text[at : text.find(b",", at) + 1]
        replacement = _member("expiresAt", int(digits)) if (digits := member[12:-1]).isdigit() else None
        if replacement is None or replacement[0] != member:
            return None
        found, text = replaced(text, *replacement)
        count -= found
    return None


def replaced(text: bytes, stands: bytes, reads: bytes) -> tuple[int, bytes]:
    """How often it stood there, and the text that reads otherwise. What is read is never as long as what stands."""
    result = text.replace(stands, reads)
    return (len(result) - len(text)) // (len(reads) - len(stands)), result


def texts_of(
    stored: Sequence[bytes], *, shard: str, region: str | None, pending: int | None, active: int | None
) -> list[bytes]:
    """What `document_of` makes of each of these stored events, as JSON. Many at once take half the time."""
    around = (shard, region, pending, active)
    return [text for at in range(0, len(stored), _TOGETHER) for text in _texts_of(stored[at : at + _TOGETHER], *around)]


def _texts_of(
    stored: Sequence[bytes], shard: str, region: str | None, pending: int | None, active: int | None
) -> list[bytes]:
    # Of who embedded an older version there may be raw progress with line feeds in it; readers get one line each.
    stored = [msgspec.json.format(data, indent=-1) if b"\n" in data else data for data in stored]
    try:
        outlines: Sequence[Any] = _read_outlines(b"[%b]" % b",".join(stored))
    except msgspec.DecodeError:
        outlines = [_outline_or_none(data) for data in stored]
    endings: dict[int, tuple[bytes, bytes]] = {}
    texts = []
    for data, outline in zip(stored, outlines, strict=True):
        text = None
        if outline is not None:
            timestamp = outline.timestamp
            ending = endings.get(timestamp)
            if ending is None:
                ending = endings[timestamp] = endings_at(timestamp, shard, region, pending, active)
            stands, reads = ending
            # The last member of the object, and so ours whatever is nested in others.
            if data.endswith(stands):
                text = _spliced(data[: -len(stands)], outline, reads)
        if text is None:
            document = document_of(data, shard=shard, region=region, pending=pending, active=active)
            text = _encode(document)
        texts.append(text)
    return texts


def _spliced(text: bytes, outline: Any, ending: bytes) -> bytes | None:
    """The whole text, None when it takes more than splicing."""
    if outline.metadata is not _ABSENT or outline.schemaVersion is not _ABSENT:
        return None
    for name in _OTHER_INSTANTS[type(outline)]:
        value = getattr(outline, name)
        if value is not None:
            replacement = _member(name, value)
            if replacement is None:
                return None
            stands, reads = replacement
            at = text.rfind(stands)  # From the end, where it is found soonest.
            # When somebody else uses the name, too, only one of them is ours.
            if at < 0 or text.rfind(stands, 0, at) >= 0:
                return None
            text = b"%b%b%b" % (text[:at], reads, text[at + len(stands) :])
    if outline.principal is not _ABSENT:
        return b'%b%b,"rpc.principal":%b}}' % (text, ending[:-2], outline.principal)
    return text + ending


def endings_at(
    timestamp: int, shard: str, region: str | None, pending: int | None, active: int | None
) -> tuple[bytes, bytes]:
    """How an event of that instant ends in the log, and how it ends for readers."""
    before = b'{"timestamp":%d}' % timestamp
    after = _encode(document_of(before, shard=shard, region=region, pending=pending, active=active))
    return b"," + before[1:], b"," + after[1:]


@lru_cache(maxsize=4096)
def _member(name: str, ms: int) -> tuple[bytes, bytes] | None:
    text = instant_read(ms)
    if text is None:
        return None
    return b'"%b":%d,' % (name.encode(), ms), b'"%b":"%b",' % (name.encode(), text.encode())


def instant_read(ms: int) -> str | None:
    """As readers get it; None for one that no calendar has."""
    try:
        return instant(ms)
    except OverflowError:
        return None


# -- outlines ------------------------------------------------------------------------------------


def _outline_type(event: type[Any]) -> type[msgspec.Struct] | None:
    """A type that takes exactly the names of an event and leaves everything but instants as it stands.

    None for an event with instants further inside.
    """
    fields: list[tuple[str, Any, Any]] = [(name, msgspec.Raw, _ABSENT) for name in _LOOKED_AT]
    for field in msgspec.structs.fields(event):
        name = field.encode_name
        if name == "items" or (name in INSTANTS and not _is_instant(field.type)):
            return None
        if name == "timestamp":
            fields.append((name, int, 0))
        elif name in INSTANTS:
            fields.append((name, int | None, None))
        elif name not in _LOOKED_AT:
            fields.append((name, msgspec.Raw, _ABSENT))
    name = event.__name__
    return msgspec.defstruct(name, fields, tag_field="eventType", tag=name, forbid_unknown_fields=True, gc=False)


def _is_instant(kind: Any) -> bool:
    return set(get_args(kind) or (kind,)) <= {int, NoneType}


_OUTLINES: Final = [outline for event in get_args(Event) if (outline := _outline_type(event)) is not None]
_OTHER_INSTANTS: Final = {
    outline: tuple(name for name in outline.__struct_fields__ if name in INSTANTS and name != "timestamp")
    for outline in _OUTLINES
}
_Outline: Any = Union[tuple(_OUTLINES)]  # noqa: UP007 -- there is no other way to write a union of a list.
_read_outline: Final = msgspec.json.Decoder(_Outline).decode
_read_outlines: Final = msgspec.json.Decoder(list[_Outline]).decode


def _outline_or_none(data: bytes) -> Any:
    try:
        return _read_outline(data)
    except msgspec.DecodeError:
        return None
