"""Lanes: leases that an owner held at the same time are drawn below each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from omnirelay.lakehouse.report_data import LANES_MAX, Bar, OwnerRow, Span

_NARROWEST: Final = 150
"""A bar takes up at least this part of the width, so that a short one can be seen and pointed at."""


def into_lanes(rows: Sequence[OwnerRow], bars: Iterable[Bar], span: Span) -> tuple[list[OwnerRow], list[Bar]]:
    """Rows and bars with lanes in which no two bars overlap. Bars for which an owner has no lane left are left out."""
    shortest = (span.to_ms - span.from_ms) / _NARROWEST
    free: list[list[float]] = [[] for _ in rows]
    """For each row: when each of its lanes is free again."""
    placed: list[Bar] = []
    for bar in sorted(bars, key=lambda each: (each.row, each.start_ms, each.fence or 0)):
        lanes = free[bar.row]
        start = max(bar.start_ms, span.from_ms)
        end = span.to_ms if bar.end_ms is None else bar.end_ms
        until = max(end, start + shortest)
        lane = next((at for at, ends in enumerate(lanes) if ends <= start), len(lanes))
        if lane >= LANES_MAX:
            continue
        if lane == len(lanes):
            lanes.append(until)
        else:
            lanes[lane] = until
        placed.append(msgspec.structs.replace(bar, lane=lane))
    wide = [msgspec.structs.replace(row, lanes=max(1, len(free[at]))) for at, row in enumerate(rows)]
    return wide, placed


def natural(name: str | None) -> tuple[object, ...]:
    """A key that puts worker-2 before worker-10, and no name last."""
    if name is None:
        return (1,)
    parts = re.split(r"([0-9]+)", name)
    return (0, tuple((part.lower(), 0) if at % 2 == 0 else ("", int(part[:18])) for at, part in enumerate(parts)), name)
