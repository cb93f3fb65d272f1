"""Errors as headers and bodies have them."""

from __future__ import annotations

import msgspec

from omnirelay import errors
from omnirelay.client.failures import error_of
from omnirelay.errors import OmniRelayError, ResourceExhausted, Unavailable
from omnirelay.rpc.statuses import HTTP_STATUS, status_name, status_named
from omnirelay.transport.http_headers import error_body, error_headers, printable
from omnirelay.wire.answers import ErrorBody


def test_a_very_long_message_is_cut_in_the_header_and_whole_in_the_body() -> None:
    error = OmniRelayError("é" * 100_000)
    assert len(error_headers(error)["rpc-error-message"]) < 8_000
    assert msgspec.json.decode(error_body(error))["message"] == error.message
    assert printable("\u2028\t") == "\\u2028\\t"


def test_values_of_metadata_are_text() -> None:
    error = OmniRelayError("x", a=1, b=True, c=None, d=1.5, e="é")
    assert msgspec.json.decode(error_body(error))["metadata"] == {"a": "1", "b": "true", "d": "1.5", "e": "é"}


def test_every_status_has_a_number_a_name_and_a_way_back() -> None:
    for status, number in HTTP_STATUS.items():
        assert 200 <= number < 600
        assert status_named(status_name(status)) is status
        assert status_named(status.name) is status
        assert status_named(status.name.lower().replace("_", "-")) is status
    assert status_named("nonsense") is None


def test_every_error_arrives_as_what_it_was() -> None:
    """Whoever catches an error of a shard in the same process catches it from a node, too."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OmniRelayError)]
    assert len(kinds) > 15
    for kind in kinds:
        error = kind("no\nway: é", retry_after_ms=7, field="x")
        arrived = error_of(msgspec.json.decode(error_body(error), type=ErrorBody))
        assert (arrived.status, arrived.code, arrived.message) == (error.status, error.code, error.message), kind
        assert (arrived.retry_after_ms, arrived.details["field"]) == (7, "x")
        assert issubclass(kind, type(arrived)) or kind is OmniRelayError, kind


def test_who_is_to_come_back_is_told_when() -> None:
    assert error_headers(Unavailable("x", retry_after_ms=1_001))["retry-after"] == "2"
    assert error_headers(Unavailable("x", retry_after_ms=1))["retry-after"] == "1"
    assert error_headers(Unavailable("x"))["retry-after"] == "1"
    assert error_headers(ResourceExhausted("x"))["retry-after"] == "1"
    assert "retry-after" not in error_headers(OmniRelayError("x"))
