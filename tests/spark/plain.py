"""What silver has to hold, by a plain loop over the events: slow, obvious, and nothing of Spark's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omnirelay.core import events as ev
from omnirelay.core.evolve import EXPIRED_ERROR
from tests.spark.workload import instant

Row = dict[str, Any]


class Plain:
    """Leases and items of one shard. Times are milliseconds until `instants` makes them what a table has."""

    def __init__(self, shard: str, events: Iterable[ev.Event]) -> None:
        self.shard = shard
        self.leases: dict[str, Row] = {}
        self.items: dict[int, Row] = {}
        self.live: dict[int, str] = {}
        for event in events:
            handler = getattr(self, f"_{type(event).__name__}", None)
            if handler is not None:
                handler(event)

    # -- items ---------------------------------------------------------------------------------

    def _item(self, number: int, event: ev.Event) -> Row:
        item = self.items.setdefault(
            number,
            dict.fromkeys(("parent", "peer", "principal", "attempt", "first_granted_at", "last_granted_at"))
            | dict.fromkeys(("error_code", "error_message", "ended_at"))
            | {"leases": 0, "failures": 0, "expiries": 0, "first_sequence": event.sequence_number},
        )
        item["last_sequence"] = event.sequence_number
        return item

    def _Enqueue(self, event: ev.Enqueue) -> None:
        item = self._item(event.sequence_id, event)
        item.update(
            state="pending",
            enqueued_at=event.timestamp,
            ready_at=max(event.timestamp, event.not_before or 0),
            priority=event.priority,
            parent=event.parent_sequence_id,
            peer=event.peer_id,
            principal=event.principal,
        )
        self._payload(item, event.payload)

    @staticmethod
    def _payload(item: Row, payload: Any) -> None:
        item["resource_type"] = payload.resource_type
        item["resource_id"] = payload.resource_id
        item["partition_key"] = payload.partition_key

    def _RestoreSnapshot(self, event: ev.RestoreSnapshot) -> None:
        for restored in event.items:
            item = self._item(restored.sequence_id, event)
            item.setdefault("enqueued_at", restored.enqueued_at)
            item.setdefault("priority", restored.priority)
            item.update(state="pending", ended_at=None, attempt=restored.attempt)
            item["ready_at"] = max(event.timestamp, restored.not_before or 0)
            self._payload(item, restored.payload)
            if item["parent"] is None:
                item["parent"] = restored.parent_sequence_id
            if restored.last_error is not None:
                self._error(item, restored.last_error)

    @staticmethod
    def _error(row: Row, error: Any) -> None:
        row["error_code"], row["error_message"] = error.code, error.message

    def _DrainSnapshot(self, event: ev.DrainSnapshot) -> None:
        for number in event.sequence_ids:
            self._item(number, event).update(state="drained", ended_at=event.timestamp)

    def _Redriven(self, event: ev.Redriven) -> None:
        for place, number in enumerate(event.sequence_ids):
            until = 0 if event.not_before is None else event.not_before[place]
            ready_at = max(event.timestamp, until)
            self._item(number, event).update(state="pending", ended_at=None, ready_at=ready_at)

    def _DeadLettered(self, event: ev.DeadLettered) -> None:
        item = self._item(event.sequence_id, event)
        item.update(state="dead", ended_at=event.timestamp)
        if item["error_message"] is None:
            self._error(item, event.error)

    def _DeadLetterEdited(self, event: ev.DeadLetterEdited) -> None:
        self._payload(self._item(event.sequence_id, event), event.payload)

    def _Cancelled(self, event: ev.Cancelled) -> None:
        self._item(event.sequence_id, event).update(state="cancelled", ended_at=event.timestamp)
        lease_id = self.live.pop(event.sequence_id, None)
        if lease_id is not None:
            self._ended(self.leases[lease_id], event, "cancelled")

    # -- leases --------------------------------------------------------------------------------

    def _LeaseGranted(self, event: ev.LeaseGranted) -> None:
        token = event.ownership
        item = self._item(token.sequence_id, event)
        self.live[token.sequence_id] = token.lease_id
        self.leases[token.lease_id] = {
            "fence": event.sequence_number,
            "item": token.sequence_id,
            "attempt": token.attempt,
            "resource_type": item["resource_type"],
            "resource_id": item["resource_id"],
            "owner": event.peer_id,
            "principal": event.principal,
            "granted_at": event.timestamp,
            "expires_at": event.expires_at,
            "heartbeats": 0,
            "wait_ms": max(0, event.timestamp - item["ready_at"]),
            "last_sequence": event.sequence_number,
        } | dict.fromkeys(("last_heartbeat_at", "ended_at", "outcome", "fail_mode", "undelivered", "error_code"))
        self.leases[token.lease_id] |= dict.fromkeys(("error_message", "work_ms", "table_version"))
        item.update(state="leased", attempt=token.attempt, last_granted_at=event.timestamp, leases=item["leases"] + 1)
        if item["first_granted_at"] is None:
            item["first_granted_at"] = event.timestamp

    def _Heartbeat(self, event: ev.Heartbeat) -> None:
        self._item(event.ownership.sequence_id, event)
        lease = self.leases[event.ownership.lease_id]
        lease.update(
            last_heartbeat_at=event.timestamp,
            expires_at=event.expires_at,
            heartbeats=lease["heartbeats"] + 1,
            last_sequence=event.sequence_number,
        )

    @staticmethod
    def _ended(lease: Row, event: ev.Event, outcome: str) -> None:
        lease.update(ended_at=event.timestamp, outcome=outcome, last_sequence=event.sequence_number, undelivered=False)
        lease["work_ms"] = event.timestamp - lease["granted_at"]

    def _end(self, event: Any, outcome: str) -> tuple[Row, Row]:
        token = event.ownership
        item = self._item(token.sequence_id, event)
        lease = self.leases[token.lease_id]
        assert self.live.pop(token.sequence_id) == token.lease_id
        self._ended(lease, event, outcome)
        return item, lease

    def _Completed(self, event: ev.Completed) -> None:
        item, lease = self._end(event, "completed")
        item.update(state="completed", ended_at=event.timestamp)
        lease["table_version"] = None if event.result is None else "7"

    def _came_back(self, item: Row, event: Any) -> None:
        item.update(state="pending", ready_at=max(event.timestamp, event.not_before or 0))

    def _Failed(self, event: ev.Failed) -> None:
        item, lease = self._end(event, "failed")
        self._came_back(item, event)
        item["failures"] += 1
        lease["fail_mode"] = event.mode
        self._error(item, event.error)
        self._error(lease, event.error)

    def _Expired(self, event: ev.Expired) -> None:
        item, lease = self._end(event, "expired")
        self._came_back(item, event)
        item["expiries"] += 1
        lease["undelivered"] = event.undelivered
        self._error(item, EXPIRED_ERROR)
        self._error(lease, EXPIRED_ERROR)

    def _Released(self, event: ev.Released) -> None:
        item, lease = self._end(event, "released")
        self._came_back(item, event)
        lease["undelivered"] = event.undelivered

    # -- as rows -------------------------------------------------------------------------------

    def lease_rows(self) -> list[Row]:
        return [self._instants({"lease_id": key, **row}) for key, row in self.leases.items()]

    def item_rows(self) -> list[Row]:
        return [self._instants({"item": key, "life_ms": self._life(row), **row}) for key, row in self.items.items()]

    @staticmethod
    def _life(row: Row) -> int | None:
        return None if row["ended_at"] is None else int(row["ended_at"] - row["enqueued_at"])

    def _instants(self, row: Row) -> Row:
        times = {name: instant(value) for name, value in row.items() if name.endswith("_at")}
        return {"shard": self.shard, **row, **times}
