"""The files that are made from the definition of the events are as they would be made now."""

from __future__ import annotations

from omnirelay.wire.event_messages import proto_text
from scripts import make_schemas


def test_the_proto_file_is_that_of_the_definition() -> None:
    assert make_schemas.PROTO.read_text() == proto_text(), "run make schemas"


def test_the_page_about_events_is_that_of_the_definition() -> None:
    assert make_schemas.PAGE.read_text() == make_schemas.page(), "run make schemas"
