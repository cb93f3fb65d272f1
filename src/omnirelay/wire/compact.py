"""Compact forms of the answers that come by the thousand: how a node writes them, and how a client reads them back.

enqueue    first, count     instead of results, when they are numbered in a row and none is a duplicate
lease      leases           by position: as core has them
complete   done             instead of results, when all of them say no more than that it is done
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from omnirelay.core import answers
from omnirelay.core.intake import BATCH_ITEMS_MAX
from omnirelay.core.rules.acknowledge import PLAIN_COMPLETE
from omnirelay.wire.answers import (
    AcksAnswer,
    EnqueueAnswer,
    EnqueueResult,
    Lease,
    LeaseAnswer,
    Outcome,
    Outgoing,
    QueueStats,
    enqueue_answer,
    lease_of,
    outcomes_of,
)

Count = Annotated[int, Meta(ge=0, le=BATCH_ITEMS_MAX)]


class CompactEnqueued(EnqueueAnswer):
    """With a `count`, that many results begin at `first`."""

    first: int = 0
    count: Count = 0


class CompactLeases(Outgoing):
    leases: list[answers.GrantedLease]


class CompactOutcomes(Outgoing):
    done: Count = 0
    results: list[Outcome] | None = None


# -- writing -------------------------------------------------------------------------------------


def compact_enqueued(answer: answers.EnqueueAnswer) -> EnqueueAnswer:
    if not answer.all_new:
        return enqueue_answer(answer, batch=True)
    stats = QueueStats(pending_count=answer.pending_count, active_lease_count=answer.active_lease_count)
    return CompactEnqueued(stats=stats, first=answer.results[0].sequence_id, count=len(answer.results))


def compact_outcomes(outcomes: list[Any]) -> AcksAnswer | CompactOutcomes:
    if outcomes.count(PLAIN_COMPLETE) == len(outcomes):
        return CompactOutcomes(done=len(outcomes))
    return AcksAnswer(results=outcomes_of(outcomes))


# -- reading -------------------------------------------------------------------------------------


def _enqueued(answer: CompactEnqueued) -> EnqueueAnswer:
    if answer.count:
        results = [EnqueueResult(number, False) for number in range(answer.first, answer.first + answer.count)]
        return EnqueueAnswer(stats=answer.stats, results=results)
    return answer


def leases_of(granted: list[answers.GrantedLease]) -> list[Lease]:
    return [lease_of(each) for each in granted]


def _leases(answer: CompactLeases) -> LeaseAnswer:
    return LeaseAnswer(leases=leases_of(answer.leases))


def _outcomes(answer: CompactOutcomes) -> AcksAnswer:
    results = answer.results
    if results is None:
        results = [Outcome(success=True) for _ in range(answer.done)]
    return AcksAnswer(results=results)


COMPACT_ANSWERS: dict[Any, tuple[Any, Callable[[Any], Any]]] = {
    EnqueueAnswer: (CompactEnqueued, _enqueued),
    LeaseAnswer: (CompactLeases, _leases),
    AcksAnswer: (CompactOutcomes, _outcomes),
}
"""By the type of an answer: its compact form, and how that is read."""
