"""The conformance suite of `EventLog`: a store that passes it keeps the log's promise.

A store's test module says how to open, crash and damage it, and inherits the tests:

    class TestMyLog(EventLogConformance):
        @pytest.fixture
        def store(self, tmp_path: Path) -> LogStore:
            return MyStore(tmp_path)

Needs pytest and pytest-asyncio. The tests use public methods of `EventLog` only; everything else a store must be able
to do to itself is a method of `LogStore`. `SimulatedCrash` is raised at the failpoints of `omnirelay.log.failpoints`,
so a store has to pass the `log.append.…` points in its append.
"""

from __future__ import annotations

import pytest

from omnirelay.testing.conformance.failing import FailingConformance
from omnirelay.testing.conformance.fencing import FencingConformance, RivalConformance
from omnirelay.testing.conformance.keeping import KeepingConformance
from omnirelay.testing.conformance.leader import Leader, SimulatedCrash, frames_of, make_events
from omnirelay.testing.conformance.store import REGIONS, LogStore, Region
from omnirelay.testing.conformance.writing import WritingConformance

__all__ = [
    "REGIONS",
    "EventLogConformance",
    "Leader",
    "LogStore",
    "Region",
    "SimulatedCrash",
    "SingleWriterConformance",
    "frames_of",
    "make_events",
]


class SingleWriterConformance(WritingConformance, FencingConformance, FailingConformance, KeepingConformance):
    """Every test that one writer is enough for: all of the suite for a store that keeps others away by other means than
    comparing. Inherit it and supply the fixture `store`.
    """

    @pytest.fixture
    def store(self) -> LogStore:
        raise NotImplementedError("a conformance test supplies the fixture `store`")


class EventLogConformance(SingleWriterConformance, RivalConformance):
    """Every test of the suite. Inherit it and supply the fixture `store`."""
