"""The opinion of SQL on what is left of shards whose segments were cleared, item by item, before.

Here it only comes out whether a shard is in order as a whole, and what its items are at the end. Of a shard that is not
in order all events are asked for, so that what is wrong is named by one way of asking only.

What was cleared in a segment was so because nothing else is said of the item. That holds across segments when

    each segment has items come in that are above all that came in before, and
    no item is left in one segment that came in elsewhere and is not left there: it would be found not to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse import audit_sql
from omnirelay.lakehouse.audit_clearing import Cleared
from omnirelay.lakehouse.audit_kinds import NOT_THERE, STATES
from omnirelay.lakehouse.audit_plan import ShardPlan
from omnirelay.lakehouse.audit_sql_frames import with_depth
from omnirelay.lakehouse.audit_sql_gates import History, room

_LAST: Final = ("last_row", "told_pending", "told_leased")
_SEEN: Final = ("rows", "tells")
"""How much of what was left arrived: a shard of which some did not is not in order."""
_WRONG: Final = ("wrong", "wrong_fence", "strays")


class ClearedSegments(msgspec.Struct, frozen=True):
    """What came of the segments: for each shard what was cleared, by place, and what all of them left, as rows."""

    cleared: Mapping[str, Sequence[Cleared | None]]
    left: DataFrame
    suspected: frozenset[str] = frozenset()
    """Shards in which two grants may share a lease id."""


def continues(plan: ShardPlan, segments: Sequence[Cleared | None]) -> list[Cleared] | None:
    """The segments, when each of them was cleared and they fit each other."""
    known = [each for each in segments if each is not None]
    if len(known) < len(segments):
        return None
    generations = [(plan.anchor.generation,) * 2, *(each.generations for each in known if each.generations is not None)]
    came_in = [each.enqueued for each in known if each.enqueued is not None]
    rising = all(before[1] <= behind[0] for before, behind in pairwise(generations))
    return known if rising and all(before[1] < behind[0] for before, behind in pairwise(came_in)) else None


def enqueued_from(segments: Sequence[Cleared]) -> int | None:
    """The lowest item that came in; None when there is none."""
    return min((each.enqueued[0] for each in segments if each.enqueued is not None), default=None)


def totals(
    left: DataFrame, shards: DataFrame, history: History, together: Callable[[DataFrame], DataFrame]
) -> dict[str, dict[str, Any]]:
    """For each shard: what is wrong with it, 0 when nothing is, and what the items are at the end that were left.

    `shards` has what `followed` and `with_depth` need, and `enqueued_from`; `together` puts few rows into few
    partitions, as `left` is.
    """
    rows = left.where(F.col("item").isNotNull()).select(
        "shard",
        "sequence",
        "frame_first",
        "kind",
        "item",
        "fence",
        F.when(F.col("lease_id").isNotNull(), F.xxhash64("lease_id", "fence")).alias("lease"),
        "expires",
    )
    strange = (F.col("was") == NOT_THERE) & ~audit_sql.is_number("Enqueue")
    stray = strange & (F.col("item") >= F.col("enqueued_from"))
    followed = audit_sql.followed(rows, shards).withColumn("stray", F.when(stray, 1))
    of_left = audit_sql.per_frame(followed, F.count("stray").alias("strays"), F.count("*").alias("rows"))
    of_cleared = left.where(F.col("more_pending").isNotNull()).select(
        "shard",
        "frame_first",
        "more_pending",
        "more_leased",
        *_LAST,
        F.when(F.col("last_row").isNotNull(), 1).alias("tells"),
    )
    summed = ("more_pending", "more_leased", *_SEEN, *_WRONG, *STATES.values())
    frames = (
        together(of_left.unionByName(of_cleared, allowMissingColumns=True))
        .groupBy("shard", "frame_first")
        .agg(*(F.sum(name).alias(name) for name in summed), *(F.max(name).alias(name) for name in _LAST))
        # As when all rows are asked: frames that say nothing of items are not looked at.
        .where(F.col("last_row").isNotNull())
    )
    judged = with_depth(frames, shards, room(history))
    wrong = sum((F.coalesce(F.sum(name), F.lit(0)) for name in _WRONG), F.sum(F.size("told")))
    states = (F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (*_SEEN, *STATES.values()))
    found = judged.groupBy("shard").agg(wrong.alias("wrong_all"), *states).collect()
    return {row["shard"]: row.asDict() for row in found}


def is_in_order(segments: Sequence[Cleared], found: Mapping[str, Any] | None) -> bool:
    """Whether `totals` saw all that was left of a shard, and nothing wrong with it."""
    expected = (sum(each.left for each in segments), sum(each.told for each in segments))
    if found is None:
        return expected == (0, 0)
    return expected == (found["rows"], found["tells"]) and found["wrong_all"] == 0
