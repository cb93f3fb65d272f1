"""Following the log of a running node: behind the last event that was seen, over restarts of the node too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from omnirelay.cli.calling import Client
from omnirelay.cli.exits import DAMAGED, UNREACHABLE, Refusal, Stop
from omnirelay.cli.printing import note
from omnirelay.cli.readers import end_with_reader
from omnirelay.client.retrying import pause_ms

_NOBODY_THERE = (502, 503, 504)
"""Answers of a node that starts or stops, and of a proxy whose node is away."""


def follow_node(url: str, namespace: str, first: int | None, take: Callable[[bytes], None], types: str | None) -> None:
    """Hand on events from `first`, or from the next one, until interrupted.

    Raises Stop when no node answers at first. One that was there is waited for, however long it is away; when it comes
    back with a log that ends before what was seen, that is another log, and Stop is raised, too.
    """
    end_with_reader()
    with Client(url, namespace) as client:
        log = _Log(client, first, types)
        log.look()
        failures = 0
        while True:
            asked_ms: int | None = None
            try:
                if failures:
                    log.look()
                for text in log.events():
                    failures = 0
                    take(text)
                away = "the node ended the stream"
            except Stop as stop:
                if not _may_come_back(stop):
                    raise
                away = stop.message
                asked_ms = stop.retry_after_ms if isinstance(stop, Refusal) else None
            if not failures:
                note(f"{away}; waiting for the node, to go on with event {log.next}")
            failures += 1
            threading.Event().wait(pause_ms(min(failures, 6), asked_ms) / 1000)


def _may_come_back(stop: Stop) -> bool:
    return stop.exit_code == UNREACHABLE or (isinstance(stop, Refusal) and stop.http in _NOBODY_THERE)


class _Log:
    """The log of a node: how much of it was seen, and the way to what comes behind that."""

    def __init__(self, client: Client, first: int | None, types: str | None) -> None:
        self._client = client
        self._query = {} if types is None else {"types": types}
        self._known = 0
        """The log has, or had, events up to here."""
        self.next = first
        """The first event that was not seen; None as long as nobody knows which one comes next."""

    def look(self) -> None:
        """Find out where the log ends."""
        last = int(self._client.call("stats")["stats"]["lastSequence"])
        if last < self._known:
            raise Stop(
                DAMAGED,
                f"the log of the node ends with event {last} now, and was followed up to {self._known}: it is another"
                " one, or has lost its end",
                "error.log.regressed",
            )
        if self.next is None:
            # Else what happens between a connection that broke before its first event and the next one is missed.
            self._known, self.next = last, last + 1

    def events(self) -> Iterator[bytes]:
        """What comes, until the connection ends."""
        for identity, text in self._client.events({**self._query, "from": str(self.next)}):
            self._known = int(identity)
            self.next = self._known + 1
            yield text
