"""Several pipelines on one warehouse, in any order of their reads and commits: no table is folded from a wrong place.

The pipelines are real. What they work on says only how far each table is, and takes a commit from those alone that
begin where it is, as every format does (`test_table_stores`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omnirelay.lakehouse import pipeline as pipelines
from omnirelay.lakehouse.formats import TableOvertaken, overtaken
from omnirelay.lakehouse.pipeline import Pipeline, Summary
from omnirelay.lakehouse.progress import End, Progress
from omnirelay.lakehouse.sizing import Suited
from omnirelay.lakehouse.steps import Steps
from omnirelay.lakehouse.tables import ANOMALIES, BACKPRESSURE, DAILY, EVENTS, GOLD, LEASES, SILVER, SLO, Table
from tests.property.strategies import profile

MADE = (*SILVER, *GOLD)
PIPELINES = 2
RUNS = 4
"""That each of them ends well."""
GROW = PIPELINES
"""In an order: not a pipeline, but the log goes on."""
NEXT, AIM, FOLD_LEASES, FOLD_ITEMS, END = POINTS = ("next", "aim", "fold leases", "fold items", "end")
"""Up to where a pipeline goes on: its next look at the tables, or just before it does this."""
WAIT_S = 60


class Fold(msgspec.Struct, frozen=True):
    """What a commit says it did, and where the other tables were when it read them."""

    after: int
    upto: int
    seen: dict[str, int]


class Shape(msgspec.Struct, frozen=True):
    columns: Sequence[str]


class Warehouse:
    """What all pipelines see."""

    def __init__(self) -> None:
        self.log_end = 10
        self.at: dict[Table, Progress] = dict.fromkeys((EVENTS, *MADE), upto(10))
        self.folds: dict[Table, list[Fold]] = {table: [] for table in MADE}

    def places(self) -> dict[str, int]:
        return {table.name: number(self.at[table]) for table in MADE}


def upto(end: int) -> Progress:
    return {"a": End(end, f"{end:x}", "log", end)}


def number(progress: Progress) -> int:
    return progress["a"].sequence


class Turns:
    """A thread that goes on when it is told to, up to its next look at the warehouse; `point` says which it is."""

    def __init__(self, work: Callable[[Turns], None]) -> None:
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.point = NEXT
        self.over = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Turns], None]) -> None:
        self._go.acquire()
        try:
            work(self)
        except BaseException as error:
            self.error = error
        self.over = True
        self._paused.release()

    def pause(self, point: str) -> None:
        self.point = point
        self._paused.release()
        self._go.acquire()

    def go_on(self, point: str) -> None:
        while not self.over:
            self._go.release()
            assert self._paused.acquire(timeout=WAIT_S), "it neither paused nor ended"
            if point in (NEXT, self.point):
                break
        if self.error is not None:
            raise self.error


class Unhindered:
    """Goes on at once, from however many threads."""

    def pause(self, point: str) -> None:
        """Nobody waits."""


class Settings:
    """Of a session in which nothing is computed, on this machine: new events are few."""

    def get(self, name: str, default: str | None = None) -> str | None:
        return "local" if name == "spark.master" else default

    def set(self, name: str, value: str) -> None:
        """Nothing depends on it."""

    def unset(self, name: str) -> None:
        """Nothing depends on it."""


class Places:
    """One pipeline's tables: how far each is. What is committed begins where the progress was read, or is refused."""

    def __init__(self, warehouse: Warehouse, turns: Turns | Unhindered, at_once: int = 1) -> None:
        self.warehouse = warehouse
        self.turns = turns
        self.at_once = at_once
        self.spark = self
        self.conf = Settings()
        self.threads: set[threading.Thread] = set()
        self._bases: dict[Table, Progress] = {}

    def progress(self, table: Table) -> Progress:
        self.turns.pause(f"read {table.name}")
        found = self._bases[table] = self.warehouse.at[table]
        return found

    def read(self, table: Table) -> Shape:
        """Only which columns it has is asked of it here."""
        return Shape(table.names)

    def seen_for(self, table: Table) -> dict[str, int]:
        self.turns.pause(f"fold {table.name}")
        return self.warehouse.places()

    def commit(self, table: Table, upto: Progress, fold: Fold | None = None) -> None:
        self.turns.pause(f"commit {table.name}")
        self.threads.add(threading.current_thread())
        if self.warehouse.at[table] != self._bases.pop(table):
            raise overtaken(table)
        self.warehouse.at[table] = upto
        if fold is not None:
            self.warehouse.folds[table].append(fold)


class Told(Steps):
    """Steps that read where the tables are instead of their rows."""

    def __init__(self, tables: Any, suited: Suited) -> None:
        super().__init__(tables, suited)
        self._places: Places = tables
        tables.turns.pause(AIM)
        self._of.update({table: partial(self._fold, table) for table in MADE})

    def _fold(self, table: Table, after: Progress, upto: Progress) -> None:
        fold = Fold(number(after), number(upto), self._places.seen_for(table))
        self._places.commit(table, upto, fold)


class Sharing(Pipeline):
    """Takes in as many events as the log has."""

    def ingest(self) -> Summary:
        places: Any = self.tables
        if number(places.progress(EVENTS)) < places.warehouse.log_end:
            places.commit(EVENTS, upto(places.warehouse.log_end))
        return Summary()


@pytest.fixture(autouse=True)
def _places_for_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "open_tables", lambda places, *_: places)
    monkeypatch.setattr(pipelines, "Steps", Told)


def _until_done(warehouse: Warehouse, turns: Turns) -> None:
    places: Any = Places(warehouse, turns)
    pipeline = Sharing(places, "segments", "lake")
    done = 0
    while done < RUNS:
        try:
            pipeline.run()
            done += 1
        except TableOvertaken:
            continue


def raced(order: Sequence[tuple[int, str]]) -> Warehouse:
    """Let pipelines go on in an order, each up to a point, and then one by one to their ends."""
    warehouse = Warehouse()
    racing = [Turns(partial(_until_done, warehouse)) for _ in range(PIPELINES)]
    try:
        for turn, point in order:
            if turn == GROW:
                warehouse.log_end += 10
            else:
                racing[turn].go_on(point)
    finally:
        for each in racing:
            each.go_on(END)
    return warehouse


@given(order=st.lists(st.tuples(st.integers(0, GROW), st.sampled_from(POINTS)), max_size=30))
# One aims at 20, another at 30, and then the first brings leases to 20.
@example(order=[(GROW, NEXT), (0, AIM), (GROW, NEXT), (1, AIM), (0, FOLD_ITEMS), (1, END)])
# One that aims at 20 has seen where leases are, and then they are brought to 30.
@example(order=[(GROW, NEXT), (0, FOLD_LEASES), (GROW, NEXT), (1, END), (0, END)])
@profile(200)
def test_every_table_is_folded_once_and_from_where_the_others_are(order: list[tuple[int, str]]) -> None:
    assert_each_folded_once(raced(order))


class Killed(Exception):
    """The process is no more."""


@pytest.mark.parametrize("behind", MADE, ids=lambda table: table.name)
def test_tables_that_are_changed_at_once_are_folded_from_where_the_others_are(behind: Table) -> None:
    """Also when a run ends behind the commit of one of them, and the log has gone on before the next."""
    warehouse = Warehouse()
    places: Any = Places(warehouse, Unhindered(), at_once=3)

    def killed(point: str) -> None:
        if point == f"{behind.layer}.{behind.name}":
            raise Killed

    for _ in range(3):
        warehouse.log_end += 10
        with pytest.raises(Killed):
            Sharing(places, "segments", "lake", failpoint=killed).run()
        warehouse.log_end += 10
        Sharing(places, "segments", "lake").run()
    assert_each_folded_once(warehouse)
    assert len(places.threads) > 1
    slo, anomalies = warehouse.folds[SLO], warehouse.folds[ANOMALIES]
    assert all(fold.seen[BACKPRESSURE.name] == fold.upto for fold in slo), "slo reads the times of closed intake"
    assert all(fold.seen[DAILY.name] == fold.upto for fold in anomalies), "anomalies read the leases of the days"


def assert_each_folded_once(warehouse: Warehouse) -> None:
    assert set(warehouse.places().values()) == {number(warehouse.at[EVENTS])}
    for table, folds in warehouse.folds.items():
        places = [10, *(fold.upto for fold in folds)]
        assert [fold.after for fold in folds] == places[:-1], table.name
        for fold in folds:
            assert fold.after < fold.upto, table.name
            if table is LEASES:
                assert set(fold.seen.values()) == {fold.after}, "leases need the items as they were before"
            else:
                assert fold.seen[LEASES.name] == fold.upto, table.name
