"""A naive model of the item life cycle, straight from the rules: plain dicts and linear scans.

It shares no code with core and knows nothing of events, queues or stamps. What a shard may choose
freely (lease ids, fences, the jitter of a retry) the model does not guess: it says what is allowed
and takes over what was chosen. Everything else it says exactly.

Items come in as *specs*: plain dicts with the keys of `SPEC`. Callers are `(principal, peer)`,
tokens `(sequence id, attempt, lease id, fence or None)`.

Three layers, one class: here is what items are and how they come in and end, `model_work` is what
workers do, `model_handling` what operators and time do.
"""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
Who = tuple[str | None, str | None]
Token = tuple[int, int, str, int | None]

SPEC: Record = {
    "type": "table",
    "id": "orders",
    "partition": None,
    "encoding": None,
    "body": b"",
    "attributes": None,
    "request": None,
    "priority": 5,
    "weight": 1,
    "delay": None,
    "not_before": None,
    "max_attempts": None,
}

LIVE = ("ready", "delayed", "leased")


class Refused(Exception):
    """The model's word for an error: the code is all that has to agree."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Chosen:
    """A moment the shard may choose between two bounds, both allowed."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high


def size_of(spec: Record) -> int:
    attributes: dict[str, str] = spec["attributes"] or {}
    return len(spec["body"]) + sum(len(name) + len(value) for name, value in attributes.items())


def meaning_of(spec: Record) -> tuple[Any, ...]:
    """What two payloads must share to count as the same under one request id."""
    return (
        spec["type"],
        spec["id"],
        spec["id"] if spec["partition"] is None else spec["partition"],
        "application/octet-stream" if spec["encoding"] is None else spec["encoding"],
        spec["body"],
        tuple(sorted((spec["attributes"] or {}).items())),
    )


class ModelBase:
    def __init__(self, options: Record) -> None:
        self.options = options
        self.items: dict[int, Record] = {}
        self.next_id = 1
        self.ended: list[Record] = []
        """Leases that are over, oldest first."""
        self.requests: dict[tuple[str | None, str], Record] = {}
        self.ends = 0
        """Counts ends of anything, so that "the oldest" is always one thing."""
        self.deaths: list[int] = []
        """The count at each death, oldest first: where a listing of dead letters goes on."""
        self.fences: list[int] = []
        self.gone: dict[int, str] = {}
        """Items no longer known, and the legal reason why."""

    # -- looking -------------------------------------------------------------------------------

    def having(self, *states: str) -> list[Record]:
        return [item for item in self.items.values() if item["state"] in states]

    def live_bytes(self) -> int:
        return sum(size_of(item["spec"]) for item in self.having(*LIVE))

    def items_max(self) -> int:
        capacity, reserve = self.options["capacity"], self.options["reserve"]
        return int(capacity + (max(capacity // 10, 1000) if reserve is None else reserve))

    def bytes_max(self) -> int:
        capacity, reserve = self.options["capacity_bytes"], self.options["reserve_bytes"]
        return int(capacity + (max(capacity // 10, 64 * 1024 * 1024) if reserve is None else reserve))

    def tick(self) -> int:
        self.ends += 1
        return self.ends

    # -- coming in -----------------------------------------------------------------------------

    def enqueue(self, specs: list[Record], who: Who, now: int) -> tuple[list[tuple[int, bool]], int, int]:
        self.refuse_bad(specs)
        results, fresh = self.plan(specs, who, now)
        room = self.options["capacity"] - len(self.having(*LIVE))
        room_bytes = self.options["capacity_bytes"] - self.live_bytes()
        if fresh and (len(fresh) > room or sum(size_of(spec) for _, spec in fresh) > room_bytes):
            if len(fresh) > self.options["capacity"]:
                raise Refused("resourcelease.payload.too_large")
            if sum(size_of(spec) for _, spec in fresh) > self.options["capacity_bytes"]:
                raise Refused("resourcelease.payload.too_large")
            raise Refused("error.resourcelease.backpressure")
        self.take_in(fresh, who, now, None)
        return results, len(self.having("ready", "delayed")), len(self.having("leased"))

    def refuse_bad(self, specs: list[Record]) -> None:
        if not specs:
            raise Refused("resourcelease.items.invalid")
        for spec in specs:
            if not spec["type"].strip():
                raise Refused("resourcelease.payload.resource_type_required")
            if not spec["id"].strip():
                raise Refused("resourcelease.payload.resource_id_required")
            if spec["encoding"] is not None and not spec["encoding"].strip():
                raise Refused("resourcelease.payload.encoding_required")
            if len(spec["body"]) > self.options["body_limit"]:
                raise Refused("resourcelease.payload.too_large")
            if spec["delay"] is not None and (spec["delay"] < 0 or spec["not_before"] is not None):
                raise Refused("resourcelease.delayMs.invalid")

    def plan(self, specs: list[Record], who: Who, now: int) -> tuple[list[tuple[int, bool]], list[tuple[int, Record]]]:
        """What each spec gets, and those that are new with the ids they will have."""
        results: list[tuple[int, bool]] = []
        fresh: list[tuple[int, Record]] = []
        named: dict[tuple[str | None, str], tuple[int, tuple[Any, ...]]] = {}
        for spec in specs:
            if spec["request"] is not None:
                key = (who[0], spec["request"])
                known = named.get(key)
                if key in self.requests:
                    known = (self.requests[key]["id"], self.requests[key]["meaning"])
                if known is not None:
                    if known[1] != meaning_of(spec):
                        raise Refused("resourcelease.request_id.conflict")
                    results.append((known[0], True))
                    continue
                named[key] = (self.next_id + len(fresh), meaning_of(spec))
            results.append((self.next_id + len(fresh), False))
            fresh.append((self.next_id + len(fresh), spec))
        if len(named) > self.options["request_id_max"]:
            raise Refused("resourcelease.requestId.invalid")
        missing = len(self.requests) + len(named) - self.options["request_id_max"]
        if named and missing > len(self.spare_requests(now)):
            raise Refused("error.resourcelease.request_ids_full")
        return results, fresh

    def take_in(self, fresh: list[tuple[int, Record]], who: Who, now: int, parent: int | None) -> None:
        for sequence_id, spec in fresh:
            not_before = spec["not_before"] if spec["delay"] is None else now + spec["delay"]
            if not_before is not None and not_before <= now:
                not_before = None
            item = self.add_item(sequence_id, spec, now, not_before)
            item["parent"] = parent
            if spec["request"] is not None:
                item["request"] = (who[0], spec["request"])
                self.remember_request(item, meaning_of(spec))

    def add_item(self, sequence_id: int, spec: Record, enqueued_at: int, not_before: int | None) -> Record:
        item: Record = {
            "sequence_id": sequence_id,
            "spec": spec,
            "state": "ready" if not_before is None else "delayed",
            "not_before": not_before,
            "attempt": 1,
            "burned": 0,
            "undelivered": 0,
            "enqueued_at": enqueued_at,
            "lease": None,
            "last_error": None,
            "last_token": None,
            "progress": None,
            "result": None,
            "parent": None,
            "request": None,
            "cancel": False,
            "cancel_reason": None,
            "ended_at": None,
            "ended_order": 0,
        }
        self.items[sequence_id] = item
        self.gone.pop(sequence_id, None)
        self.next_id = max(self.next_id, sequence_id + 1)
        return item

    # -- request ids ---------------------------------------------------------------------------

    def spare_requests(self, now: int) -> list[tuple[str | None, str]]:
        """Request ids that may be forgotten when the table needs the room."""
        kept = self.options["request_id_retention_ms"]
        return [
            key
            for key, request in self.requests.items()
            if request["ended"] is not None and request["ended"] + kept <= now
        ]

    def remember_request(self, item: Record, meaning: tuple[Any, ...]) -> None:
        if item["request"] not in self.requests and len(self.requests) >= self.options["request_id_max"]:
            spare = [key for key, request in self.requests.items() if request["ended"] is not None]
            if spare:
                del self.requests[min(spare, key=lambda key: self.requests[key]["order"])]
        self.requests[item["request"]] = {
            "id": item["sequence_id"],
            "meaning": meaning,
            "ended": None,
            "order": 0,
        }

    def end_request(self, item: Record, now: int) -> None:
        request = self.requests.get(item["request"])
        if request is not None and request["id"] == item["sequence_id"]:
            request["ended"] = now
            request["order"] = self.tick()

    # -- ends ----------------------------------------------------------------------------------

    def end_lease(self, lease: Record, verb: str, answer: Any, now: int) -> None:
        item = lease["item"]
        item["lease"] = None
        if verb != "complete":
            item["last_token"] = lease["token"]
        lease.update(verb=verb, answer=answer, ended_at=now, scope=None)
        self.ended.append(lease)
        del self.ended[: max(0, len(self.ended) - self.options["ended_lease_max"])]

    def put(self, item: Record, where: str, not_before: int | Chosen | None, now: int) -> None:
        item["not_before"] = not_before
        if where == "cancelled":
            self.finish(item, where, now)
        else:
            item["state"] = where
        if where == "dead":
            item["ended_at"] = now
            item["ended_order"] = self.tick()
            self.deaths.append(item["ended_order"])

    def finish(self, item: Record, how: str, now: int) -> None:
        item["state"] = how
        item["ended_at"] = now
        item["ended_order"] = self.tick()
        self.end_request(item, now)
