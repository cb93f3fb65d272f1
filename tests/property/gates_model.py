"""A naive model of the gates: what is pending, leased, paused and limited, straight from the rules.

Plain dicts and linear scans, no code shared with core. It follows the log the way an outsider would read it:
each event comes as the JSON object that is stored. What core chose is taken over; whether it was allowed to
is said by `gates_judge`, which builds on this.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

Record = dict[str, Any]
Key = tuple[str, ...]
Scope = tuple[str | None, str | None]
"""What a pause covers: (resource type, tenant), at most one of them given; neither is the whole shard."""

LIVE = ("ready", "delayed", "leased")
LIMIT_KINDS = ("type", "tenant", "key")


class GatesModel:
    def __init__(self, options: Record) -> None:
        self.options = options
        self.options_changes = 0
        """What was leased before a change of options may break the rules that hold after it."""
        self.items: dict[int, Record] = {}
        self.next_id = 1
        self.requests: dict[str, int] = {}
        self.pauses: dict[Scope, Record] = {}
        self.backpressure = False
        self.backpressure_changed_at: int | None = None

    def having(self, *states: str) -> list[Record]:
        return [item for item in self.items.values() if item["state"] in states]

    # -- keys ----------------------------------------------------------------------------------

    def key(self, item: Record) -> Key:
        if self.options["key"] == "resource":
            return (item["type"], item["name"])
        return (item["name"] if item["partition"] is None else item["partition"],)

    def key_matters(self, item: Record) -> bool:
        return self.options["ordering"] != "none" or self.limit_of("key", item) is not None

    def of_same_key(self, item: Record, *states: str) -> list[Record]:
        return [other for other in self.having(*states) if self.key(other) == self.key(item)]

    def before_in_key(self, item: Record) -> list[Record]:
        """The items of its key that have to go first, the next one first."""
        fifo = self.options["ordering"] == "fifo"
        waiting = ("ready", "delayed") if fifo and self.options["fifoHead"] == "hold" else ("ready",)

        def rank(each: Record) -> tuple[int, int]:
            return (0 if fifo else each["class"], each["order"])

        before = [other for other in self.of_same_key(item, *waiting) if rank(other) < rank(item)]
        return sorted(before, key=rank)

    def stands(self, item: Record) -> bool:
        """Whether it may be looked at at all: ready, and nothing of its own key in the way."""
        if item["state"] != "ready":
            return False
        if not self.key_matters(item):
            return True
        if self.before_in_key(item) or not self.fits("key", item):
            return False
        return self.options["ordering"] == "none" or not self.of_same_key(item, "leased")

    # -- limits --------------------------------------------------------------------------------

    def tenant(self, item: Record) -> str:
        return str(item["attributes"].get(self.options["tenantAttribute"], ""))

    def member(self, by: str, item: Record) -> Key:
        """Whom a limit of this kind counts the item for."""
        return {"type": (item["type"],), "tenant": (self.tenant(item),), "key": self.key(item)}[by]

    def limit_of(self, by: str, item: Record) -> int | None:
        name = "/".join(self.member(by, item))
        for limit in self.options["limits"]:
            if limit["by"] == by and fnmatchcase(name, limit["match"]):
                return int(limit["max"])
        return None

    def leased_beside(self, by: str, item: Record) -> list[Record]:
        return [other for other in self.having("leased") if self.member(by, other) == self.member(by, item)]

    def used(self, by: str, item: Record) -> int:
        return sum(other["weight"] for other in self.leased_beside(by, item))

    def fits(self, by: str, item: Record) -> bool:
        """An item heavier than the whole limit still runs, alone."""
        most, used = self.limit_of(by, item), self.used(by, item)
        return most is None or used == 0 or used + item["weight"] <= most

    # -- pauses and backpressure ---------------------------------------------------------------

    def pauses_over(self, item: Record) -> list[Record]:
        scopes: list[Scope] = [(None, None), (item["type"], None), (None, self.tenant(item))]
        return [self.pauses[scope] for scope in scopes if scope in self.pauses]

    def shard_paused(self) -> bool:
        return (None, None) in self.pauses

    def watermarks(self) -> tuple[int, int]:
        high, low = self.options["highWatermark"], self.options["lowWatermark"]
        high = max(1, self.options["capacity"] * 4 // 5) if high is None else high
        return high, high // 2 if low is None else low

    def backpressure_wanted(self) -> bool:
        """Whether the signal says the wrong thing, cooldown or not."""
        high, low = self.watermarks()
        pending = len(self.having("ready", "delayed"))
        return pending <= low if self.backpressure else pending >= high

    def backpressure_due_at(self) -> int:
        if self.backpressure_changed_at is None:
            return 0
        return int(self.backpressure_changed_at + self.options["backpressureCooldownMs"])

    def refusals(self, specs: list[Record]) -> set[str]:
        """The codes an enqueue may be refused with; none: it has to be taken. All or nothing."""
        fresh = self.fresh(specs)
        codes: set[str] = set()
        if any(pause["intake"] for spec in fresh for pause in self.pauses_over(spec)):
            codes.add("error.resourcelease.paused")
        if fresh and (self.backpressure or len(self.having(*LIVE)) + len(fresh) > self.options["capacity"]):
            codes.add("error.resourcelease.backpressure")
        return codes

    def fresh(self, specs: list[Record]) -> list[Record]:
        """What would come in anew: not what repeats a request id, known from before or from this very batch."""
        known = set(self.requests)
        fresh: list[Record] = []
        for spec in specs:
            if spec["request"] not in known:
                fresh.append(spec)
            if spec["request"] is not None:
                known.add(spec["request"])
        return fresh

    # -- following the log ---------------------------------------------------------------------

    def follow(self, event: Record) -> None:
        following: dict[str, Callable[[Record], None]] = {
            "Enqueue": self._enqueue,
            "LeaseGranted": self._granted,
            "Completed": self._completed,
            "Failed": self._back_from_lease,
            "Released": self._back_from_lease,
            "Expired": self._back_from_lease,
            "DeadLettered": self._dead,
            "Cancelled": self._cancelled,
            "DrainSnapshot": self._drained,
            "RestoreSnapshot": self._restored,
            "Redriven": self._redriven,
            "OptionsChanged": self._options,
            "TimeAdvanced": self._time,
            "Paused": self._paused,
            "Resumed": self._resumed,
            "BackpressureChanged": self._backpressure,
            # These move deadlines and wishes, which is no business of a gate.
            "Heartbeat": self._nothing,
            "CancelRequested": self._nothing,
            "LeaderElected": self._nothing,
        }
        following[event["eventType"]](event)

    def _nothing(self, event: Record) -> None:
        pass

    def _add(self, event: Record, not_before: int | None) -> None:
        payload = event["payload"]
        self.items[event["sequenceId"]] = {
            "id": event["sequenceId"],
            "order": event["sequenceId"],
            "type": payload["resourceType"],
            "name": payload["resourceId"],
            "partition": payload.get("partitionKey"),
            "attributes": payload.get("attributes") or {},
            "class": event.get("priority", 5),
            "weight": event.get("weight", 1),
        }
        self._put(event["sequenceId"], not_before)
        self.next_id = max(self.next_id, event["sequenceId"] + 1)

    def _put(self, sequence_id: int, not_before: int | None) -> None:
        state = "ready" if not_before is None else "delayed"
        self.items[sequence_id].update(state=state, not_before=not_before, owner=None)

    def _enqueue(self, event: Record) -> None:
        self._add(event, event.get("notBefore"))
        if "requestId" in event["payload"]:
            self.requests[event["payload"]["requestId"]] = event["sequenceId"]

    def _granted(self, event: Record) -> None:
        self.items[event["ownership"]["sequenceId"]].update(
            state="leased", owner=event.get("peerId", ""), leased_under=self.options_changes
        )

    def _completed(self, event: Record) -> None:
        del self.items[event["ownership"]["sequenceId"]]

    def _back_from_lease(self, event: Record) -> None:
        self._put(event["ownership"]["sequenceId"], event.get("notBefore"))

    def _dead(self, event: Record) -> None:
        self.items[event["sequenceId"]].update(state="dead", not_before=None)

    def _cancelled(self, event: Record) -> None:
        del self.items[event["sequenceId"]]

    def _drained(self, event: Record) -> None:
        for sequence_id in event["sequenceIds"]:
            assert self.items[sequence_id]["state"] in ("ready", "delayed"), "a drain takes what nobody has"
            del self.items[sequence_id]

    def _restored(self, event: Record) -> None:
        for restored in event["items"]:
            self._add(restored, restored.get("notBefore"))

    def _redriven(self, event: Record) -> None:
        delays = event.get("notBefore") or [None] * len(event["sequenceIds"])
        for sequence_id, not_before in zip(event["sequenceIds"], delays, strict=True):
            self._put(sequence_id, not_before)
            if self.options["ordering"] == "fifo":
                # What came after it has been worked on since: it is the newest now.
                self.items[sequence_id]["order"] = self.next_id
                self.next_id += 1

    def _options(self, event: Record) -> None:
        self.options = event["options"]
        self.options_changes += 1

    def _time(self, event: Record) -> None:
        for item in self.having("delayed"):
            if item["not_before"] <= event["timestamp"]:
                self._put(item["id"], None)
        self.pauses = {
            scope: pause
            for scope, pause in self.pauses.items()
            if pause["until"] is None or pause["until"] > event["timestamp"]
        }

    def _paused(self, event: Record) -> None:
        scope = (event.get("resourceType"), event.get("tenant"))
        assert None in scope, "a pause covers one thing"
        self.pauses[scope] = {
            "scope": scope,
            "intake": event.get("intake", False),
            "reason": event.get("reason"),
            "until": event.get("until"),
            "principal": event.get("principal"),
        }

    def _resumed(self, event: Record) -> None:
        del self.pauses[event.get("resourceType"), event.get("tenant")]

    def _backpressure(self, event: Record) -> None:
        assert self.backpressure_wanted(), "nothing to signal"
        assert event["timestamp"] >= self.backpressure_due_at(), "the signal flaps within its cooldown"
        assert event["active"] is not self.backpressure
        assert event["pending"] == len(self.having("ready", "delayed"))
        assert (event["highWatermark"], event["lowWatermark"]) == self.watermarks()
        self.backpressure = event["active"]
        self.backpressure_changed_at = event["timestamp"]
