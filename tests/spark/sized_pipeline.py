"""A pipeline in a process of its own, as `omnirelay lakehouse run` has it, for which fewer events count as few.

    python -m tests.spark.sized_pipeline SEGMENTS WAREHOUSE FEW_EVENTS

A log of a test is never so long that the command takes the way of many events.
"""

from __future__ import annotations

import sys

from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.session import open_session


def say(step: str, seconds: float | None) -> None:
    if seconds is not None:
        sys.stderr.write(f"{step}\n")


if __name__ == "__main__":
    segments, warehouse, few_events = sys.argv[1:]
    spark = open_session("local[1]")
    Pipeline(spark, segments, warehouse, report=say, few_events=int(few_events)).run()
    spark.stop()
