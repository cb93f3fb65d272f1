"""What the columns of a table of events hold, whichever database it is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.replication.commits import Commits
from omnirelay.replication.events import ReplicatedEvent, json_of
from omnirelay.wire.event_uniform import Uniform
from omnirelay.wire.instants import instant

Row = tuple[int, int, str, str | None, str]
"""Sequence, number of the type, instant, peer and JSON."""


class _Peer(msgspec.Struct, rename="camel", gc=False):
    peer_id: Any = None


_read_peers = msgspec.json.Decoder(list[_Peer]).decode


def rows_of(events: Sequence[ReplicatedEvent]) -> list[Row]:
    """All at once, because a call for each would cost more."""
    if isinstance(events, Commits):
        return _rows_of_commits(events)
    return [
        (event.sequence, number_of(event), instant(event.timestamp), peer, text.decode())
        for event, peer, text in zip(events, peers_of(events), json_of(events), strict=True)
    ]


def _rows_of_commits(commits: Commits) -> list[Row]:
    return [
        (tag.sequence_number, EVENT_NUMBERS.get(tag.event_type, 0), instant(tag.timestamp), peer, text)
        for tag, peer, text in zip(commits.tags, peers_of_commits(commits), texts_of_commits(commits), strict=True)
    ]


def texts_of_commits(commits: Commits) -> list[str]:
    """The documents as JSON."""
    return [text for piece in commits.pieces() for text in piece.decode().split("\n")[:-1]]


def peers_of_commits(commits: Commits) -> list[str | None]:
    """Who did it, event by event."""
    peers: list[str | None] = []
    for part, count in zip(commits.parts(), commits.counts(), strict=True):
        peers += [part.peer] * count if isinstance(part, Uniform) else peers_of_lines(part)
    return peers


def peers_of_lines(lines: bytes) -> list[str | None]:
    """The same for documents, with a line feed behind each."""
    return _peers_of(lines.split(b"\n")[:-1])


def peers_of(events: Sequence[ReplicatedEvent]) -> list[str | None]:
    """Who did it, as far as the events say."""
    return _peers_of([event.data for event in events])


def _peers_of(stored: Sequence[bytes]) -> list[str | None]:
    # Many name nobody, and need not be read for it.
    named = [at for at, data in enumerate(stored) if b'"peerId"' in data]
    found = _read_peers(b"[%b]" % b",".join([stored[at] for at in named]))
    peers: list[str | None] = [None] * len(stored)
    for at, each in zip(named, found, strict=True):
        if isinstance(each.peer_id, str):
            peers[at] = each.peer_id
    return peers


def number_of(event: ReplicatedEvent) -> int:
    """The number of its type, 0 for one that this version does not know."""
    return EVENT_NUMBERS.get(event.event_type, 0)
