"""Arguments of a client that no node would ever see: refused before anything is sent, and named."""

from __future__ import annotations

from typing import Any

import pytest

from omnirelay.client.client import Client, ItemSpec, token_of
from omnirelay.client.items import in_batches
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import InvalidArgument
from omnirelay.worker.worker import _encoded


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"mode": "websocket"}, "mode"),
        ({"caller": "wörker"}, "caller"),
        ({"caller": "a\r\nx-evil: 1"}, "caller"),
        ({"caller": 5}, "caller"),
        ({"url": "node:7070"}, "url"),
    ],
)
def test_a_client_that_could_never_call_is_not_made(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Client(**arguments)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("at", [10**20, -1, 1.5, "now"])
def test_a_time_that_is_none_is_named(at: Any) -> None:
    item = ItemSpec(resource_type="table", resource_id="a", not_before_ms=at)
    with pytest.raises(InvalidArgument) as caught:
        item.wire()
    assert caught.value.details["field"] == "not_before_ms"


def test_what_is_no_item_is_named_with_its_place() -> None:
    good = ItemSpec(resource_type="table", resource_id="a")
    bad: Any = {}
    with pytest.raises(InvalidArgument, match="ItemSpec, not dict") as caught:
        in_batches([good, bad])
    assert caught.value.details["index"] == 1


def test_what_is_no_lease_is_named() -> None:
    token = OwnershipToken(1, 1, "x", 1)
    assert token_of(token) is token
    bad: Any = 5
    with pytest.raises(InvalidArgument, match="Lease, not int"):
        token_of(bad)


@pytest.mark.parametrize("result", [b"xy", bytearray(b"xy"), memoryview(b"xy")])
def test_bytes_of_any_sort_are_a_result_as_they_are(result: Any) -> None:
    assert _encoded(result) == (b"xy", "application/octet-stream")
