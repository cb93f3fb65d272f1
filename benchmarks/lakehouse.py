"""From a log to tables: events/s of every stage and of every reader, beside Spark's own scan of the same segments.

    python -m benchmarks.lakehouse [--quick] [--events N,N] [--keep DIR] [--only STEPS] [--memory 4g]
                                   [--start quick|long] [--core plain|compiled]

Logs of 1,000,000 and 10,000,000 events (one of 100,000 with --quick), written by the engine, become segments. Each is
scanned by Spark alone, by the data source `omnirelay`, and once it is bronze as Delta; then the pipeline makes every
table, the log is audited, and the pipeline runs again twice: after a shard has gone on by 1 %, and after as much of a
new shard has come in. All in one process, which the memory is measured of, Java included.

A long log takes long. With --keep the log, the tables and what was measured stay, and a later call goes on from them
with other steps: --only bronze, then --only tables, audit, increments. With --core compiled the rules that the audit
replays with are compiled first, as a wheel for this machine would have them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.lakehouse_log import Later, Written, write_log
from benchmarks.lakehouse_memory import PeakMemory
from benchmarks.lakehouse_tail import TAIL_EVENTS, tail_node
from benchmarks.machine import Load, environment, is_compiled
from hatch_build import compile_hot_path
from omnirelay.lakehouse.audit import Audit
from omnirelay.lakehouse.audit_plan import plan
from omnirelay.lakehouse.pipeline import Pipeline, Summary
from omnirelay.lakehouse.segment_files import read_segments
from omnirelay.lakehouse.session import LONG_RUN, QUICK_START, open_session
from omnirelay.lakehouse.tables import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parent.parent
AIMS = {"bronze": 60_000, "bronze to gold": 20_000, "audit": 300_000}
STEPS = ("readers", "bronze", "tables", "audit", "increments")
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
    directory: Path
    segments: Path
    events: int

    @property
    def warehouse(self) -> Path:
        return self.directory / "warehouse"

    @property
    def _rows(self) -> Path:
        return self.directory / "rows.json"

    def measured(self) -> dict[str, Row]:
        """All that was measured here, by this call and those before it."""
        rows = msgspec.json.decode(self._rows.read_bytes(), type=list[Row]) if self._rows.exists() else []
        return {row.name: row for row in rows}

    def keep(self, rows: Sequence[Row]) -> None:
        known = {**self.measured(), **{row.name: row for row in rows}}
        self._rows.write_bytes(msgspec.json.encode(list(known.values())))

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


def measure_bronze(place: Place) -> list[Row]:
    shutil.rmtree(place.warehouse, ignore_errors=True)
    return [timed("bronze", place.events, place.pipeline.ingest)]


def measure_tables(place: Place) -> list[Row]:
    """Everything behind bronze; the steps as the pipeline tells them, in the order in which they ended."""
    pipeline = place.pipeline
    load, began = Load.now(), time.perf_counter()
    summary = pipeline.run()
    seconds = time.perf_counter() - began
    # Tables are changed side by side: their seconds overlap.
    rows = [Row("silver and gold", place.events, seconds, load.since())]
    print_row(rows[-1])
    for step in summary.steps:
        print(f"    {step.table:<22} {'':>12} {step.seconds:>9.2f} {place.events / step.seconds:>12,.0f}")
    rows.append(Row("bronze to gold", place.events, place.measured()["bronze"].seconds + seconds, load.since()))
    print_row(rows[-1])
    rows.append(timed("reader: delta", place.events, lambda: consume(pipeline.tables.read(EVENTS))))
    print_sizes(place)
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


def measure_increments(place: Place, more: int) -> list[Row]:
    """Other parts of the log: each should cost that part of the time, and not more."""
    later = msgspec.structs.replace(place, segments=place.directory / "later")
    for path in later.segments.glob("more-*"):
        shutil.rmtree(path)  # Of a call before this one.
    rows = [measure_increment(later, "incremental, same shard", more)]
    written = asyncio.run(write_log(later.segments, place.events // INCREMENT, name="more"))
    return [*rows, measure_increment(later, "incremental, new shard", written.events)]


def measure_increment(place: Place, name: str, events: int) -> Row:
    whole = place.measured()["bronze to gold"]
    found: list[Summary] = []
    row = timed(name, events, lambda: found.append(place.pipeline.run()))
    assert found[0].events == events, "what was written is what came in"
    print(f"    {row.seconds / whole.seconds:.1%} of the time of everything, for {events / place.events:.1%}")
    for step in found[0].steps:
        print(f"    {step.table:<22} {'':>12} {step.seconds:>9.2f}")
    return row


def written_log(directory: Path, events: int) -> Written:
    """The log of a size; one that is there already is taken as it is."""
    found, segments = directory / "log.json", directory / "segments"
    began = time.perf_counter()
    if not found.exists():
        written = asyncio.run(write_log(segments, events, later=Later(directory / "later", events // INCREMENT)))
        found.write_bytes(msgspec.json.encode(written))
    written = msgspec.json.decode(found.read_bytes(), type=Written)
    size = sum(path.stat().st_size for path in segments.rglob("*.parquet"))
    print(f"\n{written.events:,} events in {written.segments} segments, {size / 1e6:,.0f} MB, written in", end=" ")
    print(f"{time.perf_counter() - began:.0f} s\n  {'':<24} {'events':>12} {'seconds':>9} {'events/s':>12}", flush=True)
    return written


def measure(spark: SparkSession, directory: Path, events: int, only: Collection[str]) -> dict[str, Row]:
    """The chosen steps for one size; all that was ever measured of it."""
    written = written_log(directory, events)
    place = Place(spark, directory, directory / "segments", written.events)
    steps: dict[str, Callable[[Place], list[Row]]] = {
        "readers": measure_readers,
        "bronze": measure_bronze,
        "tables": measure_tables,
        "audit": measure_audit,
        "increments": lambda place: measure_increments(place, written.later),
    }
    for name in only:
        place.keep(steps[name](place))
    return place.measured()


def print_growth(first: dict[str, Row], last: dict[str, Row]) -> None:
    """How the time for one event changes from the smallest log to the largest: 1 is linear."""
    print("\nTime for an event, beside that of the smallest log (1 is linear)")
    for name in (name for name in first if name in last):
        print(f"  {name:<24} {first[name].rate / last[name].rate:>6.2f}")


@contextmanager
def place_for(keep: Path | None, events: int) -> Iterator[Path]:
    if keep is not None:
        directory = keep / str(events)
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="omnirelay-lakehouse-") as temporary:
        yield Path(temporary)


@contextmanager
def session(start: str, memory: str) -> Iterator[SparkSession]:
    flags = {"quick": QUICK_START, "long": LONG_RUN}[start]
    spark = open_session(app="omnirelay benchmark", driver_flags=flags, conf={"spark.driver.memory": memory})
    try:
        yield spark
    finally:
        spark.stop()


def run_compiled() -> None:
    """This call again with compiled rules, which Spark's Python workers find in the same way."""
    with tempfile.TemporaryDirectory(prefix="omnirelay-compiled-") as library:
        compile_hot_path(ROOT / "src", Path(library))
        subprocess.run(
            [sys.executable, "-m", "benchmarks.lakehouse", *sys.argv[1:]],
            env={**os.environ, "PYTHONPATH": f"{library}{os.pathsep}{ROOT}"},
            cwd=ROOT,
            check=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 events")
    parser.add_argument("--events", default="1000000,10000000", help="sizes of the logs, separated by commas")
    parser.add_argument("--keep", type=Path, help="where logs and tables go and stay (default: a temporary place)")
    parser.add_argument(
        "--only", default=",".join(STEPS), help=f"steps, separated by commas (default: {','.join(STEPS)})"
    )
    parser.add_argument("--memory", default="4g", help="what Java may use")
    parser.add_argument("--start", choices=("quick", "long"), default="long", help="flags of Java")
    parser.add_argument("--core", choices=("plain", "compiled"), default="plain", help="the rules that replays apply")
    arguments = parser.parse_args()
    if arguments.core == "compiled" and not is_compiled():
        run_compiled()
        return
    sizes = [100_000] if arguments.quick else [int(each) for each in arguments.events.split(",")]
    only = arguments.only.split(",")
    if strange := [name for name in only if name not in STEPS]:
        parser.error(f"there is no step {strange[0]!r}; there are {', '.join(STEPS)}")
    print(f"{environment()}, core {arguments.core}")
    found: list[dict[str, Row]] = []
    with PeakMemory() as memory, session(arguments.start, arguments.memory) as spark:
        for events in sizes:
            memory.bytes = 0
            with place_for(arguments.keep, events) as directory:
                found.append(measure(spark, directory, events, only))
            print(f"  at most {memory.bytes / 1e6:,.0f} MB in memory: this process, Java and Python workers")
    if len(found) > 1:
        print_growth(found[0], found[-1])


if __name__ == "__main__":
    main()
