"""What `peers` and `backpressure` have to hold, by a plain loop over the events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omnirelay.core import events as ev
from tests.spark.workload import instant

Row = dict[str, Any]
_SIGNS = (ev.LeaseGranted, ev.Heartbeat, ev.Completed, ev.Failed, ev.Released)


def peer_rows(shard: str, events: Iterable[ev.Event]) -> list[Row]:
    """One row for every time in which a peer kept being well, or kept not being so."""
    owners: dict[str, str] = {}
    last: dict[str, Row] = {}
    rows: list[Row] = []
    for event in events:
        if not isinstance(event, (*_SIGNS, ev.Expired)):
            continue
        lease_id = event.ownership.lease_id
        if isinstance(event, ev.LeaseGranted):
            assert event.peer_id is not None
            owners[lease_id] = event.peer_id
        peer, healthy, at = owners[lease_id], isinstance(event, _SIGNS), event.timestamp
        row = last.get(peer)
        if row is None or row["healthy"] != healthy:
            if row is not None:
                row["until_at"] = at
            row = {"shard": shard, "peer": peer, "from_sequence": event.sequence_number, "from_at": at}
            row |= {"until_at": None, "healthy": healthy, "reason": None, "signs": 0, "expiries": 0}
            row["last_seen_at"] = None
            if isinstance(event, ev.Expired):
                row["reason"] = "it never answered to a grant" if event.undelivered else "its lease ran out"
            last[peer] = row
            rows.append(row)
        row["signs" if healthy else "expiries"] += 1
        row["last_sequence"] = event.sequence_number
        if healthy:
            row["last_seen_at"] = at
    return [_with_instants(row) for row in rows]


def backpressure_rows(shard: str, events: Iterable[ev.Event]) -> list[Row]:
    """One row for every time in which a cause kept intake closed."""
    open_: dict[str, Row] = {}
    rows: list[Row] = []
    for event in events:
        if not isinstance(event, ev.BackpressureChanged):
            continue
        cause = event.cause or "pending"
        if not event.active:
            if (row := open_.pop(cause, None)) is not None:
                row["until_at"] = event.timestamp
            continue
        if cause not in open_:
            row = {"shard": shard, "cause": cause, "reason": event.reason, "from_sequence": event.sequence_number}
            row |= {"from_at": event.timestamp, "until_at": None, "pending": event.pending}
            row["high_watermark"] = event.high_watermark
            open_[cause] = row
            rows.append(row)
        open_[cause]["last_sequence"] = event.sequence_number
    return [_with_instants(row) for row in rows]


def _with_instants(row: Row) -> Row:
    return {**row, **{name: instant(value) for name, value in row.items() if name.endswith("_at")}}
