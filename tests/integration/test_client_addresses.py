"""A password in an address is for connecting, and for nobody to read."""

from __future__ import annotations

import subprocess
from typing import Literal

import pytest

from omnirelay import Client
from omnirelay.client.addresses import without_password
from omnirelay.client.failures import NotConnected
from omnirelay.errors import DeadlineExceeded, InvalidArgument
from tests.cli.processes import command, environment
from tests.integration.nodes import running_node
from tests.patience import PATIENCE_S
from tests.servers import free_port


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:7070", "http://127.0.0.1:7070"),
        ("http://proxy@node:7070/a?b=c", "http://proxy@node:7070/a?b=c"),
        ("https://me:secret@node:7070/a?b=c", "https://me:***@node:7070/a?b=c"),
        ("http://:s@c@[::1]:7070", "http://:***@[::1]:7070"),
        ("http://[", "http://["),
        ("", ""),
    ],
)
def test_only_a_password_is_hidden(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize("mode", ["http", "stream"])
async def test_a_client_that_reaches_nobody_does_not_name_the_password(mode: Literal["http", "stream"]) -> None:
    async with Client(f"http://me:secret@127.0.0.1:{free_port()}", mode=mode, timeout_ms=2_000) as client:
        # Which of the two it is depends on how much time was left for the last try.
        with pytest.raises((NotConnected, DeadlineExceeded)) as caught:
            await client.stats()
    assert "me:***@127.0.0.1" in caught.value.message
    assert "secret" not in str(caught.value)


def test_an_address_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidArgument) as caught:
        Client("ftp://me:secret@node")
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("address", ["http://me:secret@127.0.0.1:{port}", "ftp://me:secret@node"])
def test_commands_do_not_name_it_either(address: str) -> None:
    done = subprocess.run(
        command("stats", "--url", address.format(port=free_port())),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (2, 3)
    assert "me:***@" in done.stderr
    assert "secret" not in done.stderr + done.stdout


@pytest.mark.parametrize("mode", ["http", "stream"])
async def test_an_address_with_https_where_no_tls_is_spoken_is_named_for_what_it_is(
    mode: Literal["http", "stream"],
) -> None:
    async with (
        running_node() as node,
        Client(node.url.replace("http:", "https:"), mode=mode, timeout_ms=300) as client,
    ):
        with pytest.raises((NotConnected, DeadlineExceeded), match="speaks no TLS"):
            await client.stats()
