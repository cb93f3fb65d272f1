"""Fixtures for tests of every folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.segment_logs import S3Server

# How long an example takes says more of the machine than of us: on one that stands still for a moment none may fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

SPARK = Path(__file__).parent / "spark"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell has it for what it runs in the background, and every program started from here would have it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Spark first: whoever of `make test` has nothing left takes over what the other would come to last.

    So nearly all of them run in one process, in one Java that is warm; a second one, started for a few of them at the
    end, takes longer than they do.
    """
    items.sort(key=lambda item: SPARK not in item.path.parents)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """A real S3 server with one bucket; each test takes a prefix of its own."""
    from tests.segment_logs import S3Server  # It takes a while, and most tests need none.

    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()
