"""Lengths of time that can be added to: how many leases took how long, rounded, and percentiles of that.

A percentile of exact values needs all of them again whenever there is one more. Rounded to a few binary digits, the
values of a day or of a resource are some hundred different ones however many there are, so a row of a table can hold
them and the next run only adds its own. Rounding the same value the same way, runs in parts end where one run does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

FINE_BITS: Final = 7
"""Digits that are kept for what is to be within 1 %: the middle of a step is at most 1/128 away, and up to 127 ms
every millisecond is its own.
"""
COARSE_BITS: Final = 5
"""The same for 4 %, where there are many rows that hold such tallies: 1/32."""


def rounded(name: str, bits: int) -> Column:
    """A column of milliseconds, those with more binary digits than this put into the middle of their step."""
    shift = f"greatest(length(bin({name})) - {bits}, 0)"
    middle = f"shiftleft(shiftright({name}, {shift}), {shift}) + shiftright(shiftleft(1L, {shift}), 1)"
    # Less than nothing, which a clock that was set back makes, is kept as it is.
    return F.expr(f"if({name} < {1 << bits}, {name}, {middle})").alias("ms")


def tally(value: Column, leases: Column) -> Column:
    """In a group: the values, in order, each with how many leases have it; rows without a value are passed over."""
    # Structs in order of their first field, which no two have in common.
    return F.array_sort(F.collect_list(F.when(value.isNotNull(), F.struct(value.alias("ms"), leases.alias("leases")))))


def percentiles(value: Column, leases: Column, name: str, shares: Sequence[int]) -> list[Column]:
    """In a group of tallied values."""
    return [F.percentile(value, share / 100, leases).alias(f"{name}_p{share}_ms") for share in shares]
