"""Spark for as long as a command runs: what fails in it becomes one line, and a signal ends it at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from omnirelay.cli.stopping import Interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUIETEN_SECONDS = 2.0
"""How long Java may take to be told; a process that was interrupted does not wait longer for it."""


class _Ended(BaseException):
    """A signal came. No KeyboardInterrupt: py4j takes that for its own affair, and prints what it makes of it."""


@contextmanager
def spark_for_command(start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """A session that is stopped at the end. The first SIGINT or SIGTERM ends the block; a second one the process.

    Raises Interrupted then, and SparkFailed for whatever Spark itself raises.
    """
    from omnirelay.lakehouse.failures import spark_failures

    came: list[int] = []
    _end_at_signals(came)
    try:
        spark = _started(start)
    except (_Ended, KeyboardInterrupt):
        raise Interrupted(came[0] if came else signal.SIGINT) from None
    try:
        # Once more: Spark put in a handler of its own, which asks Java for something in the middle of a call.
        _end_at_signals(came)
        with spark_failures():
            yield spark
    except BaseException:
        # Whatever was cut off fails in ways of its own on its way out.
        if came:
            raise Interrupted(came[0]) from None
        raise
    finally:
        if not came:
            spark.stop()
        elif _is_remote(spark):
            with suppress(Exception):
                spark.stop()
        else:
            # Java ends with this process. Asked to stop amid its work it would complain of what is left undone.
            _quieten(spark)


def _started(start: Callable[[], SparkSession]) -> SparkSession:
    """Towards the end of it Spark puts in a handler of its own, from whose KeyboardInterrupt py4j makes an entry in the
    log with a traceback. What else goes wrong in here is raised.
    """
    logging.disable(logging.ERROR)
    try:
        return start()
    finally:
        logging.disable(logging.NOTSET)


def _quieten(spark: SparkSession) -> None:
    """Have Java say nothing any more of workers and tasks that are lost while the process ends.

    In a thread of its own, which has a connection of its own: this one's may have been left amid an answer.
    """
    quieten = threading.Thread(target=_say_nothing, args=(spark,), daemon=True)
    quieten.start()
    quieten.join(QUIETEN_SECONDS)


def _say_nothing(spark: SparkSession) -> None:
    with suppress(Exception):  # Java may be gone already, and then it is quiet.
        spark.sparkContext.setLogLevel("OFF")


def _is_remote(spark: SparkSession) -> bool:
    """Whether the driver is elsewhere (Spark Connect), and would go on with the work."""
    return not hasattr(spark, "_jsparkSession")


def _end_at_signals(came: list[int]) -> None:
    """Nothing of this is put back: the command ends."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        came.append(number)
        raise _Ended

    for number in numbers:
        signal.signal(number, end)
