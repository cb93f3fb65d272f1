"""What a node sends becomes again what its log holds."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given

from omnirelay.lakehouse.tail import stored_of
from omnirelay.wire.events import readable
from tests.property.event_strategies import any_stored


@given(any_stored())
def test_an_event_comes_back_byte_for_byte(event: dict[str, Any]) -> None:
    stored = msgspec.json.encode(event)
    assert stored_of(msgspec.json.encode(readable(stored))) == stored
