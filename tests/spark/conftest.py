"""One Spark for all tests of this folder; every test gets a session of its own in it.

They are the first of all tests (`tests/conftest.py`), so that the two workers of `make test` seldom share them. When
they do, each has a Spark: that costs a start, and is quicker than a worker that waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from omnirelay.lakehouse.session import open_session
from omnirelay.lakehouse.sizing import Sizing

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


@pytest.fixture
def few_spark(spark: SparkSession) -> SparkSession:
    """The same, suited to few rows as every pipeline suits its own to few events.

    For tests of what tables hold after small commits, most of whose time would go into compiling code for them.
    """
    Sizing(spark).suit(0)
    return spark
