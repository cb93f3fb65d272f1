"""Where things are kept between runs: jars, and a launcher for Java. The environment is read here only.

OMNIRELAY_CACHE              the directory (default: omnirelay below XDG_CACHE_HOME, or below ~/.cache)
OMNIRELAY_MAVEN_REPOSITORY   another place to fetch jars from, before the usual one
JAVA_HOME, PATH              where Java is looked for
PYSPARK_PYTHON               the Python of executors on a cluster (default: at the path of this one)
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def cache_directory() -> Path:
    """The directory, made when it is not there."""
    named = os.environ.get("OMNIRELAY_CACHE")
    if named:
        directory = Path(named)
    else:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnirelay"
    directory = directory.expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def maven_repository() -> str | None:
    return os.environ.get("OMNIRELAY_MAVEN_REPOSITORY") or None


def executor_python(master: str) -> str | None:
    """What the environment says of it. In this process it is this Python, whatever a shell has left there."""
    return None if master.startswith("local") else os.environ.get("PYSPARK_PYTHON") or None


def java_candidates() -> list[tuple[str, Path]]:
    """Java homes that this machine names, each with who names it. They may be too old, or not be there at all."""
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home)))
    if program := shutil.which("java"):
        found.append(("PATH", Path(program).resolve().parent.parent))
    return found
