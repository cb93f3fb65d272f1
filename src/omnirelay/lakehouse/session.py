"""Spark sessions that start quickly, say nothing, and know Delta or Iceberg and the data source `omnirelay`.

    open_session()                      in this process, on all cores
    open_session("spark://host:7077")   on a cluster; also k8s://… and yarn
    open_session("sc://host:15002")     through Spark Connect: no Java here; jars and settings are the server's

The same code runs on all of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omnirelay.lakehouse.errors import SparkUnusable, needs_extra
from omnirelay.lakehouse.failures import in_one_line, spark_errors
from omnirelay.lakehouse.jars import delta_coordinates, fetch_jars, iceberg_coordinates, spark_home
from omnirelay.lakehouse.java import find_java, launcher_home
from omnirelay.lakehouse.places import executor_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""Flags of the driver's Java for short work: half the start, half the processor time until it is warm.

With the first compiler only Java leaves 48 MB for what is compiled, which a run that takes in many events fills, as
Spark makes new code for every query; and where there is no room Java does not go on but fails. So it has the room that
it has with all compilers.
"""

LONG_RUN: Final = (
    "-XX:+UseParallelGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
    " -XX:FreqInlineSize=80 -XX:InlineSmallCode=800 -XX:MaxInlineLevel=6"
)
"""Flags for work of minutes, which full compilation pays for, but only of what is run ten times as often as Java would
have it, and with less of what is called put into what calls it: Spark makes new code for every query, and compiling all
of that took more than a third of the processors.
"""

_DELTA: Final = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_ICEBERG: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
"""Its catalogue is named where the warehouse is known, in `formats_iceberg`."""

_CLUSTER: Final = {
    # A reader with push-down is refused without it.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Otherwise Python tells Java with every operation on a column which line it stands in, for messages of errors: a
    # dozen calls for each, and most of the time that it takes to make a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Jobs in pools of their own share the processors, as long and short tasks of an audit do. Without pools
    # nothing changes.
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL: Final = {
    # The defaults are made for clusters: 200 partitions of every shuffle, 50 tasks for every look at a Delta table,
    # 10,000 to list the files of one that is vacuumed.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    "spark.databricks.delta.snapshotPartitions": "2",
    # By itself every sort and every sum of a task takes 64 MB at once, cleared, and moved about by Java's collector,
    # however few rows come.
    "spark.buffer.pageSize": "4m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # What Arrow frees in a Python worker stays with it: asking for the same pages anew, segment by segment, took longer
    # than reading Parquet into them. A worker that has nothing to do for a minute ends.
    "spark.executorEnv.MIMALLOC_PURGE_DELAY": "-1",
}


def open_session(
    master: str = "local[*]",
    *,
    app: str = "omnirelay",
    delta: bool = True,
    iceberg: bool = False,
    driver_flags: str = QUICK_START,
    conf: Mapping[str, str] | None = None,
    **more: str,
) -> SparkSession:
    """A session at this address. `conf` and `more` (with _ for .) are settings of Spark and win over ours.

    One process has one Spark: when there is a session already, it is returned with the settings of it that can still
    change. Stop it with `session.stop()`. Raises SparkUnusable.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise needs_extra(error) from None
    given = {**(conf or {}), **{name.replace("_", "."): value for name, value in more.items()}}
    if master.startswith("sc://"):
        builder = SparkSession.builder.remote(master).appName(app)
        settings = {"spark.sql.session.timeZone": "UTC", **given}
    else:
        builder = SparkSession.builder.master(master).appName(app)
        settings = {**_settings(master, driver_flags, delta=delta, iceberg=iceberg), **given}
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _environment_of_java(master, given.get("spark.pyspark.python")):
        try:
            spark = builder.getOrCreate()
        except ImportError as error:
            raise needs_extra(error) from None
        except spark_errors() as error:
            raise SparkUnusable(f"Spark does not start at {master!r}: {in_one_line(str(error))}") from error
    from omnirelay.lakehouse.source import register

    register(spark)
    return spark


def _settings(master: str, driver_flags: str, *, delta: bool, iceberg: bool) -> dict[str, str]:
    quiet = f"-Dlog4j2.configurationFile={_logging_file().as_uri()}"
    settings = {**_CLUSTER, "spark.driver.extraJavaOptions": f"{driver_flags} {quiet}"}
    if master.startswith("local"):
        settings |= _LOCAL
    jars: list[Path] = []
    extensions: list[str] = []
    if delta:
        jars += fetch_jars(delta_coordinates())
        extensions.append(_DELTA)
        settings["spark.sql.catalog.spark_catalog"] = _DELTA_CATALOG
    if iceberg:
        jars += fetch_jars(iceberg_coordinates())
        extensions.append(_ICEBERG)
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
        settings["spark.sql.extensions"] = ",".join(extensions)
    return settings


def _logging_file() -> Path:
    return Path(__file__).with_name("log4j2.properties")


@contextmanager
def _environment_of_java(master: str, python: str | None) -> Iterator[None]:
    """What Spark reads from the environment when it starts Java; put back as it was afterwards.

    `python` is that of the executors. Spark heeds the setting of that name only where it starts the driver itself.
    """
    if master.startswith("sc://"):
        yield
        return
    wanted = {
        "JAVA_HOME": str(launcher_home(find_java())),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": python or executor_python(master) or sys.executable,
        # A setting cannot quieten what Java says before it has read the settings.
        "SPARK_SUBMIT_OPTS": f"-Dlog4j2.configurationFile={_logging_file().as_uri()}",
    }
    if master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
