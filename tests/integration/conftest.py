from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirelay.testing.disk import RecordingVFS
from tests.integration.log_sqlite import SqliteStore


@pytest.fixture
def disk() -> Iterator[RecordingVFS]:
    with RecordingVFS() as disk:
        yield disk


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    """An SQLite log that is not created yet."""
    return SqliteStore(tmp_path / "data")


@pytest.fixture
def fragile(tmp_path: Path, disk: RecordingVFS) -> SqliteStore:
    """The same on a disk that can be told to fail."""
    return SqliteStore(tmp_path / "data", disk)
