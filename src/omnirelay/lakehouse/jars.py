"""Jars that Spark does not bring along: fetched once by Spark's own resolver, then used from the disk.

    CACHE/jars/<digest of what was asked for>/jars/*.jar
                                             /fetched.json     what they are; written last

Delta names much that Spark already has in other versions. `SHIPPED` leaves that out: 7 jars instead of 33.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from omnirelay.lakehouse.errors import ICEBERG_EXTRA, SparkUnusable
from omnirelay.lakehouse.java import find_java, launcher_home
from omnirelay.lakehouse.places import cache_directory, maven_repository

SHIPPED: Final = (
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "org.slf4j:*",
    "com.github.luben:*",
    "org.xerial.snappy:*",
    "io.airlift:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "commons-logging:*",
    "commons-pool:*",
    "com.google.code.findbugs:*",
    "javax.annotation:*",
)
"""Left out, because Spark has it or because only parts of Delta need it that are not used here."""

ICEBERG: Final = {"4.1": "1.12.0"}
"""By Spark the Iceberg that is made for it. There is none for every Spark."""

FETCH_SECONDS: Final = 600


class Fetched(msgspec.Struct, frozen=True):
    """What stands in `fetched.json`: each jar with its size, so that half a jar is noticed."""

    coordinates: tuple[str, ...]
    jars: dict[str, int]


def delta_coordinates() -> tuple[str, ...]:
    """The Delta for the Spark that is installed. Raises SparkUnusable when pyspark or delta-spark is not."""
    return (f"io.delta:delta-spark_{_spark()}_2.13:{_installed('delta-spark')}",)


def iceberg_coordinates() -> tuple[str, ...]:
    """The Iceberg for the Spark that is installed. Raises SparkUnusable when there is none for it."""
    iceberg = ICEBERG.get(_spark())
    if iceberg is None:
        raise SparkUnusable(
            f"there is no Iceberg for Spark {_installed('pyspark')}, only for Spark {', '.join(ICEBERG)}:"
            f" in an environment of its own, {ICEBERG_EXTRA}"
        )
    return (f"org.apache.iceberg:iceberg-spark-runtime-{_spark()}_2.13:{iceberg}",)


def has_iceberg() -> bool:
    """Whether there is an Iceberg for the Spark that is installed."""
    return _spark() in ICEBERG


def _spark() -> str:
    """The Spark that jars are made for: 4.2 for 4.2.0."""
    return ".".join(_installed("pyspark").split(".")[:2])


def _installed(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError as error:
        from omnirelay.lakehouse.errors import needs_extra

        raise needs_extra(ImportError(name=error.name)) from None


def fetched_jars(coordinates: Sequence[str]) -> list[Path] | None:
    """The jars of these when they are all on the disk, else None."""
    directory = _directory(coordinates)
    try:
        fetched = msgspec.json.decode((directory / "fetched.json").read_bytes(), type=Fetched)
        jars = {directory / "jars" / name: size for name, size in fetched.jars.items()}
        whole = all(path.stat().st_size == size for path, size in jars.items())
    except (OSError, msgspec.DecodeError):
        return None
    return sorted(jars) if whole else None


def fetch_jars(coordinates: Sequence[str]) -> list[Path]:
    """The jars of these, fetched when they are not there. Raises SparkUnusable with what the resolver said."""
    found = fetched_jars(coordinates)
    if found is not None:
        return found
    directory = _directory(coordinates)
    with _one_at_a_time(directory):
        # Whoever waited for another process finds what that one fetched.
        found = fetched_jars(coordinates)
        if found is None:
            shutil.rmtree(directory, ignore_errors=True)
            _resolve(coordinates, directory)
            sizes = {path.name: path.stat().st_size for path in (directory / "jars").glob("*.jar")}
            record = directory / "fetched.json.new"
            record.write_bytes(msgspec.json.encode(Fetched(tuple(coordinates), sizes)))
            record.replace(directory / "fetched.json")
            found = fetched_jars(coordinates)
    if not found:
        raise SparkUnusable(f"fetching {', '.join(coordinates)} brought no jars")
    return found


def _directory(coordinates: Sequence[str]) -> Path:
    asked = "\n".join([*coordinates, "", *SHIPPED])
    return cache_directory() / "jars" / hashlib.sha256(asked.encode()).hexdigest()[:16]


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve(coordinates: Sequence[str], directory: Path) -> None:
    """Let Spark fetch them as it does for `--packages`. It then runs a program of ours, which does nothing."""
    directory.mkdir(parents=True)
    nothing = directory / "nothing.py"
    nothing.write_text("")
    repository = maven_repository()
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--packages", ",".join(coordinates), "--exclude-packages", ",".join(SHIPPED)),
        *(("--repositories", repository) if repository else ()),
        *("--conf", f"spark.jars.ivy={directory}", "--master", "local[1]", str(nothing)),
    ]
    environment = {
        **os.environ,
        "JAVA_HOME": str(launcher_home(find_java())),
        # The resolver looks below the home directory first, and gives up on a description there without its jar.
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Duser.home={directory}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SparkUnusable(f"fetching {', '.join(coordinates)} took longer than {FETCH_SECONDS} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise SparkUnusable(
            f"cannot fetch {', '.join(coordinates)}; it takes a network once, or OMNIRELAY_MAVEN_REPOSITORY=ADDRESS."
            " The resolver said: " + " | ".join(line.strip() for line in lines[-8:])
        )


def spark_home() -> Path:
    """Where pyspark keeps Spark."""
    try:
        import pyspark
    except ImportError as error:
        from omnirelay.lakehouse.errors import needs_extra

        raise needs_extra(error) from None
    return Path(pyspark.__file__).parent
