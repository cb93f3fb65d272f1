"""What the gates allow: whether a grant was in order, and whether a lease call may have got nothing.

Virtual times are left out on purpose. Whose turn it is among types and tenants of one class is checked by what
they got (`Fairness`), so all that is unknown here is which lane of a share is next; where a type limit lets one
lane's head through and not another's, the model knows what *may* be offered and what *must* be.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.property.gates_model import GatesModel, Record

Lane = tuple[int, str, str]
Share = tuple[int, str]
Member = Lane | Share | tuple[int, ...]
UNIT = 1 << 20
RULES_OF_TURNS = ("ordering", "key", "fifoHead", "tenantAttribute", "tenantWeights", "limits")


class Picture(NamedTuple):
    """Who offers something after an event."""

    heads: dict[Lane, Record]
    """Lanes that offer, with the item each would give."""
    may: frozenset[Share]
    must: frozenset[Share]

    def lanes_of(self, share: Share) -> list[Lane]:
        return [lane for lane in self.heads if lane[:2] == share]


class Filter(NamedTuple):
    """What a lease call asked for; None: anything."""

    types: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None

    def takes(self, lane: Lane) -> bool:
        _, kind, tenant = lane
        if self.types is not None and not any(fnmatchcase(kind, glob) for glob in self.types):
            return False
        return self.tenants is None or tenant in self.tenants


ANYTHING = Filter()


class Fairness:
    """Who keeps offering gets no less than anybody else of its group, apart from two charges.

    Virtual times of members that offer are at most the largest charge of their group apart, and being away earns
    nobody anything. So whatever another one does, it cannot get ahead of one that offers all the time by more than
    twice that. A call with a filter takes out of turn: nothing is promised from then on.
    """

    def __init__(self) -> None:
        self.promised = True
        self.largest: dict[Member, int] = {}
        """The largest charge in each group. A group is a member's name without its last part."""
        self.got: dict[Member, dict[Member, int]] = {}
        """For each member that offers: what everybody in its group got since it does."""

    def charge(self, member: Member, cost: int) -> None:
        group = member[:-1]
        self.largest[group] = max(cost, self.largest.get(group, 0))
        for patient, got in self.got.items():
            if patient[:-1] == group:
                got[member] = got.get(member, 0) + cost
                ahead = got[member] - got.get(patient, 0)
                assert ahead <= 2 * self.largest[group], f"{member} is {ahead} ahead of {patient}"

    def settle(self, offering: Iterable[Member]) -> None:
        self.got = {member: self.got.get(member, {}) for member in offering}

    def start_over(self) -> None:
        self.got = {}


class GatesJudge(GatesModel):
    def __init__(self, options: Record) -> None:
        super().__init__(options)
        self.grants = 0
        self.picture = Picture({}, frozenset(), frozenset())
        self.may_wait_since: dict[int, int] = {}
        """Per class: since when it may have been offering without an ordinary grant …"""
        self.must_wait_since: dict[int, int] = {}
        """… and since when it surely has."""
        self.ceased: dict[int, tuple[int, int]] = {}
        """Per class: when it last ceased to offer other than by a grant, and since when it had been offering then."""
        self.guarded_at: dict[int, int] = {}
        """Per class: which grant was the last that the guard gave it."""
        self.lanes_fair = Fairness()
        self.shares_fair = Fairness()

    # -- who offers ----------------------------------------------------------------------------

    def lane(self, item: Record) -> Lane:
        return item["class"], item["type"], self.tenant(item)

    def standing_lanes(self) -> dict[Lane, Record]:
        """The first standing item of each lane that has one."""
        heads: dict[Lane, Record] = {}
        for item in sorted(self.having("ready"), key=lambda item: int(item["order"])):
            if self.stands(item):
                heads.setdefault(self.lane(item), item)
        return heads

    def look(self) -> Picture:
        heads = self._within_tenant_limits(self.standing_lanes())
        may, must = self._within_type_limits(heads)
        return Picture(heads, frozenset(may), frozenset(must))

    def _within_tenant_limits(self, heads: dict[Lane, Record]) -> dict[Lane, Record]:
        """In each tenant a head that does not fit keeps the room for itself: nobody behind it passes."""
        offering: dict[Lane, Record] = {}
        blocked: set[str] = set()
        for lane in sorted(heads, key=lambda lane: (lane[0], heads[lane]["order"], lane[1])):
            tenant = lane[2]
            if not self.fits("tenant", heads[lane]):
                blocked.add(tenant)
            if tenant not in blocked and (None, tenant) not in self.pauses:
                offering[lane] = heads[lane]
        return offering

    def _within_type_limits(self, heads: dict[Lane, Record]) -> tuple[set[Share], set[Share]]:
        """The same for each type, whose shares go by class; which lane's head counts is the turn's to say."""
        may: set[Share] = set()
        must: set[Share] = set()
        surely_blocked: set[str] = set()
        maybe_blocked: set[str] = set()
        for share in sorted({lane[:2] for lane in heads}):
            kind = share[1]
            fitting = [self.fits("type", head) for lane, head in heads.items() if lane[:2] == share]
            if not any(fitting):
                surely_blocked.add(kind)
            if not all(fitting):
                maybe_blocked.add(kind)
            if (kind, None) in self.pauses:
                continue
            if kind not in surely_blocked:
                may.add(share)
            if kind not in maybe_blocked:
                must.add(share)
        return may, must

    # -- what a call may get -------------------------------------------------------------------

    def may_give(self, wanted: Filter) -> dict[int, list[Record]]:
        """Per class the items that a call may get from it."""
        giving: dict[int, list[Record]] = {}
        for lane, head in self.picture.heads.items():
            if wanted.takes(lane) and lane[:2] in self.picture.may and self.fits("type", head):
                giving.setdefault(lane[0], []).append(head)
        return giving

    def must_give(self, wanted: Filter) -> set[int]:
        """The classes that have something for a call for sure, whichever lane has its turn."""
        giving: set[int] = set()
        for share in self.picture.must:
            taken = [lane for lane in self.picture.lanes_of(share) if wanted.takes(lane)]
            if taken and all(self.fits("type", self.picture.heads[lane]) for lane in taken):
                giving.add(share[0])
        return giving

    # -- judging -------------------------------------------------------------------------------

    def judge_nothing(self, wanted: Filter) -> None:
        assert self.shard_paused() or not self.must_give(wanted), f"classes {self.must_give(wanted)} have something"

    def judge_grant(self, event: Record, wanted: Filter) -> None:
        """Check a LeaseGranted event against the state before it, then follow it."""
        item = self.items[event["ownership"]["sequenceId"]]
        now: int = event["timestamp"]
        self._check_gates(item)
        assert wanted.takes(self.lane(item)), "not what was asked for"
        assert item in self.may_give(wanted).get(item["class"], []), "held back, or not the first of its lane"
        self._check_class(item, wanted, now, event.get("guard", False))
        self.grants += 1
        self._charge(item, wanted)
        self.follow(event)
        self.settle(now)
        self._count(item["class"], now, event.get("guard", False))

    def _check_gates(self, item: Record) -> None:
        """The gates one by one, apart from whose turn it is."""
        assert self.stands(item), "its key holds it back"
        assert not self.pauses_over(item), "paused"
        for by in ("type", "tenant", "key"):
            assert self.fits(by, item), f"beyond the limit by {by}"
        if self.options["ordering"] != "none":
            assert not self.of_same_key(item, "leased")
        if self.options["ordering"] == "fifo":
            before = ("ready", "delayed") if self.options["fifoHead"] == "hold" else ("ready",)
            assert all(other["order"] >= item["order"] for other in self.of_same_key(item, *before)), "overtaken"

    def _check_class(self, item: Record, wanted: Filter, now: int, by_guard: bool) -> None:
        must, may = self.must_give(wanted), self.may_give(wanted)
        starving = [c for c in self._waited_too_long(self.must_wait_since, now) if c in must]
        if not by_guard:
            assert not starving, f"the guard had to see to {starving}"
            assert all(c >= item["class"] for c in must), "a lower class was first"
            return
        hungry = [c for c in self._waited_too_long(self.may_wait_since, now) if c in may]
        assert item["class"] in hungry, "the guard had no reason"
        assert all(self._guard_rank(c) >= self._guard_rank(item["class"]) for c in starving), "it was another's turn"

    def _waited_too_long(self, waiting_since: dict[int, int], now: int) -> list[int]:
        """Classes the guard looks after, when the next grant is one of its."""
        every, after = self.options["starvationEvery"], self.options["starvationAfterMs"]
        if not every or (self.grants + 1) % every:
            return []
        return [class_ for class_, since in waiting_since.items() if since + after < now]

    def guard_may_step_in(self, now: int) -> bool:
        return bool(self._waited_too_long(self.may_wait_since, now))

    def _guard_rank(self, class_: int) -> tuple[int, int]:
        return self.guarded_at.get(class_, 0), class_

    def _count(self, class_: int, now: int, by_guard: bool) -> None:
        self.ceased.pop(class_, None)
        if by_guard:
            self.guarded_at[class_] = self.grants
            return
        for since in (self.may_wait_since, self.must_wait_since):
            if class_ in since:
                since[class_] = now

    def _charge(self, item: Record, wanted: Filter) -> None:
        lane = self.lane(item)
        for fair in (self.lanes_fair, self.shares_fair):
            fair.promised = fair.promised and wanted == ANYTHING
        if self.lanes_fair.promised:
            self.lanes_fair.charge(lane, item["weight"] * UNIT // self.options["tenantWeights"].get(lane[2], 1))
            self.shares_fair.charge(lane[:2], item["weight"] * UNIT)

    # -- after each event ----------------------------------------------------------------------

    def take_over(self, event: Record) -> None:
        """Follow an event that needs no judgement."""
        assert event["eventType"] != "LeaseGranted"
        rules = self._rules_of_turns()
        self.follow(event)
        if self._rules_of_turns() != rules:
            self._start_over()
        self.settle(event["timestamp"])

    def _rules_of_turns(self) -> list[object]:
        return [self.options[name] for name in RULES_OF_TURNS]

    def _start_over(self) -> None:
        """Who is next is decided in another way from here on: nobody has waited or got anything under the new one."""
        self.may_wait_since, self.must_wait_since, self.ceased, self.guarded_at = {}, {}, {}, {}
        self.lanes_fair.start_over()
        self.shares_fair.start_over()

    def _first_may_wait(self, class_: int, now: int) -> int:
        """What ceases and goes on in the same millisecond may count as never having ceased."""
        ceased_at, since = self.ceased.get(class_, (0, now))
        return since if ceased_at == now else now

    def settle(self, now: int) -> None:
        self.picture = self.look()
        may = {share[0] for share in self.picture.may}
        must = {share[0] for share in self.picture.must}
        self.ceased.update({each: (now, since) for each, since in self.may_wait_since.items() if each not in may})
        self.may_wait_since = {each: self.may_wait_since.get(each, self._first_may_wait(each, now)) for each in may}
        self.must_wait_since = {each: self.must_wait_since.get(each, now) for each in must}
        self.lanes_fair.settle(self.picture.heads)
        self.shares_fair.settle(self.picture.must)
