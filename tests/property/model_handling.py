"""What operators and time do, as the naive model sees it: cancel, drain, restore, dead letters, upkeep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.property.model import LIVE, Chosen, Record, Refused, Token, Who, meaning_of, size_of
from tests.property.model_work import WorkModel

EXPIRED = ("the lease ran out before an acknowledgement came", "error.taskqueue.lease_expired")


def identity(item: Record) -> tuple[Any, ...]:
    """What an item has for life, and no item of another shard has all of."""
    spec = item["spec"]
    settings = (spec["priority"], spec["weight"], spec["max_attempts"])
    return "identity", item["sequence_id"], item["enqueued_at"], settings, spec["request"], meaning_of(spec)


class Model(WorkModel):
    # -- cancel --------------------------------------------------------------------------------

    def cancel(self, sequence_id: int, reason: str | None, force: bool, now: int) -> tuple[bool, str, bool]:
        item = self.known(sequence_id)
        if item["state"] not in LIVE:
            return False, item["state"], False
        if item["state"] == "leased" and not force:
            if not item["cancel"]:
                item["cancel"] = True
                item["cancel_reason"] = reason
            return True, "leased", True
        if item["lease"] is not None:
            self.end_lease(item["lease"], "lost", None, now)
        if reason is not None:
            item["cancel_reason"] = reason
        self.put(item, "cancelled", item["not_before"], now)
        return True, "cancelled", False

    def known(self, sequence_id: int) -> Record:
        if sequence_id not in self.items:
            raise Refused("error.resourcelease.unknown_item")
        return self.items[sequence_id]

    # -- drain and restore ---------------------------------------------------------------------

    def drain(self, count: int, now: int, listed: list[int]) -> tuple[list[Record], int]:
        """Ready items as they are listed, then delayed ones by their time; they take their history along."""
        ready = sorted(self.having("ready"), key=lambda item: listed.index(item["sequence_id"]))
        delayed = sorted(self.having("delayed"), key=lambda item: (item["not_before"], item["sequence_id"]))
        page = (ready + delayed)[:count]
        for item in page:
            if item["request"] is not None:
                item["meaning"] = self.requests[item["request"]]["meaning"]
            self.end_request(item, now)
            del self.items[item["sequence_id"]]
            self.gone[item["sequence_id"]] = "drained"
        return page, len(ready) + len(delayed) - len(page)

    def restore(self, drained: list[Record], who: Who, now: int) -> tuple[int, int, list[tuple[int, int]]]:
        """All or nothing. What is there already is counted: the very item, or its request with its payload.
        What is not comes in, if need be under another number, or without what its request id stands for here.
        """
        fresh: list[Record] = []
        for given in drained:
            if not given["spec"]["type"].strip():
                raise Refused("resourcelease.payload.resource_type_required")
            who_it_is = identity(given)
            if any(who_it_is == other["identity"] for other in fresh):
                continue
            request = given["request"]
            if request is None and given["spec"]["request"] is not None:
                request = (who[0], given["spec"]["request"])
            known = self.items.get(given["sequence_id"])
            if known is not None and identity(known) == who_it_is:
                # One that was moved here is another: it stands under what it was where it came from.
                if not (request is None and known["request"] is not None and known["request"] != who_it_is):
                    continue
            if who_it_is in self.requests and self.requests[who_it_is]["id"] in self.items:
                continue
            meaning = given.get("meaning") or meaning_of(given["spec"])
            others = [other["meaning"] for other in fresh if request is not None and other["request"] == request]
            if not others and request in self.requests:
                others = [self.requests[request]["meaning"]]
                if others == [meaning] and self.requests[request]["id"] not in self.items:
                    others = []  # Its item has gone, maybe away and back: this may be it.
            if meaning in others:
                continue
            if others:
                request, meaning = who_it_is, meaning_of(given["spec"])
            fresh.append({**given, "request": request, "meaning": meaning, "identity": who_it_is})
        moved = self._renumber(fresh)
        if not fresh:
            return 0, len(drained), []
        new_requests = [item for item in fresh if item["request"] not in (None, *self.requests)]
        if len(new_requests) > self.options["request_id_max"]:
            for item in fresh:
                if item["request"] == item["identity"]:
                    item["request"] = None
            new_requests = [item for item in fresh if item["request"] not in (None, *self.requests)]
        if (
            len(self.having(*LIVE)) + len(fresh) > self.items_max()
            or self.live_bytes() + sum(size_of(item["spec"]) for item in fresh) > self.bytes_max()
        ):
            raise Refused("error.resourcelease.backpressure")
        if len(new_requests) > self.options["request_id_max"]:
            raise Refused("resourcelease.requestId.invalid")
        missing = len(self.requests) + len(new_requests) - self.options["request_id_max"]
        coming_back = [item["request"] for item in fresh]
        if new_requests and missing > len([key for key in self.spare_requests(now) if key not in coming_back]):
            raise Refused("error.resourcelease.request_ids_full")
        for given in fresh:
            self._bring_back(given, now)
            if given["last_token"] is not None and given["last_token"][3] is not None:
                # Stores downstream may have seen it: nothing granted from here on may be below.
                self.fences.append(given["last_token"][3])
        return len(fresh), len(drained) - len(fresh), moved

    def _renumber(self, fresh: list[Record]) -> list[tuple[int, int]]:
        """New numbers for those whose own are taken, in their old order and behind everything that is."""
        free: set[int] = set()
        moving: list[Record] = []
        for item in fresh:
            if item["sequence_id"] in self.items or item["sequence_id"] in free:
                moving.append(item)
            else:
                free.add(item["sequence_id"])
        moved: list[tuple[int, int]] = []
        number = max([self.next_id, *(taken + 1 for taken in free)])
        for item in sorted(moving, key=lambda item: item["sequence_id"]):
            moved.append((item["sequence_id"], number))
            item["sequence_id"] = number
            if item["request"] is None:
                item["request"], item["meaning"] = item["identity"], meaning_of(item["spec"])
            number += 1
        return moved

    def _bring_back(self, given: Record, now: int) -> None:
        not_before = given["not_before"]
        if not_before is not None and not_before <= now:
            not_before = None
        item = self.add_item(given["sequence_id"], given["spec"], given["enqueued_at"], not_before)
        for field in ("attempt", "last_error", "last_token", "progress", "parent", "request"):
            item[field] = given[field]
        item["burned"] = given.get("burned", 0)
        item["undelivered"] = given.get("undelivered", 0)
        if self.attempts_left(item) < 0:
            item["burned"] = item["attempt"] - 1
        if item["request"] is not None:
            self.remember_request(item, given["meaning"])

    # -- dead letters --------------------------------------------------------------------------

    def dead(self) -> list[Record]:
        return sorted(self.having("dead"), key=lambda item: item["ended_order"])

    def edit(self, sequence_id: int, spec: Record) -> None:
        item = self.known(sequence_id)
        if item["state"] != "dead":
            raise Refused("resourcelease.sequenceId.invalid")
        self.refuse_bad([spec])
        if spec["request"] not in (None, item["spec"]["request"]):
            raise Refused("resourcelease.requestId.invalid")
        kept = {name: item["spec"][name] for name in ("priority", "weight", "max_attempts", "request")}
        item["spec"] = {**spec, **kept}

    def select(self, selection: Record) -> tuple[list[Record], int | None]:
        """The dead letters meant, and the order number after which to go on (None: nothing is left)."""
        named: list[int] | None = selection.get("ids")
        if named is not None:
            chosen = [self.known(sequence_id) for sequence_id in dict.fromkeys(named)]
            if any(item["state"] != "dead" for item in chosen):
                raise Refused("error.resourcelease.unknown_item")
            return chosen, None
        chosen = []
        last = selection["after"]
        for item in self.dead():
            if item["ended_order"] <= selection["after"]:
                continue
            if len(chosen) >= selection["count"]:
                return chosen, last
            last = item["ended_order"]
            wanted_type, wanted_code = selection.get("type"), selection.get("code")
            if wanted_type is not None and item["spec"]["type"] != wanted_type:
                continue
            if wanted_code is not None and (item["last_error"] or ("", None))[1] != wanted_code:
                continue
            chosen.append(item)
        return chosen, None

    def redrive(self, selection: Record, rate: float | None, now: int) -> tuple[int, int | None]:
        chosen, go_on = self.select(selection)
        fitting: list[Record] = []
        room = self.items_max() - len(self.having(*LIVE))
        room_bytes = self.bytes_max() - self.live_bytes()
        for item in chosen:
            room -= 1
            room_bytes -= size_of(item["spec"])
            if room < 0 or room_bytes < 0:
                break
            fitting.append(item)
        if len(fitting) < len(chosen):
            if selection.get("ids") is not None or not fitting:
                raise Refused("error.resourcelease.backpressure")
            go_on = fitting[-1]["ended_order"]
        for index, item in enumerate(fitting):
            item["burned"] = item["attempt"]
            item["attempt"] += 1
            item["undelivered"] = 0
            item["ended_at"] = None
            not_before = None if rate is None else now + int(index * 1000 / rate)
            self.put(item, "ready" if not_before is None else "delayed", not_before, now)
        return len(fitting), go_on

    def purge(self, selection: Record, now: int) -> tuple[int, int | None]:
        chosen, go_on = self.select(selection)
        for item in chosen:
            self._forget(item, "purged", now)
        return len(chosen), go_on

    def _forget(self, item: Record, why: str, now: int) -> None:
        if item["state"] == "dead":
            self.end_request(item, now)
        del self.items[item["sequence_id"]]
        self.gone[item["sequence_id"]] = why

    # -- time ----------------------------------------------------------------------------------

    def undelivered(self, tokens: list[Token], now: int) -> None:
        """Grants whose answer could not be written: as if released, and no attempt burned."""
        for token in tokens:
            for item in self.having("leased"):
                if item["lease"]["token"] == token:
                    where = "cancelled" if item["cancel"] else "ready"
                    self.end_lease(item["lease"], "release", (where, None), now)
                    self.put(item, where, None, now)

    def due(self, now: int) -> list[Record]:
        late = [item for item in self.having("leased") if item["lease"]["deadline"] <= now]
        return sorted(late, key=lambda item: (item["lease"]["deadline"], item["sequence_id"]))

    def expire(self, count: int, now: int) -> int:
        late = self.due(now)[:count]
        for item in late:
            silent = item["lease"]["first_beat"] is None
            self.end_lease(item["lease"], "lost", None, now)
            item["last_error"] = EXPIRED
            item["undelivered"] += silent
            if silent:
                used_up = item["undelivered"] > self.options["max_undelivered"]
            else:
                used_up = self.attempts_left(item) <= 0
            if item["cancel"]:
                self.put(item, "cancelled", None, now)
            elif used_up:
                item["last_error"] = self.used_up(item, ", the last by expiry")
                if silent:
                    lost = f"{item['undelivered']} leases ran out without any sign of life"
                    item["last_error"] = (lost, "error.resourcelease.undelivered")
                self.put(item, "dead", None, now)
            else:
                not_before = self.pending_from(item, None, not silent, now)
                item["attempt"] += not silent
                self.put(item, "ready" if not_before is None else "delayed", not_before, now)
        return len(late)

    def advance(self, now: int) -> bool:
        """Delays end and memories run out; whether anything did."""
        options = self.options
        awake = [item for item in self.having("delayed") if item["not_before"] <= now]
        for item in awake:
            self.put(item, "ready", None, now)
        old = [
            item
            for item in self.having("completed", "cancelled")
            if item["ended_at"] + options["result_retention_ms"] <= now
        ]
        for item in old:
            self._forget(item, "its memory ran out", now)
        kept_ms = options["ended_lease_retention_ms"]
        ended = [lease for lease in self.ended if lease["ended_at"] + kept_ms > now]
        requests = {
            key: request
            for key, request in self.requests.items()
            if request["ended"] is None or request["ended"] + options["request_id_retention_max_ms"] > now
        }
        changed = bool(awake or old) or len(ended) < len(self.ended) or len(requests) < len(self.requests)
        self.ended, self.requests = ended, requests
        return changed

    def next_due(self) -> int | None:
        """When time itself will change something next."""
        options = self.options
        moments = [item["lease"]["deadline"] for item in self.having("leased")]
        moments += [item["not_before"] for item in self.having("delayed")]
        moments += [item["ended_at"] + options["result_retention_ms"] for item in self.finished()]
        moments += [lease["ended_at"] + options["ended_lease_retention_ms"] for lease in self.ended]
        moments += [
            request["ended"] + options["request_id_retention_max_ms"]
            for request in self.requests.values()
            if request["ended"] is not None
        ]
        return min(moments, default=None)

    def enforce_caps(self, now: int) -> int:
        """The oldest go until the caps hold; how many dead letters went."""
        options = self.options
        dead = self._beyond(self.dead(), options["dead_letter_max"], options["dead_letter_bytes_max"])
        finished = self.finished()
        old = self._beyond(finished, options["result_max"], options["result_bytes_max"])
        for item in dead + old:
            self._forget(item, "beyond the cap", now)
        return len(dead)

    def finished(self) -> list[Record]:
        return sorted(self.having("completed", "cancelled"), key=lambda item: item["ended_order"])

    def _beyond(self, oldest_first: list[Record], count_max: int, bytes_max: int) -> list[Record]:
        going: list[Record] = []
        staying = list(oldest_first)
        while len(staying) > count_max or sum(map(self.kept_bytes, staying)) > bytes_max:
            going.append(staying.pop(0))
        return going

    def kept_bytes(self, item: Record) -> int:
        return size_of(item["spec"]) + (0 if item["result"] is None else len(item["result"][0]))

    # -- leadership and options ----------------------------------------------------------------

    def restart(self, last_event_at: int, now: int) -> None:
        """Nobody could heartbeat while the shard was down, so every live lease moves by the outage."""
        for item in self.having("leased"):
            item["lease"]["deadline"] += now - last_event_at
            item["lease"]["moved"] += now - last_event_at

    def start_generation(self, next_id: int) -> None:
        assert next_id >= self.next_id + 2**32
        self.next_id = next_id

    def change_options(self, options: Record) -> None:
        self.options = options
        del self.ended[: max(0, len(self.ended) - options["ended_lease_max"])]

    # -- what the shard chose ------------------------------------------------------------------

    def settle(self, not_before_of: Callable[[int], int | None]) -> None:
        """Take over the moments the shard chose, after checking that it was allowed to."""
        for item in self.having("delayed"):
            allowed: Any = item["not_before"]
            if not isinstance(allowed, Chosen):
                continue
            chosen = not_before_of(item["sequence_id"])
            assert chosen is not None
            assert allowed.low <= chosen <= allowed.high, (allowed.low, chosen, allowed.high)
            item["not_before"] = chosen
            for lease in self.ended:
                if lease["verb"] == "fail" and lease["answer"][1] is allowed:
                    lease["answer"] = (lease["answer"][0], chosen)
