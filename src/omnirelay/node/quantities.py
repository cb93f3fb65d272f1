"""Durations and byte sizes as people write them: `30s`, `1h30m`, `64MiB`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
UNITS_BYTES: Final = {
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
}

DURATION_FORM: Final = 'a duration with a unit (d, h, m, s, ms) such as "30s", "500ms" or "1h30m"'
SIZE_FORM: Final = 'bytes as a whole number, or with a unit (KiB, MiB, GiB, KB, MB, GB) such as "64MiB"'

# The lengths are bounded so that no text makes a number that takes long to work with.
_WHOLE = "[0-9]{1,15}"
_DECIMAL = rf"{_WHOLE}(\.[0-9]{{1,9}})?"

# Each unit once and the larger before the smaller: "30m1h" is more likely a slip than meant.
DURATION_PATTERN: Final = "^(?=[0-9])" + "".join(f"({_DECIMAL}{unit})?" for unit in UNITS_MS) + "$"
SIZE_PATTERN: Final = f"^{_WHOLE}({'|'.join(UNITS_BYTES)})$"

_PART = re.compile(r"([0-9.]+)([a-z]+)")
_BARE = re.compile(r"[0-9]+(\.[0-9]+)?")
_TOO_FINE = re.compile(r"[0-9.]+(us|µs|μs|ns)")


def parse_duration(text: str) -> int:
    """Milliseconds; raises ValueError that says what is allowed."""
    if text.startswith("-"):
        raise ValueError(f"{DURATION_FORM}, and not negative")
    if _BARE.fullmatch(text):
        raise ValueError(bare_duration_hint(text))
    if _TOO_FINE.fullmatch(text):
        raise ValueError("whole milliseconds: nothing shorter is measured")
    # fullmatch, because `$` alone would let a line break at the end pass.
    if re.fullmatch(DURATION_PATTERN, text) is None:
        raise ValueError(DURATION_FORM)
    total = sum(Fraction(number) * UNITS_MS[unit] for number, unit in _PART.findall(text))
    if total.denominator != 1:
        raise ValueError("whole milliseconds: nothing shorter is measured")
    return int(total)


def bare_duration_hint(number: object) -> str:
    return f'a duration with a unit: write "{number}s" for seconds or "{number}ms" for milliseconds'


def format_duration(ms: int) -> str:
    """The shortest way to write it; `parse_duration` reads it back."""
    parts = []
    for unit, length in UNITS_MS.items():
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Bytes; raises ValueError that says what is allowed."""
    if re.fullmatch(SIZE_PATTERN, text) is None:
        raise ValueError(SIZE_FORM)
    number = text.rstrip("KMGiB")
    return int(number) * UNITS_BYTES[text[len(number) :]]


def format_size(size: int) -> int | str:
    """With the largest binary unit that loses nothing, else as a number."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % UNITS_BYTES[unit] == 0:
            return f"{size // UNITS_BYTES[unit]}{unit}"
    return size
