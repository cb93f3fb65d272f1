"""One Spark for all tests of this folder; every test gets a session of its own in it.

They are the first of all tests (`tests/conftest.py`), so that the two workers of `make test` seldom share them. When they
do, each has a Spark: that costs a start, and is quicker than a worker that waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from omnirelay.lakehouse.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def whole_spark() -> Iterator[SparkSession]:
    """The one Java. Starting it takes seconds, so that nobody stops it before the end."""
    spark = open_session("local[2]", app="omnirelay tests")
    yield spark
    spark.stop()


@pytest.fixture
def spark(whole_spark: SparkSession) -> SparkSession:
    """A session with settings, views and data sources of its own."""
    from omnirelay.lakehouse.source import register

    session = whole_spark.newSession()
    register(session)
    return session
