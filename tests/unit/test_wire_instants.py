from __future__ import annotations

import pytest

from omnirelay.errors import InvalidArgument
from omnirelay.wire.instants import instant, read_instant


def test_an_instant_is_written_with_milliseconds_and_an_offset() -> None:
    assert instant(0) == "1970-01-01T00:00:00.000+00:00"
    assert instant(1_763_978_400_123) == "2025-11-24T10:00:00.123+00:00"
    assert instant(253_402_300_799_999) == "9999-12-31T23:59:59.999+00:00"


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2025-11-24T10:00:00.123+00:00", 1_763_978_400_123),
        ("2025-11-24T10:00:00.1234567+00:00", 1_763_978_400_123),
        ("2025-11-24T10:00:00.1239999Z", 1_763_978_400_123),
        ("2025-11-24T11:00:00.123+01:00", 1_763_978_400_123),
        ("2025-11-24T10:00:00Z", 1_763_978_400_000),
        (" 2025-11-24T10:00:00 ", 1_763_978_400_000),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_instants_are_read_as_others_write_them(text: str, ms: int) -> None:
    assert read_instant("notBefore", text) == ms


@pytest.mark.parametrize("ms", [0, 1, 999, 1_763_978_400_123, 253_402_300_799_999])
def test_what_is_written_is_read_back(ms: int) -> None:
    assert read_instant("at", instant(ms)) == ms


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "2025-13-01T00:00:00Z", "1763978400", "1969-12-31T23:59:59Z", "x" * 99_999]
)
def test_what_is_no_instant_is_refused_by_its_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_instant("notBefore", text)
    assert caught.value.code == "resourcelease.notBefore.invalid"
    assert len(caught.value.message) < 200
