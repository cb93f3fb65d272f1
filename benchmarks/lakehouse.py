"""From a log to tables: events/s of every stage and of every reader, beside Spark's own scan of the same segments.

    python -m benchmarks.lakehouse [--quick] [--events N,N] [--directory DIR] [--memory 4g] [--start quick|long]

Logs of 1,000,000 and 10,000,000 events (one of 100,000 with --quick), written by the engine, become segments. Each is
scanned by Spark alone, by the data source `omnirelay`, and once it is bronze as Delta; then the pipeline makes every
table, the log is audited, and the pipeline runs again twice: after a shard has gone on by 1 %, and after as much of a
new shard has come in. All in one process, which the memory is measured of, Java included.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.lakehouse_log import Later, write_log
from benchmarks.lakehouse_memory import PeakMemory
from benchmarks.lakehouse_tail import TAIL_EVENTS, tail_node
from benchmarks.machine import Load, environment
from omnirelay.lakehouse.audit import Audit
from omnirelay.lakehouse.audit_plan import plan
from omnirelay.lakehouse.pipeline import Pipeline, Summary
from omnirelay.lakehouse.segment_files import read_segments
from omnirelay.lakehouse.session import LONG_RUN, QUICK_START, open_session
from omnirelay.lakehouse.tables import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AIMS = {"bronze": 60_000, "bronze to gold": 20_000, "audit": 300_000}
INCREMENT = 100
"""One part in so many comes in behind the rest."""


class Row(msgspec.Struct, frozen=True):
    name: str
    events: int
    seconds: float
    load: str

    @property
    def rate(self) -> float:
        return self.events / self.seconds


class Place(msgspec.Struct, frozen=True):
    """What is measured: a session, segments, and a warehouse for the tables."""

    spark: SparkSession
    segments: Path
    warehouse: Path
    events: int

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.spark, str(self.segments), str(self.warehouse))


def timed(name: str, events: int, work: Callable[[], object]) -> Row:
    load, began = Load.now(), time.perf_counter()
    work()
    row = Row(name, events, time.perf_counter() - began, load.since())
    print_row(row)
    return row


def print_row(row: Row) -> None:
    aim = f"aim {AIMS[row.name]:,}" if row.name in AIMS else ""
    print(
        f"  {row.name:<24} {row.events:>12,} {row.seconds:>9.2f} {row.rate:>12,.0f}  {aim:<12} {row.load}", flush=True
    )


def consume(rows: DataFrame) -> None:
    """Deliver every column of every row to nobody."""
    rows.write.format("noop").mode("overwrite").save()


def measure_readers(place: Place) -> list[Row]:
    read = place.spark.read.format("omnirelay")
    scan = timed("native Parquet scan", place.events, lambda: consume(read_segments(place.spark, str(place.segments))))
    segments = timed("reader: segments", place.events, lambda: consume(read.load(str(place.segments))))
    with tail_node() as node:
        tail = timed("reader: tail", TAIL_EVENTS, lambda: consume(read.option("url", node.url).load()))
    return [scan, segments, tail]


def measure_pipeline(place: Place) -> list[Row]:
    """Bronze by itself, then everything else; the steps as the pipeline tells them."""
    pipeline = place.pipeline
    rows = [timed("bronze", place.events, pipeline.ingest)]
    load, began = Load.now(), time.perf_counter()
    summary = pipeline.run()
    seconds = time.perf_counter() - began
    for layer in ("silver", "gold"):
        steps = [step for step in summary.steps if step.table.startswith(layer)]
        rows.append(Row(layer, place.events, sum(step.seconds for step in steps), load.since()))
        print_row(rows[-1])
        for step in steps:
            print(f"    {step.table:<22} {'':>12} {step.seconds:>9.2f} {place.events / step.seconds:>12,.0f}")
    rows.append(Row("bronze to gold", place.events, rows[0].seconds + seconds, load.since()))
    print_row(rows[-1])
    rows.append(timed("reader: delta", place.events, lambda: consume(pipeline.tables.read(EVENTS))))
    return rows


def measure_audit(place: Place) -> list[Row]:
    plans, found = asyncio.run(plan(str(place.segments)))

    def audit() -> None:
        report = Audit(place.spark.newSession(), str(place.segments), plans, found).run()
        assert report.clean, "a log that the engine wrote is in order"

    return [timed("audit", place.events, audit)]


def print_sizes(place: Place) -> None:
    """What keeping it costs."""
    parts = {"segments": place.segments, **{name: place.warehouse / name for name in ("bronze", "silver", "gold")}}
    for name, path in parts.items():
        size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
        print(f"    {name:<22} {size / 1e6:>12,.1f} MB {size / place.events:>9.1f} bytes an event")


def measure_increments(place: Place, later: Path, more: int, whole: Row) -> list[Row]:
    """Other parts of the log: each should cost that part of the time, and not more."""
    place = msgspec.structs.replace(place, segments=later)
    rows = [measure_increment(place, "incremental, same shard", more, whole)]
    written = asyncio.run(write_log(later, place.events // INCREMENT, name="more"))
    return [*rows, measure_increment(place, "incremental, new shard", written.events, whole)]


def measure_increment(place: Place, name: str, events: int, whole: Row) -> Row:
    found: list[Summary] = []
    row = timed(name, events, lambda: found.append(place.pipeline.run()))
    assert found[0].events == events, "what was written is what came in"
    print(f"    {row.seconds / whole.seconds:.1%} of the time of everything, for {events / place.events:.1%}")
    for step in found[0].steps:
        print(f"    {step.table:<22} {'':>12} {step.seconds:>9.2f}")
    return row


def measure(spark: SparkSession, directory: Path, events: int) -> list[Row]:
    """Everything for one size."""
    segments = directory / "segments"
    later = Later(directory / "later", events // INCREMENT)
    began = time.perf_counter()
    written = asyncio.run(write_log(segments, events, later=later))
    size = sum(path.stat().st_size for path in segments.rglob("*.parquet"))
    print(f"\n{written.events:,} events in {written.segments} segments, {size / 1e6:,.0f} MB, written in", end=" ")
    print(f"{time.perf_counter() - began:.0f} s\n  {'':<24} {'events':>12} {'seconds':>9} {'events/s':>12}")
    place = Place(spark, segments, directory / "warehouse", written.events)
    rows = measure_readers(place) + measure_pipeline(place)
    print_sizes(place)
    rows += measure_audit(place)
    [whole] = [row for row in rows if row.name == "bronze to gold"]
    return rows + measure_increments(place, later.directory, written.later, whole)


def print_growth(sizes: Sequence[list[Row]]) -> None:
    """How the time for one event changes from the smallest log to the largest: 1 is linear."""
    first, last = ({row.name: row for row in rows} for rows in (sizes[0], sizes[-1]))
    print("\nTime for an event, beside that of the smallest log (1 is linear)")
    for name in first:
        print(f"  {name:<24} {first[name].rate / last[name].rate:>6.2f}")


@contextmanager
def session(start: str, memory: str) -> Iterator[SparkSession]:
    flags = {"quick": QUICK_START, "long": LONG_RUN}[start]
    spark = open_session(app="omnirelay benchmark", driver_flags=flags, conf={"spark.driver.memory": memory})
    try:
        yield spark
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 events")
    parser.add_argument("--events", default="1000000,10000000", help="sizes of the logs, separated by commas")
    parser.add_argument("--directory", type=Path, help="where logs and tables go (default: a temporary place)")
    parser.add_argument("--memory", default="4g", help="what Java may use")
    parser.add_argument("--start", choices=("quick", "long"), default="long", help="flags of Java")
    arguments = parser.parse_args()
    sizes = [100_000] if arguments.quick else [int(each) for each in arguments.events.split(",")]
    print(environment())
    found: list[list[Row]] = []
    with PeakMemory() as memory, session(arguments.start, arguments.memory) as spark:
        for events in sizes:
            directory = Path(tempfile.mkdtemp(prefix="omnirelay-lakehouse-", dir=arguments.directory))
            memory.bytes = 0
            try:
                found.append(measure(spark, directory, events))
            finally:
                shutil.rmtree(directory)
            print(f"  at most {memory.bytes / 1e6:,.0f} MB in memory: this process, Java and Python workers")
    if len(found) > 1:
        print_growth(found)


if __name__ == "__main__":
    main()
