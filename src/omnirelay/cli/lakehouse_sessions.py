"""Spark for as long as a command runs: what fails in it becomes one line, and a signal ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from omnirelay.cli.stopping import Interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Ended(BaseException):
    """A signal came. No KeyboardInterrupt: py4j takes that for its own affair, and prints what it makes of it."""


@contextmanager
def spark_for_command(start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """A session that is stopped at the end. The first SIGINT or SIGTERM ends the block; a second one the process.

    Raises Interrupted then, and SparkFailed for whatever Spark itself raises.
    """
    from omnirelay.lakehouse.failures import spark_failures

    spark = start()
    came: list[int] = []
    try:
        # Behind the start: Spark puts in a handler of its own, which asks Java for something in the middle of a call.
        with _signals_end(came), spark_failures():
            yield spark
    except BaseException:
        # Whatever was cut off fails in ways of its own on its way out.
        if came:
            raise Interrupted(came[0]) from None
        raise
    finally:
        # Java ends with this process, quietly. Asked to stop amid its work it would complain of what is left undone.
        if not came or _is_remote(spark):
            with suppress(*([Exception] if came else [])):
                spark.stop()


def _is_remote(spark: SparkSession) -> bool:
    """Whether the driver is elsewhere (Spark Connect), and would go on with the work."""
    return not hasattr(spark, "_jsparkSession")


@contextmanager
def _signals_end(came: list[int]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        came.append(number)
        raise _Ended

    for number in numbers:
        signal.signal(number, end)
    yield
    # Behind an error, too, nothing is left to be put back: the command ends.
