"""Settings of a session that suit the size of the work.

Spark is made for many rows: it writes and compiles code for every query, and plans anew while it runs. For a few
thousand events that takes far longer than the work itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW_EVENTS: Final = 50_000
"""Up to so many events in the tables they count as few."""

_FOR_FEW: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


class Sizing:
    """Suits a session to the number of events, there and back again."""

    def __init__(self, session: SparkSession, few_events: int) -> None:
        self._session = session
        self._few_events = few_events
        self._given = {name: session.conf.get(name, None) for name in _FOR_FEW}
        self._few = False

    def suit(self, events: int) -> bool:
        """Whether they are few; the session is set for it."""
        few = events <= self._few_events
        if few != self._few:
            self._few = few
            for name, value in (_FOR_FEW if few else self._given).items():
                if value is None:
                    self._session.conf.unset(name)
                else:
                    self._session.conf.set(name, value)
        return few
