"""`gold.anomalies` from the log to the table and to the report: each kind where it is, and where it almost is."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import TYPE_CHECKING

import pytest

from omnirelay.core import events as ev
from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.report import make_report
from omnirelay.lakehouse.sizing import FEW_EVENTS
from omnirelay.lakehouse.tables import ANOMALIES, DAILY
from tests.property.strategies import LONG
from tests.spark.incidents import BEHIND, logs_with_nothing, logs_with_something
from tests.spark.plain_gold import WINDOW_MS
from tests.spark.workload import START_MS, instant, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omnirelay.lakehouse.formats import TableStore

pytestmark = pytest.mark.timeout(900)
DAY = date(2023, 11, 14)


many = pytest.param(0, marks=pytest.mark.skipif(not LONG, reason="every table merged into: make spark-test"))


@pytest.fixture(scope="module", params=[FEW_EVENTS, many])
def tables(
    request: pytest.FixtureRequest, whole_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> TableStore:
    """The logs taken in by two runs: what was found in the first has to stay, and what both saw of a day to add up."""
    place = tmp_path_factory.mktemp("anomalies")
    logs = [*(log for _, log in logs_with_something()), *logs_with_nothing()]
    where = (str(place / "segments"), str(place / "lake"))
    pipeline = Pipeline(whole_spark, *where, "parquet" if request.param else "delta", few_events=request.param)
    for first, last in ((0, -BEHIND), (-BEHIND, None)):
        for log in logs:
            write_segments(place / "segments", log, first=first, last=last)
        pipeline.run()
    return pipeline.tables


def test_each_anomaly_is_in_the_table_where_it_happened_and_nowhere_else(tables: TableStore) -> None:
    rows = tables.read(ANOMALIES).collect()
    skewed = {
        log.shard: log.frames[-number] for number, (_, log) in zip((6, 4), logs_with_something()[-2:], strict=True)
    }
    storm = instant(START_MS // WINDOW_MS * WINDOW_MS)
    assert storm is not None
    assert sorted((row.kind, row.shard, row.date, row.subject, row.value, row.expected) for row in rows) == [
        *(
            ("clock_skew", shard, DAY, str(frame.first), float(frame.time_ms), float(frame.time_ms + 1_500))
            for shard, frame in skewed.items()
        ),
        ("owner_fails", "owner fails", DAY, "bob", 0.5, 1 / 6),
        ("resource_expires", "resource expires", DAY, "table/worn", 3.0, 0.0),
        ("retry_storm", "retry storm", DAY, storm.strftime("%Y-%m-%d %H:%M:%S"), 20.0, 20.0),
    ]
    assert {row.kind: row.detail for row in rows} == {
        "owner_fails": "3 of 6 leases failed or ran out",
        "resource_expires": "3 leases ran out",
        "retry_storm": "20 of 40 leases ended badly",
        "clock_skew": "the frame is 1500 ms older than the one it follows",
    }


def test_the_logs_in_which_nothing_is_found_come_as_close_as_they_say(tables: TableStore) -> None:
    alike, seldom, now_and_then, no_storm, jumps = logs_with_nothing()
    bad = Counter(row.shard for row in tables.read(DAILY).selectExpr("shard", "inline(by_window)").collect() if row.bad)
    assert bad[no_storm.shard] == 2, "five minutes with failures"
    owners = {
        row.shard: {each.peer: (each.bad, each.ended) for each in row.by_peer} for row in tables.read(DAILY).collect()
    }
    assert owners[alike.shard] == {"ada": (2, 16), "bob": (3, 6), "cid": (4, 4)}
    assert owners[seldom.shard] == {"ada": (0, 6), "bob": (2, 5)}
    days = tables.read(DAILY).where(f"shard = '{now_and_then.shard}'").orderBy("date").collect()
    assert [(row.date.day, row.expired) for row in days] == [(14, 2), (15, 2)]
    assert sum(isinstance(each, ev.LeaderElected) for each in jumps.events) == 2
    assert sorted(jumps.frames, key=lambda frame: frame.time_ms) == jumps.frames


def test_the_report_names_what_was_found(tables: TableStore) -> None:
    found = make_report(tables, "delta").anomalies
    assert sorted((each.kind, each.shard) for each in found.found) == sorted(
        (kind, log.shard) for kind, log in logs_with_something()
    )
    assert found.counts == Counter(kind for kind, _ in logs_with_something())
