"""What a node writes to its log, and what it keeps out of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from omnirelay.node.logs import set_up_logs

LIBRARIES = ("asyncio", "httpcore", "httpx", "uvicorn", "websockets", "websockets.server")


@pytest.fixture
def loggers() -> Iterator[None]:
    """Logging is the process's: leave it as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in LIBRARIES}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize("as_json", [False, True])
def test_addresses_of_single_requests_stay_out_of_the_log(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    set_up_logs("debug", as_json=as_json)
    for library in LIBRARIES:
        logging.getLogger(library).info("HTTP Request: POST https://hooks.example/secret-token")
    logging.getLogger("omnirelay.node").info("node_started", extra={"port": 7070})
    said = capsys.readouterr().err
    assert "secret-token" not in said
    assert "node_started" in said
    assert "7070" in said
