"""Settings of a session that suit the size of the work.

Spark is made for many rows: it writes and compiles code for every query, and plans anew while it runs. For a few
thousand events that takes far longer than the work itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW_EVENTS: Final = 50_000
"""Up to so many events in the tables count as few."""
_NEW_MORE: Final = 3
"""So many times as many new events count as few, too, where the tables hold many: then it is not all of them that are
read and written, and code made for every query, table after table, takes longer than the work.
"""
_PARTITION_EVENTS: Final = 250_000
"""About so many fit into the memory of one task while they are sorted."""
PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_MAX: Final = 2_000
"""Each costs something, however little is in it. More events than these hold take longer for each."""

_FOR_FEW: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    PARTITIONS: "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


class Suited(msgspec.Struct, frozen=True):
    """What a session was set for. What is kept of few events does not outlive the process that keeps it: on a cluster,
    where that may be lost, nothing counts as few.
    """

    few: bool = False
    """There are few events in the tables."""
    few_new: bool = False
    """There are few new ones, in the tables perhaps many."""


class Sizing:
    """Suits a session to the number of events, there and back again."""

    def __init__(self, session: SparkSession, few_events: int = FEW_EVENTS) -> None:
        self._session = session
        self._few_events = few_events
        self._given = {name: session.conf.get(name, None) for name in _FOR_FEW}
        self._here = (session.conf.get("spark.master", None) or "").startswith("local")

    def suit(self, events: int, new: int | None = None) -> Suited:
        """Set the session for few events, for few new ones among many, or for many.

        How many parts work is cut into goes by the new ones where they are known: a part is a file of rows in the end,
        and a long log would get as many small ones with every run.
        """
        few = self._here and events <= self._few_events
        few_new = few or (self._here and new is not None and new <= self._few_events * _NEW_MORE)
        # What is old is not sorted again, but for what is still open: that spills, as a rule there is little of it.
        partitions = self._partitions(events if new is None else min(new, events))
        self._set(_FOR_FEW if few_new else {**self._given, PARTITIONS: partitions})
        return Suited(few, few_new)

    @contextmanager
    def suited(self, events: int) -> Iterator[None]:
        """The same for a while: the session is the caller's."""
        self.suit(events)
        try:
            yield
        finally:
            self._set(self._given)

    def _set(self, settings: Mapping[str, str | None]) -> None:
        for name, value in settings.items():
            if value is None:
                self._session.conf.unset(name)
            elif value != self._session.conf.get(name, None):
                self._session.conf.set(name, value)

    def _partitions(self, events: int) -> str:
        """As many as were given, or more for a long log; Spark puts those together that turn out small."""
        return str(max(int(self._given[PARTITIONS] or 1), min(-(-events // _PARTITION_EVENTS), _PARTITIONS_MAX)))
