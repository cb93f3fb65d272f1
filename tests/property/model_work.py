"""What workers do, as the naive model sees it: lease, heartbeat, complete, fail, release."""

from __future__ import annotations

from tests.property.model import LIVE, Chosen, ModelBase, Record, Refused, Token, Who, size_of


class WorkModel(ModelBase):
    # -- leasing -------------------------------------------------------------------------------

    def interval(self, duration: int) -> int:
        return min(int(self.options["heartbeat_interval_ms"]), duration // 3)

    def grant(
        self, who: Who, count: int, duration: int | None, request: str | None, now: int, turns: list[int]
    ) -> tuple[bool, list[Record]]:
        """The leases this call gets, and whether they are new: those still want a lease id and a fence.

        `turns` is the order in which the shard would take all ready items.
        """
        if duration is not None and not 1 <= duration <= self.options["max_lease_duration_ms"]:
            raise Refused("resourcelease.leaseDurationMs.invalid")
        scope = None if request is None else (who[0], None if who[0] is not None else who[1], request)
        if scope is not None:
            held = [
                item["lease"]
                for item in self.having("leased")
                if item["lease"]["scope"] == scope and item["lease"]["deadline"] > now
            ]
            if held:
                return False, sorted(held, key=lambda lease: lease["token"][3])
        ready = sorted(self.having("ready"), key=lambda item: turns.index(item["sequence_id"]))
        assert len(ready) == len(turns)
        duration = self.options["lease_duration_ms"] if duration is None else duration
        return True, [self._lease(item, who, duration, scope, now) for item in ready[:count]]

    def _lease(
        self, item: Record, who: Who, duration: int, scope: tuple[str | None, str | None, str] | None, now: int
    ) -> Record:
        item["state"] = "leased"
        item["lease"] = {
            "item": item,
            "token": None,
            "owner": who[1] or who[0] or "",
            "principal": who[0],
            "granted_at": now,
            "deadline": now + duration,
            "duration": duration,
            "scope": scope,
            "first_beat": None,
            "extended_at": now,
            "moved": 0,
        }
        lease: Record = item["lease"]
        return lease

    def name_lease(self, lease: Record, token: Token) -> None:
        """Take over the lease id and the fence the shard chose."""
        assert lease["token"] is None
        assert token[3] is not None
        assert all(token[3] > fence for fence in self.fences), "fences only ever rise"
        self.fences.append(token[3])
        lease["token"] = token

    # -- acknowledging -------------------------------------------------------------------------

    def find(self, token: Token, who: Who, arrived: int, verb: str) -> tuple[bool, Record]:
        """The lease a token stands for, and whether it is live. Ended by this very verb also counts."""
        live = [item["lease"] for item in self.having("leased")]
        for lease in live + self.ended[::-1]:
            known: Token = lease["token"]
            if known[:2] != token[:2] or known[2] != token[2].lower():
                continue
            if token[3] is not None and token[3] != known[3]:
                raise Refused("error.resourcelease.fence_mismatch")
            if lease["principal"] is not None:
                if who[0] != lease["principal"]:
                    raise Refused("error.resourcelease.not_owner")
            elif who[1] is not None and who[1] != lease["owner"]:
                raise Refused("error.resourcelease.not_owner")
            if "verb" in lease:
                if lease["verb"] != verb:
                    raise Refused("error.taskqueue.lease_inactive")
                return False, lease
            if arrived >= lease["deadline"]:
                raise Refused("error.taskqueue.lease_inactive")
            return True, lease
        raise Refused("error.resourcelease.unknown_token")

    def heartbeat(self, token: Token, who: Who, progress: object, now: int, arrived: int) -> tuple[Record, bool, bool]:
        """The lease, and whether this heartbeat may and must extend it to now + duration.

        Before the interval has passed since the last extension it may not; once it has passed since
        the last extension and since the first sign of life (and since the lease moved), it must.
        """
        _, lease = self.find(token, who, arrived, "heartbeat")
        since = now - lease["extended_at"]
        first = lease["first_beat"]
        interval = self.interval(lease["duration"])
        later = now + lease["duration"] > lease["deadline"]
        may = later and since >= interval
        must = may and since - lease["moved"] >= interval and (first is None or now - first >= interval)
        if first is None:
            lease["first_beat"] = now
            lease["item"]["undelivered"] = 0
        if progress is not None:
            lease["item"]["progress"] = progress
        return lease, may, must

    def extend(self, lease: Record, now: int) -> None:
        lease["deadline"] = now + lease["duration"]
        lease["extended_at"] = now
        lease["moved"] = 0

    def complete(
        self,
        token: Token,
        who: Who,
        result: tuple[bytes, str | None] | None,
        follow_ups: list[Record],
        now: int,
        arrived: int,
    ) -> list[int] | None:
        live, lease = self.find(token, who, arrived, "complete")
        if not live:
            first: list[int] | None = lease["answer"]
            return first
        item = lease["item"]
        answer: list[int] | None = None
        fresh: list[tuple[int, Record]] = []
        if result is not None and len(result[0]) > self.options["body_limit"]:
            raise Refused("resourcelease.payload.too_large")
        if follow_ups:
            self.refuse_bad(follow_ups)
            results, fresh = self.plan(follow_ups, who, now)
            added = sum(size_of(spec) for _, spec in fresh) - size_of(item["spec"])
            more = len(fresh) - 1
            if (more > 0 and len(self.having(*LIVE)) + more > self.items_max()) or (
                added > 0 and self.live_bytes() + added > self.bytes_max()
            ):
                raise Refused("error.resourcelease.backpressure")
            answer = [sequence_id for sequence_id, _ in results]
        self.end_lease(lease, "complete", answer, now)
        item["result"] = result
        self.finish(item, "completed", now)
        self.take_in(fresh, who, now, item["sequence_id"])
        return answer

    def fail(
        self,
        token: Token,
        who: Who,
        mode: str,
        error: tuple[str | None, str | None],
        delay: int | None,
        now: int,
        arrived: int,
    ) -> tuple[str, int | Chosen | None]:
        live, lease = self.find(token, who, arrived, "fail")
        if not live:
            return self.first_answer(lease)
        item = lease["item"]
        reason, code = error
        item["last_error"] = (
            "lease failed" if reason is None else reason,
            code or "error.resourcelease.failed",
        )
        not_before: int | Chosen | None = None
        if item["cancel"]:
            where = "cancelled"
        elif mode == "dead":
            where = "dead"
        elif mode == "retry" and self.attempts_left(item) <= 0:
            where = "dead"
            if item["last_error"] == ("lease failed", "error.resourcelease.failed"):
                item["last_error"] = self.used_up(item, "")
        else:
            not_before = self.pending_from(item, delay, mode == "retry", now)
            where = "ready" if not_before is None else "delayed"
            item["attempt"] += mode == "retry"
        return self._end_by_owner(lease, "fail", where, not_before, now)

    def release(
        self, token: Token, who: Who, delay: int | None, now: int, arrived: int
    ) -> tuple[str, int | Chosen | None]:
        live, lease = self.find(token, who, arrived, "release")
        if not live:
            return self.first_answer(lease)
        if lease["item"]["cancel"]:
            return self._end_by_owner(lease, "release", "cancelled", None, now)
        not_before = self.pending_from(lease["item"], delay, False, now)
        where = "ready" if not_before is None else "delayed"
        return self._end_by_owner(lease, "release", where, not_before, now)

    def _end_by_owner(
        self, lease: Record, verb: str, where: str, not_before: int | Chosen | None, now: int
    ) -> tuple[str, int | Chosen | None]:
        self.end_lease(lease, verb, (where, not_before), now)
        lease["item"]["undelivered"] = 0
        self.put(lease["item"], where, not_before, now)
        return where, not_before

    def first_answer(self, lease: Record) -> tuple[str, int | Chosen | None]:
        answer: tuple[str, int | Chosen | None] = lease["answer"]
        return answer

    def attempts_left(self, item: Record) -> int:
        return self.attempts_max(item) - int(item["attempt"] - item["burned"])

    def attempts_max(self, item: Record) -> int:
        limit = item["spec"]["max_attempts"]
        return int(self.options["max_delivery_attempts"] if limit is None else limit)

    def used_up(self, item: Record, how: str) -> tuple[str, str]:
        """Why an item is dead whose last owner did not say what was wrong."""
        limit = self.attempts_max(item)
        return f"failed {limit} of {limit} times{how}", "error.resourcelease.attempts_exhausted"

    def pending_from(self, item: Record, delay: int | None, backoff: bool, now: int) -> int | Chosen | None:
        """When the item may be leased again. The jitter of a retry delay is the shard's to choose."""
        if delay is not None or not backoff:
            return now + delay if delay else None
        made = item["attempt"] - item["burned"]
        plain = min(self.options["requeue_delay_ms"] * 2 ** min(made - 1, 40), self.options["retry_delay_max_ms"])
        return Chosen(now + plain * 9 // 10, now + plain * 11 // 10) if plain else None
