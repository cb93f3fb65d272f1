"""Commits whose events differ in little: their text for readers outside, without taking them apart.

What many items went through in one call is one commit, and its events are of one type, one instant and one caller.
Everything that readers get otherwise than it is stored is then the same in all of them, and stands at their ends:

    …,"sequenceNumber":8,"timestamp":5},{"eventType":"Completed",…
    …,"sequenceNumber":8,"timestamp":"1970-…","schemaVersion":1,"metadata":{…}}⏎{"eventType":"Completed",…

So one replacement makes all lines of it. Counting proves that nothing was replaced that only looks like it: there are
as many beginnings of an event in the bytes as there are events, so none stands inside of another (the log writes the
type first), and as many ends before a beginning as there have to be.
"""

from __future__ import annotations

import re
from itertools import repeat
from operator import add, sub
from typing import Any, Final

import msgspec

from omnirelay.wire.event_text import endings_at, instant_read, replaced, with_deadlines

_HEAD: Final = re.compile(rb'\{"shard":[^{}]*,"events":\[(\{"eventType":"(\w+)",)')
_TAIL: Final = re.compile(rb',"timestamp":(\d{1,15})\}\](?:,"pending":(\d+))?(?:,"active":(\d+))?\}\Z')
_TAIL_BYTES: Final = 128
_EVENTS: Final = b',"events":['
_BEGINNING: Final = b'{"eventType":"'
_NUMBER: Final = b',"sequenceNumber":'
_PEER: Final = b',"peerId":'
_PRINCIPAL: Final = b',"principal'
"""Not only the name: there is also its thumbprint, which is more than this takes care of."""

_EXPIRES: Final = b',"expiresAt":'
_DEADLINE: Final = re.compile(rb',"expiresAt":(\d{1,15})(|,.*?),"sequenceNumber":')
"""And what stands behind it up to the number: who did it, say."""

_MORE: Final = b"metadata|schemaVersion|progress|items|notBefore|enqueuedAt|until|downFrom|eventType"
"""Names that make more of an event than its end read otherwise, or that hold what others wrote."""
_WITH_DEADLINE: Final = frozenset({"LeaseGranted", "Heartbeat"})
_UNUSUAL: Final = {
    # The deadline of those that have one is replaced, too, where it is an instant of this century.
    has_deadline: (
        re.compile(rb',"(?:%b|peerId|principal|expiresAt%b)' % (_MORE, rest)),
        re.compile(rb',"(?:%b|expiresAt%b)' % (_MORE, rest)),
    )
    for has_deadline, rest in ((True, rb'":[^1]'), (False, rb""))
}
"""With and without who did it."""
_SUSPECT: Final = {
    True: re.compile(rb',"[deimnpsu][^a](?<!"se)(?!piresAt":1)'),
    False: re.compile(rb',"[deimnpsu][^a](?<!"se)'),
}
"""How each of these names begins, and none that every event has. To look for it takes two thirds of the time."""


class _Header(msgspec.Struct):
    shard: str


class _Caller(msgspec.Struct, rename="camel"):
    peer_id: Any = None
    principal: msgspec.Raw = msgspec.Raw(b"")


_read_header = msgspec.json.Decoder(_Header).decode
_read_caller = msgspec.json.Decoder(_Caller).decode


class Uniform(msgspec.Struct, frozen=True, gc=False):
    """All events of a commit: the same in everything but their numbers and what callers sent."""

    event_type: str
    timestamp: int
    peer: str | None
    lines: bytes
    """One for each event, with a line feed behind it."""


class Alike(msgspec.Struct, frozen=True, gc=False):
    """What such events have in common."""

    event_type: str
    timestamp: int
    peer: str | None
    begins: int
    ends: int
    """Where the first one begins and the last one ends, without `stands`."""
    beginning: bytes
    """What every event begins with."""
    stands: bytes
    reads: bytes
    """How every event ends in the log, and for readers. Between two there is a comma."""

    @property
    def separator(self) -> bytes:
        """What stands from the end of one event to behind the beginning of the next."""
        return self.stands + b"," + self.beginning


class Places(msgspec.Struct, frozen=True, gc=False):
    """The same events where they stand in the commit, for who cuts them out and ends each by itself."""

    alike: Alike
    begins: int
    """Where the first one begins."""
    sizes: list[int]
    """Bytes of each event, as far as readers get them as they stand."""
    gap: int
    """Bytes from there to where the next event begins."""
    number_behind: str = ""
    """What readers get behind what is cut out, and before the number of the event. Where it is empty, the number was
    cut out, too."""


def uniform_of(data: bytes, count: int, region: str | None) -> Uniform | None:
    """Of the stored bytes of a frame with so many events; None when they have to be looked at one by one."""
    alike = _alike(data, count, region)
    return None if alike is None else _uniform(data, count, alike)


def places_of(data: bytes, count: int, region: str | None) -> Places | Uniform | None:
    """The same without making their text, unless that takes more than an end, or than one deadline for all."""
    alike = _alike(data, count, region)
    if alike is None:
        return None
    if alike.event_type in _WITH_DEADLINE:
        return _dated_places(data, count, alike) or _uniform(data, count, alike)
    beginning = len(alike.beginning)
    pieces = data[alike.begins + beginning : alike.ends].split(alike.separator)
    if len(pieces) != count:
        return None
    return Places(alike, alike.begins, list(map(add, map(len, pieces), repeat(beginning))), len(alike.stands) + 1)


def _dated_places(data: bytes, count: int, alike: Alike) -> Places | None:
    """Events of one deadline, and the same from there to their numbers. None when they differ in that, or when some of
    their numbers are longer than others.

    They are cut up before their numbers. A piece then begins with the end of one event, and what follows is all of the
    next one that readers get as it stands:

        4003,"timestamp":5},{"eventType":"LeaseGranted","ownership":{…}      ,"expiresAt":9,"sequenceNumber":
    """
    found = _DEADLINE.search(data, alike.begins, alike.ends)
    if found is None or data.count(_EXPIRES, alike.begins, alike.ends) != count:
        return None
    *pieces, last = data[alike.begins : alike.ends].split(found[0])
    digits, deadline = len(last), instant_read(int(found[1]))
    if len(pieces) != count or not last.isdigit() or deadline is None or int(last) - count + 1 < 10 ** (digits - 1):
        return None
    # That is what proves it: between two such places there is exactly one end of an event.
    ends = map(bytes.startswith, pieces[1:], repeat(alike.separator), repeat(digits))
    if not all(ends) or data.count(alike.separator, alike.begins, alike.ends) != count - 1:
        return None
    ending = digits + len(alike.stands) + 1
    first, *others = map(len, pieces)
    behind = f',"expiresAt":"{deadline}"{found[2].decode()}{_NUMBER.decode()}'
    return Places(alike, alike.begins, [first, *map(sub, others, repeat(ending))], len(found[0]) + ending, behind)


def _uniform(data: bytes, count: int, alike: Alike) -> Uniform | None:
    reads = alike.reads + b"\n"
    separators, lines = replaced(data[alike.begins : alike.ends], alike.separator, reads + alike.beginning)
    if separators != count - 1:
        return None
    lines += reads
    if alike.event_type in _WITH_DEADLINE:
        dated = with_deadlines(lines, count)
        if dated is None:
            return None
        lines = dated
    return Uniform(alike.event_type, alike.timestamp, alike.peer, lines)


def _alike(data: bytes, count: int, region: str | None) -> Alike | None:
    """What all events have in common, if it is proven that the separators between them are all that there are."""
    head = _HEAD.match(data)
    tail = _TAIL.search(data, max(0, len(data) - _TAIL_BYTES))
    if head is None or tail is None or b"\n" in data or data.count(_BEGINNING) != count:
        return None
    start, ends, kind = head.start(1), tail.start(), head[2].decode()
    plain, named = _UNUSUAL[kind in _WITH_DEADLINE]
    suspect = _SUSPECT[kind in _WITH_DEADLINE].search(data, head.end() - 1, ends)
    found = None if suspect is None else plain.search(data, suspect.start(), ends)
    caller: _Caller | None = None
    if found is not None:
        if not found[0].startswith((_PEER[:-2], _PRINCIPAL)) or named.search(data, found.start(), ends):
            return None
        caller = _caller_of(data, start, ends, count)
        if caller is None:
            return None
    timestamp, pending, active = (None if each is None else int(each) for each in tail.groups())
    assert timestamp is not None
    shard = _read_header(data[: start - len(_EVENTS)] + b"}").shard
    stands, reads = endings_at(timestamp, shard, region, pending, active)
    if caller is not None and bytes(caller.principal):
        reads = b'%b,"rpc.principal":%b}}' % (reads[:-2], caller.principal)
    peer = caller.peer_id if caller is not None and isinstance(caller.peer_id, str) else None
    return Alike(kind, timestamp, peer, start, ends, head[1], stands, reads)


def _caller_of(data: bytes, start: int, ends: int, count: int) -> _Caller | None:
    """Who did it, when that is the same for all events.

    Both names stand among the last members of an event, directly before its number; a map that somebody else wrote may
    have the same names, but no number there.
    """
    second = data.find(_BEGINNING, start + 1, ends)
    first = data[start : ends if second < 0 else second]
    number = first.rfind(_NUMBER)
    places = {name: first.rfind(name, 0, number) for name in (_PEER, _PRINCIPAL)}
    if number < 0 or first[places[_PRINCIPAL] :].startswith(_PRINCIPAL + b"T"):
        return None
    members = first[min([at for at in places.values() if at >= 0], default=number) : number]
    counts = {_NUMBER: count, members + _NUMBER: count}
    counts |= {name: count if at >= 0 else 0 for name, at in places.items()}
    if any(data.count(each, start, ends) != times for each, times in counts.items()):
        return None
    try:
        return _read_caller(b"{%b}" % members[1:])
    except msgspec.DecodeError:
        return None  # The names are further inside.
