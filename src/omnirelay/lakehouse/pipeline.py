"""The pipeline: from segments to bronze, silver and gold, each table in one commit.

    segments ──▶ bronze.events ──▶ leases ─┬─▶ items
                                           ├─▶ peers           with few new events, those behind
                                           ├─▶ backpressure ──▶ slo     leases a few at a time
                                           ├─▶ daily ─────────▶ anomalies
                                           └─▶ lineage, resource_health

Every table says in its commits how far it has come.

It may be killed anywhere. Every step brings one table to a target, and the target of a run that was cut off is where
its first table, `leases`, already is. The next run first brings the others there, each from where it is itself, and
only then goes on. So no table is ever folded from another that is ahead of it by a part. A run looks at this again
before every step, because others may be at work on the same tables.
"""

from __future__ import annotations

import atexit
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from omnirelay.errors import DataLoss
from omnirelay.lakehouse import bronze
from omnirelay.lakehouse.bronze_source import Refused, ShardPlan, find_new
from omnirelay.lakehouse.errors import NothingToRebuild
from omnirelay.lakehouse.formats import open_tables, overtaken
from omnirelay.lakehouse.progress import NOTHING, Progress, commit_number, events_between, events_in, within
from omnirelay.lakehouse.side_by_side import do_side_by_side
from omnirelay.lakehouse.sizing import FEW_EVENTS, Sizing
from omnirelay.lakehouse.steps import Steps
from omnirelay.lakehouse.tables import (
    ANOMALIES,
    BACKPRESSURE,
    DAILY,
    EVENTS,
    GOLD,
    LEASES,
    RESOURCE_HEALTH,
    SILVER,
    SLO,
    TABLES,
    Table,
)
from omnirelay.lakehouse.waiting import waited

_FOLLOWING: Final = tuple(table for table in (*SILVER, *GOLD) if table is not LEASES)
"""The tables that are brought to where leases are. Each is made of leases, of bronze and of itself as it was; only slo
and anomalies are made of another, too.
"""
_BEHIND: Final = {SLO: (BACKPRESSURE,), ANOMALIES: (DAILY,)}
_ADDED_TO: Final = (RESOURCE_HEALTH, DAILY)
"""Tables whose rows hold what the next run adds to."""


class Done(msgspec.Struct, frozen=True):
    """One step of a run."""

    table: str
    seconds: float


class Summary(msgspec.Struct, kw_only=True):
    """What a run did."""

    events: int = 0
    """New in bronze."""
    segments: int = 0
    """Files that were read for them."""
    refused: list[Refused] = []
    newly_refused: int = 0
    steps: list[Done] = []
    progress: dict[str, int] = {}
    """The last event of each shard that the tables hold."""
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        return bool(self.steps)


def _unseen(what: str, seconds: float | None) -> None:
    """Nobody looks."""


def _go_on(point: str) -> None:
    """Nothing happens between two commits."""


class Pipeline:
    """One source and one warehouse. Two of them on the same warehouse do no harm: one of them is told to come again."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        warehouse: str,
        kind: str = "delta",
        *,
        options: Mapping[str, Any] | None = None,
        report: Callable[[str, float | None], None] = _unseen,
        failpoint: Callable[[str], None] = _go_on,
        stopping: Callable[[], bool] | None = None,
        few_events: int = FEW_EVENTS,
        gone: Collection[str] = (),
    ) -> None:
        """`report(step, seconds)` is called when a step begins (None) and ends; `failpoint(name)` after each commit.

        `stopping` is asked before each step whether to end here. The next run goes on where this one stopped.
        Up to `few_events` in the tables they are read and written whole; when not many more are new, tables are changed
        at once, by threads, which call these functions, too. Shards that are `gone` are not missed when the source has
        no segments of them any more.
        """
        self.tables = open_tables(spark, warehouse, kind)
        self._sizing = Sizing(self.tables.spark, few_events)
        self._source = source
        self._options = options
        self._report = report
        self._failpoint = failpoint
        self._stopping = stopping or (lambda: False)
        self._gone = frozenset(gone)
        self._whole: set[Table] = set()
        """Tables that are known to have all of their columns."""

    def run(self) -> Summary:
        """Take in what is new and bring every table up to it. Commits nothing when there is nothing new."""
        return self._followed(time.monotonic(), self.ingest())

    def _followed(self, began: float, summary: Summary) -> Summary:
        """Bring every table to where bronze is; the summary of the whole run."""
        while not self._stopping() and (found := self._target()) is not None:
            target, new = found
            self._bring_all(target, new, summary)
        summary.progress = {name: end.sequence for name, end in self.tables.progress(EVENTS).items()}
        summary.seconds = time.monotonic() - began
        return summary

    def _bring_all(self, target: Progress, new: int, summary: Summary) -> None:
        suited = self._sizing.suit(events_in(target), new)
        steps = Steps(self.tables, suited)
        try:
            self._bring(steps, LEASES, target, summary)
            work = {table: partial(self._bring, steps, table, target, summary) for table in _FOLLOWING}
            # Many events keep all processors busy with one table, and several of them would share the memory.
            do_side_by_side(work, self.tables.at_once if suited.few_new else 1, behind=_BEHIND)
        finally:
            steps.close()

    def _bring(self, steps: Steps, table: Table, target: Progress, summary: Summary) -> None:
        if self._stopping():
            return
        place = self._place_of(table, target)
        if place != target:
            self._timed(summary, table, partial(steps.bring, table, place, target))

    def _place_of(self, table: Table, target: Progress) -> Progress:
        """Where a table is, from which it may be brought to the target; a commit is refused once it has left there.

        Raises TableOvertaken when others have gone on since the target was found out, so that it is no longer right.
        """
        place = self._progress(table)
        if not within(place, target):
            raise overtaken(table)  # Going back would count twice what lies between.
        # Leases go on when all others are where they are, and the others only up to leases. Everybody keeps to this:
        # what holds now holds for as long as the table stays where it is, and a commit asks for no more.
        if place != target:
            beside, there = (_FOLLOWING, place) if table is LEASES else ((LEASES,), target)
            if any(self._progress(each) != there for each in beside):
                raise overtaken(table)
        return place

    def _progress(self, table: Table) -> Progress:
        """How far a table has come. One whose rows were made before they held what a run adds to is made anew."""
        place = self.tables.progress(table)
        if table in _ADDED_TO and place != NOTHING and table not in self._whole:
            if not set(table.names) <= set(self.tables.read(table).columns):
                return NOTHING
            self._whole.add(table)
        return place

    def rebuild(self) -> Summary:
        """Make every table anew from the segments there are.

        They are looked at before anything is removed: where no event can be read, or none of a shard that the tables
        hold, they stay as they are. Raises NothingToRebuild then, and what else `run` raises for a source.
        """
        began = time.monotonic()
        with _staging() as staging:
            plans = self._look(NOTHING, staging)
            read = {plan.shard for plan in plans if plan.events}
            lost = sorted(set(self._held()) - read - self._gone)
            if (lost or not read) and any(map(self.tables.exists, TABLES)):
                raise _nothing_to_rebuild(self._source, plans, lost)
            # The last first: what a table is made of goes behind it, so that a run after half of this goes on from
            # there.
            for table in reversed(TABLES):
                self.tables.drop(table)
            if self.tables.progress(EVENTS) != NOTHING:
                raise overtaken(EVENTS)  # Somebody else has begun to fill it since.
            summary = self._take(plans, NOTHING)
        return self._followed(began, summary)

    def holds_events(self) -> bool:
        """Whether anything was ever taken in: then there were segments."""
        return bool(self._held())

    def _held(self) -> Collection[str]:
        """The shards in bronze, as far as it tells: where it does not, making it anew is the remedy."""
        try:
            return self.tables.progress(EVENTS)
        except DataLoss:
            return ()

    def _timed(self, summary: Summary, table: Table, work: Callable[[], None]) -> None:
        name = f"{table.layer}.{table.name}"
        self._report(name, None)
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        summary.steps.append(Done(name, seconds))
        self._report(name, seconds)
        self._failpoint(name)

    # -- bronze --------------------------------------------------------------------------------

    def ingest(self) -> Summary:
        """Only take in what is new; the other tables stay as they are."""
        after = self.tables.progress(EVENTS)
        with _staging() as staging:
            return self._take(self._look(after, staging), after)

    def _look(self, after: Progress, staging: Path) -> list[ShardPlan]:
        return waited(find_new(self._source, after, staging, self._options, gone=self._gone))

    def _take(self, plans: Sequence[ShardPlan], after: Progress) -> Summary:
        summary = Summary()
        summary.refused = [plan.refused for plan in plans if plan.refused is not None]
        summary.newly_refused = bronze.quarantine(self.tables, summary.refused)
        summary.segments = sum(len(plan.paths) for plan in plans)
        upto = bronze.ends_of(plans, after)
        self._sizing.suit(events_in(upto), events_between(after, upto))
        rows = bronze.new_events(self.tables.spark, plans, after)
        if rows is not None and upto != after:
            self._timed(summary, EVENTS, lambda: self.tables.append(EVENTS, rows, upto))
            summary.events = sum(plan.events for plan in plans)
        return summary

    # -- targets -------------------------------------------------------------------------------

    def _target(self) -> tuple[Progress, int] | None:
        """Where all tables are to be brought next, and how many events that is at most; None when they are there."""
        # Read against the order in which tables are brought on: so none seems to be ahead because somebody else is at
        # work.
        others = [(table, self._progress(table)) for table in reversed(_FOLLOWING)]
        begun = self.tables.progress(LEASES)
        newest = self.tables.progress(EVENTS)
        for table, place, before in (*((*each, begun) for each in others), (LEASES, begun, newest)):
            if not within(place, before):
                raise DataLoss(
                    f"{table.layer}.{table.name} holds events that the tables it is made of do not; one of those was"
                    " removed or began anew. Make them all anew: omnirelay lakehouse rebuild",
                    code="error.lakehouse.progress",
                    table=table.name,
                )
        if any(place != begun for _, place in others):
            return begun, max(events_between(place, begun) for _, place in others)
        return None if commit_number(begun) == commit_number(newest) else (newest, events_between(begun, newest))


@contextmanager
def _staging() -> Iterator[Path]:
    """Where segments that Spark cannot read where they are lie until they were taken."""
    staging = Path(tempfile.mkdtemp(prefix="omnirelay-segments-"))
    remove = partial(shutil.rmtree, staging, ignore_errors=True)
    # A signal may cut the removal off; then it is made up for when the process ends.
    atexit.register(remove)
    try:
        yield staging
    finally:
        remove()
        atexit.unregister(remove)


def _nothing_to_rebuild(source: str, plans: Sequence[ShardPlan], lost: Sequence[str]) -> NothingToRebuild:
    """`lost` are the shards that the tables hold and would not hold any more; with none of them all would be empty."""
    refused = [
        f"{plan.refused.segment}: {plan.refused.reason}"
        for plan in plans
        if plan.refused is not None and (not lost or plan.shard in lost)
    ]
    of_shard = f" of {lost[0]!r}, which the tables hold," if lost else ""
    accept = f"; say --gone {shlex.quote(lost[0])} to lose it" if lost else ""
    return NothingToRebuild(
        f"no event{of_shard} can be read from the segments in {source}; the tables stay as they are{accept}"
        + "".join(f"; {each}" for each in refused[:1]),
        source=source,
        shard=lost[0] if lost else None,
    )
