"""`Wanted`: which events a query can need, as far as its filters tell. It may let more through, never less."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds are inclusive; None is no bound."""

    first: int | None = None
    last: int | None = None
    from_us: int | None = None
    to_us: int | None = None
    types: frozenset[str] | None = None
    shards: frozenset[str] | None = None

    def and_types(self, types: frozenset[str] | None) -> Wanted:
        return msgspec.structs.replace(self, types=_both(self.types, types))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Only rows that may be wanted. The timestamps of the batch are microseconds."""
        import pyarrow as pa
        import pyarrow.compute as pc

        tests = []
        if self.first is not None:
            tests.append(pc.greater_equal(batch["sequence"], self.first))
        if self.last is not None:
            tests.append(pc.less_equal(batch["sequence"], self.last))
        if self.from_us is not None or self.to_us is not None:
            at = batch["timestamp"].cast(pa.int64())
            if self.from_us is not None:
                tests.append(pc.greater_equal(at, self.from_us))
            if self.to_us is not None:
                tests.append(pc.less_equal(at, self.to_us))
        if self.types is not None:
            tests.append(pc.is_in(batch["event_type"], value_set=pa.array(sorted(self.types), pa.string())))
        for test in tests[1:]:
            tests[0] = pc.and_(tests[0], test)
        return batch.filter(tests[0]) if tests else batch


def wanted_by(filters: Iterable[Filter]) -> Wanted:
    """What all of these let through."""
    wanted = Wanted()
    for each in filters:
        wanted = _narrowed(wanted, each)
    return wanted


def _narrowed(wanted: Wanted, each: Filter) -> Wanted:
    from pyspark.sql import datasource as spark

    column = getattr(each, "attribute", None)
    value = getattr(each, "value", None)
    if value is None or column not in (("sequence",), ("timestamp",), ("event_type",), ("shard",)):
        return wanted
    values = value if isinstance(each, spark.In) else (value,)
    equal = isinstance(each, spark.EqualTo | spark.EqualNullSafe | spark.In)
    if column in (("event_type",), ("shard",)):
        if not equal:
            return wanted
        texts = frozenset(str(each) for each in values if each is not None)
        if column == ("shard",):
            return msgspec.structs.replace(wanted, shards=_both(wanted.shards, texts))
        return wanted.and_types(texts)
    numbers = [number for number in map(_number, values) if number is not None]
    # A filter on nothing but null lets nothing through; that is left to Spark.
    if len(numbers) != len(values) or not numbers:
        return wanted
    low, high = min(numbers), max(numbers)
    # Strict bounds are taken as if they were not: one event more, which Spark leaves out.
    bounded_below = equal or isinstance(each, spark.GreaterThan | spark.GreaterThanOrEqual)
    bounded_above = equal or isinstance(each, spark.LessThan | spark.LessThanOrEqual)
    below, above = ("first", "last") if column == ("sequence",) else ("from_us", "to_us")
    changes: dict[str, Any] = {}
    if bounded_below:
        changes[below] = max(low, getattr(wanted, below) or low)
    if bounded_above:
        known = getattr(wanted, above)
        changes[above] = high if known is None else min(high, known)
    return msgspec.structs.replace(wanted, **changes)


def _number(value: object) -> int | None:
    """A sequence as it is, an instant as microseconds."""
    if isinstance(value, datetime):
        at = value.astimezone(UTC) if value.tzinfo else value.astimezone().astimezone(UTC)
        difference = at - datetime(1970, 1, 1, tzinfo=UTC)
        return (difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds
    return value if isinstance(value, int) else None


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
