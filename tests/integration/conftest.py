from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnirelay.client.stream_connection import StreamConnection
from omnirelay.segments.connecting import connect
from omnirelay.segments.store import ObjectStore
from omnirelay.testing.disk import RecordingVFS
from tests.integration import stream_peers
from tests.integration.log_sqlite import SqliteStore
from tests.servers import NatsServer, PostgresServer

if TYPE_CHECKING:
    from tests.segment_logs import S3Server


@pytest.fixture(params=list(stream_peers.FORMS))
def stream_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test once for each form of the stream."""
    form: str = request.param
    monkeypatch.setattr(stream_peers, "form_spoken", form)
    return form


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that all tests of this process share; each takes a table of its own."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """A server that all tests of this process share; each takes a stream of its own."""
    server = NatsServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["file", "s3"])
async def object_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """A directory, and a real S3 server: what uses it holds to both."""
    if request.param == "file":
        return await connect(str(tmp_path / "objects"))
    server: S3Server = request.getfixturevalue("s3")
    return await connect(server.address(tmp_path.name), server.options)


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


@pytest.fixture
def impatient_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients take a silent stream for dead after a moment, and not after ten seconds."""
    monkeypatch.setattr(StreamConnection, "ping_seconds", 0.4)
    monkeypatch.setattr(StreamConnection, "silence_seconds_max", 1.0)
