"""Fixtures for tests of every folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.segment_logs import S3Server

# How long an example takes says more of the machine than of us: on one that stands still for a moment none may fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell has it for what it runs in the background, and every program started from here would have it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
