"""The second lane of the lakehouse: Iceberg, and Delta beside it, on the Spark that Iceberg is made for.

`make test-iceberg` runs these in an environment of their own. Elsewhere they are passed over: there is another Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from omnirelay.lakehouse.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore_glob = [] if os.environ.get("OMNIRELAY_LANE") == "iceberg" else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    if not collect_ignore_glob:
        # This Spark leaves the sockets through which rows come to be closed by Python.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def whole_spark() -> Iterator[SparkSession]:
    """The one Java, with both formats. For a few hundred rows: nothing to spread over tasks, nothing to adapt to."""
    few = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
    spark = open_session("local[2]", app="omnirelay tests", iceberg=True, conf=few)
    yield spark
    spark.stop()


@pytest.fixture
def spark(whole_spark: SparkSession) -> SparkSession:
    """A session with settings, views and data sources of its own."""
    from omnirelay.lakehouse.source import register

    session = whole_spark.newSession()
    register(session)
    return session
