"""What goes wrong between here and Spark."""

from __future__ import annotations

from omnirelay.errors import FailedPrecondition, NotFound

EXTRA = "pip install 'omnirelay[spark]'"
ICEBERG_EXTRA = "pip install 'omnirelay[iceberg]'"
"""Never beside the other one: each is for a Spark of its own."""


class SparkUnusable(FailedPrecondition):
    """Spark cannot run here as it is: something is missing or too old. The message says what to do."""

    default_code = "error.lakehouse.spark_unusable"


class TablesMissing(NotFound):
    """Something is to be done with tables, and there are none."""

    default_code = "error.lakehouse.tables_missing"


class NothingToRebuild(FailedPrecondition):
    """The tables are to be made anew, and the segments hold nothing to make them, or a shard in them, of."""

    default_code = "error.lakehouse.nothing_to_rebuild"


def needs_extra(error: ImportError) -> SparkUnusable:
    """The error for a library that is not installed."""
    return SparkUnusable(f"the lakehouse needs a library that is not installed ({error.name or error}): {EXTRA}")
