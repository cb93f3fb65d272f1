"""The opinion of SQL on exclusive keys, limits and capacity, under the options that were in force at each event.

Options are events, few of them. They are read first and become conditions: each stretch between two changes of options
has its own, so that a limit holds from the event that set it to the event that lifted it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from omnirelay.core.options import Limit, QueueOptions
from omnirelay.lakehouse.audit_kinds import LEASED
from omnirelay.lakehouse.audit_sql import is_number, kind_name

History: TypeAlias = Mapping[str, Sequence[tuple[int, QueueOptions]]]
"""The options of each shard, with the event from which on they hold."""

_ENDS: Final = ("Completed", "Failed", "Released", "Expired", "Cancelled")


def gated(history: History) -> bool:
    """Whether any options ever had an exclusive key or a limit."""
    return any(options.ordering != "none" or options.limits for each in history.values() for _, options in each)


def beyond_gates(rows: DataFrame, history: History) -> list[DataFrame]:
    """Grants that a key or a limit should have kept back. `rows` are those of `followed`, with names."""
    by_item = Window.partitionBy("item", "shard").orderBy("sequence")
    so_far = by_item.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    for name in ("resource_type", "resource_id", "partition_key", "attributes", "weight"):
        rows = rows.withColumn(name, F.last(name, ignorenulls=True).over(so_far))
    # A second grant of an item is named by another rule; here it holds nothing more.
    grant = is_number("LeaseGranted") & (F.col("was") != LEASED)
    end = is_number(*_ENDS) & (F.col("was") == LEASED)
    held = rows.where(grant | end).withColumn("sign", F.when(grant, 1).otherwise(-1))
    return [*_exclusive(held, history), *(each for by in _BY for each in _limit(held, history, by))]


# -- which options hold ----------------------------------------------------------------------------


def _stretches(history: History) -> list[tuple[str, int, int | None, QueueOptions]]:
    """(shard, from, before, options)"""
    made = []
    for shard, changes in history.items():
        for at, (sequence, options) in enumerate(changes):
            before = changes[at + 1][0] if at + 1 < len(changes) else None
            made.append((shard, sequence, before, options))
    return made


def _within(shard: str, start: int, before: int | None) -> Column:
    inside = (F.col("shard") == shard) & (F.col("sequence") > start)
    return inside if before is None else inside & (F.col("sequence") < before)


def _chosen(cases: Sequence[tuple[Column, Column]], kind: str) -> Column:
    """The value of the first condition that holds, null when none does."""
    chosen = F.lit(None).cast(kind)
    for condition, value in reversed(cases):
        chosen = F.when(condition, value.cast(kind)).otherwise(chosen)
    return chosen


def _key(options: QueueOptions) -> Column:
    if options.key == "resource":
        return F.concat(F.col("resource_type"), F.lit("/"), F.col("resource_id"))
    return F.coalesce("partition_key", "resource_id")


def _type_of_key(options: QueueOptions) -> Column:
    """What tells keys apart that read the same: "a/b" of type "c" and "b" of type "c/a" do."""
    return F.col("resource_type") if options.key == "resource" else F.lit("")


def _tenant(options: QueueOptions) -> Column:
    attributes = F.from_json("attributes", "MAP<STRING, STRING>")
    return F.coalesce(F.element_at(attributes, F.lit(options.tenant_attribute)), F.lit(""))


_BY: Final[dict[str, Callable[[QueueOptions], Column]]] = {
    "type": lambda options: F.col("resource_type"),
    "tenant": _tenant,
    "key": _key,
}
"""How the name that a limit is about comes from an item."""


# -- keys and limits -------------------------------------------------------------------------------


def _earlier(*names: str) -> WindowSpec:
    return Window.partitionBy(*names).orderBy("sequence").rowsBetween(Window.unboundedPreceding, -1)


def _exclusive(held: DataFrame, history: History) -> Iterator[DataFrame]:
    stretches = [each for each in _stretches(history) if each[3].ordering != "none"]
    # What a key is may change with the options; leases of before count under the key of now.
    for how in {each[3].key for each in stretches}:
        of_this = [each for each in stretches if each[3].key == how]
        inside = reduce(
            lambda one, other: one | other, (_within(shard, start, end) for shard, start, end, _ in of_this)
        )
        # Of items that came in before the segments begin no key is known; they are not all of one.
        options = of_this[0][3]
        keyed = held.withColumns({"name": _key(options), "of_type": _type_of_key(options)}).where("name IS NOT NULL")
        before = _earlier("shard", "of_type", "name")
        rows = keyed.withColumn("live", F.sum("sign").over(before))
        what = F.concat(F.lit("the key "), "name", F.lit(" has "), "live", F.lit(" live leases already"))
        yield _named(rows.where((F.col("sign") == 1) & (F.col("live") > 0) & inside), "exclusive-key", what)


def _limit(held: DataFrame, history: History, by: str) -> Iterator[DataFrame]:
    stretches = [each for each in _stretches(history) if any(limit.by == by for limit in each[3].limits)]
    for how in {_how(by, each[3]) for each in stretches}:
        of_this = [each for each in stretches if _how(by, each[3]) == how]
        options = of_this[0][3]
        of_type = _type_of_key(options) if by == "key" else F.lit("")
        named = held.withColumns({"name": _BY[by](options), "of_type": of_type})
        before = _earlier("shard", "of_type", "name")
        rows = named.withColumn("used", F.sum(F.col("sign") * F.col("weight")).over(before)).withColumn(
            "most",
            _chosen(
                [(_within(shard, start, end), _most(by, options.limits)) for shard, start, end, options in of_this],
                "bigint",
            ),
        )
        over = (F.col("used") > 0) & (F.col("used") + F.col("weight") > F.col("most"))
        what = F.concat(
            F.lit("a weight of "),
            F.col("used") + F.col("weight"),
            F.lit(f" is leased of {by} "),
            "name",
            F.lit(", the limit is "),
            "most",
        )
        yield _named(rows.where((F.col("sign") == 1) & over), "limits", what)


def _how(by: str, options: QueueOptions) -> str:
    """Names of a kind are the same as long as this is."""
    return {"type": "", "tenant": options.tenant_attribute, "key": options.key}[by]


def _most(by: str, limits: Sequence[Limit]) -> Column:
    return _chosen([(_fits(limit.match), F.lit(limit.max)) for limit in limits if limit.by == by], "bigint")


def _fits(glob: str) -> Column:
    """A glob as Java's regular expressions have it."""
    return F.col("name").rlike("^" + fnmatch.translate(glob).replace(r"\Z", r"\z"))


def _named(rows: DataFrame, rule: str, what: Column) -> DataFrame:
    return rows.where(F.col("sequence") >= F.col("first")).select(
        F.lit(rule).alias("rule"),
        "shard",
        "sequence",
        "item",
        F.concat(kind_name(), F.lit(": "), what).alias("what"),
    )


# -- capacity --------------------------------------------------------------------------------------


def room(history: History) -> Column:
    """How many items may be live behind a frame."""
    return _chosen(
        [
            (_room_within(shard, start, end), F.lit(options.items_max))
            for shard, start, end, options in _stretches(history)
        ],
        "bigint",
    )


def _room_within(shard: str, start: int, before: int | None) -> Column:
    """A frame that changes options is judged by those it began with or those it ends with, whichever is more lenient:
    by those from its first event on only when they hold throughout.
    """
    inside = (F.col("shard") == shard) & (F.col("frame_first") > start)
    return inside if before is None else inside & (F.col("last_row") < before)
