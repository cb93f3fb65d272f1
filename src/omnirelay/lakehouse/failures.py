"""What Spark says when it fails, in one line. Its own words are a hundred, most of them Java's stack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from omnirelay.errors import Internal, OmniRelayError

_LENGTH_MAX: Final = 600
_STACK: Final = re.compile(r"^(\s+at |\s+\.\.\. \d+ more|JVM stacktrace:|SQLSTATE: )")
_CLASS: Final = re.compile(r"^(?:[A-Za-z_][\w$]*\.)+(?=[\w$]+(?:: |$))")
"""The packages before the name of an exception."""


class SparkFailed(Internal):
    """Spark began, and did not get to the end. The message has the first reason and the last; the cause has all."""

    default_code = "error.lakehouse.spark_failed"


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises: its own tree, and what comes up from Java as it is. Raises ImportError without Spark."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


@contextmanager
def spark_failures() -> Iterator[None]:
    """Whatever Spark raises inside becomes SparkFailed. Errors of ours stay as they are."""
    kinds = spark_errors()
    try:
        yield
    except OmniRelayError:
        raise
    except kinds as error:
        raise SparkFailed(f"Spark failed: {in_one_line(str(error))}") from error


def in_one_line(text: str) -> str:
    """The reason in what Spark says: of Python the last line of its traceback, of Java the first and the last cause."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if any(line.startswith("Traceback (most recent") for line in lines):
        begun = next(at for at, line in enumerate(lines) if line.startswith("Traceback (most recent"))
        ended = next((at for at in range(begun, len(lines)) if _STACK.match(lines[at])), len(lines))
        raised = [line for line in lines[begun + 1 : ended] if not line.startswith(" ")]
        return _short(raised[-1] if raised else lines[0])
    reasons = [
        line.removeprefix("Caused by: ").removeprefix(": ")
        for line in lines
        if not _STACK.match(line) and not line.startswith("An error occurred while calling")
    ]
    first = _short(reasons[0]) if reasons else text.strip()
    causes = [_short(line.removeprefix("Caused by: ")) for line in lines if line.startswith("Caused by: ")]
    return first if not causes or causes[-1] in first else f"{first}; {causes[-1]}"


def _short(line: str) -> str:
    line = _CLASS.sub("", line.strip())
    return line if len(line) <= _LENGTH_MAX else f"{line[:_LENGTH_MAX]}…"
