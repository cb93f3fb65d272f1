"""The verbs of the lease surface: from what callers send to the shard's methods and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from omnirelay.core import commands as cmd
from omnirelay.core.intake import refuse
from omnirelay.engine.shard import Shard
from omnirelay.errors import Unavailable
from omnirelay.rpc.calls import ENDED, Message, Messages, RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.procedures import Steps
from omnirelay.service import acknowledging
from omnirelay.service.callers import caller_of
from omnirelay.service.cycle import CycleVerbs, check_count, no_leases
from omnirelay.wire import answers as out
from omnirelay.wire import requests as asked
from omnirelay.wire.events import event_of, event_types_named
from omnirelay.wire.instants import read_instant_or_none

_encode = msgspec.json.Encoder().encode


def register(dispatcher: Dispatcher, namespace: str, shard: Callable[[], Shard]) -> None:
    """Put every verb on the dispatcher. `shard` is asked anew by each call, and may refuse it."""
    verbs = LeaseVerbs(shard)
    for verb, (handler, answers, summary) in verbs.table().items():
        dispatcher.unary(
            f"{namespace}::{verb}",
            handler,
            request=asked.REQUESTS[verb],
            answers=answers,
            may_wait=verb in ("lease", "enqueue", "get"),
            late=no_leases if verb == "lease" else None,
            summary=summary,
        )
    dispatcher.server_stream(
        f"{namespace}::watch",
        verbs.watch,
        request=asked.WatchRequest,
        summary="Follow the log: every durable event, in order.",
    )


class LeaseVerbs:
    """One method per verb beside those of the cycle. Each gets the metadata of the call and the decoded request."""

    def __init__(self, shard: Callable[[], Shard]) -> None:
        self._shard = shard

    def table(self) -> dict[str, tuple[Callable[[RequestMeta, Any], Any] | Steps, tuple[Any, ...], str]]:
        cycle = CycleVerbs(self._shard)
        acknowledged = (out.Outcome, out.AcksAnswer)
        return {
            "enqueue": (
                cycle.enqueue(),
                (out.EnqueueAnswer,),
                "Take one item in, or a batch: all of it or nothing.",
            ),
            "lease": (
                cycle.lease(),
                (out.Lease, out.LeaseAnswer),
                "Lease one item, or with maxItems up to so many; waits for work.",
            ),
            "heartbeat": (
                cycle.acknowledge(acknowledging.heartbeat),
                acknowledged,
                "Keep a lease, report progress, hear of a cancellation.",
            ),
            "complete": (
                cycle.acknowledge(acknowledging.complete),
                acknowledged,
                "End the item well, with a result and follow-ups.",
            ),
            "fail": (
                cycle.acknowledge(acknowledging.fail),
                acknowledged,
                "Give the item up: to be tried again, released, or dead.",
            ),
            "release": (
                cycle.acknowledge(acknowledging.release),
                acknowledged,
                "Hand the item back; the attempt is not burned.",
            ),
            "get": (self.get, (out.ItemAnswer,), "One item by its id or request id; may wait for its end."),
            "drain": (self.drain, (out.DrainAnswer,), "Take a page of pending items out of the shard."),
            "restore": (self.restore, (out.RestoreAnswer,), "Take drained items in."),
            "cancel": (self.cancel, (out.CancelAnswer,), "Cancel an item, or ask its owner to stop."),
            "pause": (self.pause, (out.PausesAnswer,), "Grant nothing from a type, a tenant or the whole shard."),
            "resume": (self.resume, (out.PausesAnswer,), "End a pause."),
            "deadletters": (self.dead_letters, (out.DeadLettersAnswer,), "List dead letters."),
            "edit": (self.edit, (out.ItemAnswer,), "Give a dead letter another payload."),
            "redrive": (self.redrive, (out.RedriveAnswer,), "Make dead letters pending again."),
            "purge": (self.purge, (out.PurgeAnswer,), "Forget dead letters for good."),
            "stats": (self.stats, (out.StatsAnswer,), "Counts of the shard, backpressure and pauses."),
            "peek": (self.peek, (out.PageAnswer,), "List items in one state."),
            "why": (self.why, (out.WhyAnswer,), "Why an item is not running: the gates between it and its grant."),
        }

    # -- handling ------------------------------------------------------------------------------

    async def get(self, meta: RequestMeta, request: asked.GetRequest) -> out.ItemAnswer:
        view = await self._shard().get(
            request.sequence_id,
            request_id=request.request_id,
            wait_ms=meta.wait_ms(request.wait_ms, without_deadline_ms=0),
            caller=caller_of(meta),
        )
        return out.ItemAnswer(item=out.item_of(view))

    async def drain(self, meta: RequestMeta, request: asked.DrainRequest) -> out.DrainAnswer:
        answer = await self._shard().drain(
            max_items=request.max_items, pause_intake=request.pause_intake, caller=caller_of(meta)
        )
        return out.DrainAnswer(
            items=[out.pending_item_of(item) for item in answer.items], remaining_count=answer.remaining_count
        )

    async def restore(self, meta: RequestMeta, request: asked.RestoreRequest) -> out.RestoreAnswer:
        check_count("items", request.items or [])
        values = request.values()
        if not values:
            return out.RestoreAnswer(restored_count=0, duplicate_count=0)
        answer = await self._shard().restore(values, caller=caller_of(meta))
        renumbered = [
            out.Renumbered(sequence_id=each.sequence_id, new_sequence_id=each.new_sequence_id)
            for each in answer.renumbered
        ]
        return out.RestoreAnswer(
            restored_count=answer.restored_count,
            duplicate_count=answer.duplicate_count,
            renumbered=renumbered or None,
        )

    async def cancel(self, meta: RequestMeta, request: asked.CancelRequest) -> out.CancelAnswer:
        answer = await self._shard().cancel(
            request.sequence_id, reason=request.reason, force=request.force, caller=caller_of(meta)
        )
        return out.CancelAnswer(success=answer.success, state=answer.state, cancel_requested=answer.cancel_requested)

    async def pause(self, meta: RequestMeta, request: asked.PauseRequest) -> out.PausesAnswer:
        pauses = await self._shard().pause(
            resource_type=request.resource_type,
            tenant=request.tenant,
            intake=request.intake,
            reason=request.reason,
            until_ms=read_instant_or_none("until", request.until),
            caller=caller_of(meta),
        )
        return out.pauses_answer(pauses)

    async def resume(self, meta: RequestMeta, request: asked.ResumeRequest) -> out.PausesAnswer:
        pauses = await self._shard().resume(
            resource_type=request.resource_type, tenant=request.tenant, caller=caller_of(meta)
        )
        return out.pauses_answer(pauses)

    # -- dead letters --------------------------------------------------------------------------

    async def dead_letters(self, meta: RequestMeta, request: asked.DeadLettersRequest) -> out.DeadLettersAnswer:
        page = await self._shard().dead_letters(
            sequence_id=request.sequence_id,
            resource_type=request.resource_type,
            error_code=request.error_code,
            after=request.after,
            max_items=request.max_items,
        )
        return out.DeadLettersAnswer(items=[out.item_of(view) for view in page.items], next=page.next, total=page.total)

    async def edit(self, meta: RequestMeta, request: asked.EditRequest) -> out.ItemAnswer:
        if request.payload is None:
            refuse("payload", "is required", code="resourcelease.payload.required")
        view = await self._shard().edit(request.sequence_id, request.payload.value(), caller=caller_of(meta))
        return out.ItemAnswer(item=out.item_of(view))

    async def redrive(self, meta: RequestMeta, request: asked.RedriveRequest) -> out.RedriveAnswer:
        selection = cmd.DeadLetterSelection(
            sequence_ids=request.sequence_ids,
            resource_type=request.resource_type,
            error_code=request.error_code,
            everything=request.all,
        )
        answer = await self._shard().redrive_fitting(
            selection, rate_per_second=request.rate_per_second, caller=caller_of(meta)
        )
        return out.RedriveAnswer(redriven_count=answer.count, left_count=answer.left_count)

    async def purge(self, meta: RequestMeta, request: asked.PurgeRequest) -> out.PurgeAnswer:
        count = await self._shard().purge(
            sequence_ids=request.sequence_ids,
            resource_type=request.resource_type,
            error_code=request.error_code,
            everything=request.all,
            caller=caller_of(meta),
        )
        return out.PurgeAnswer(purged_count=count)

    # -- looking -------------------------------------------------------------------------------

    async def stats(self, meta: RequestMeta, request: asked.StatsRequest) -> out.StatsAnswer:
        shard = self._shard()
        return out.stats_answer(await shard.stats(), shard.now_ms())

    async def peek(self, meta: RequestMeta, request: asked.PeekRequest) -> out.PageAnswer:
        page = await self._shard().peek(
            state=request.state.lower(),
            resource_type=request.resource_type,
            tenant=request.tenant,
            after=request.after,
            max_items=request.max_items,
        )
        return out.PageAnswer(items=[out.item_of(view) for view in page.items], next=page.next)

    async def why(self, meta: RequestMeta, request: asked.WhyRequest) -> out.WhyAnswer:
        return out.why_answer(await self._shard().why(request.sequence_id))

    async def watch(self, meta: RequestMeta, request: asked.WatchRequest) -> Messages:
        shard = self._shard()
        wanted = None if request.types is None else event_types_named(request.types)
        last = shard.last_sequence
        first = last + 1 if request.from_ is None else request.from_
        end = Message(b"{}", id=str(last), kind=ENDED)
        if request.until_caught_up and first > last:
            yield end
            return
        tail = shard.tail(first)
        try:
            async for event in tail:
                if wanted is None or type(event).__name__ in wanted:
                    yield Message(_encode(event_of(event)), id=str(event.sequence_number))
                if request.until_caught_up and event.sequence_number >= last:
                    yield end
                    return
        finally:
            await tail.aclose()  # type: ignore[attr-defined]
        if request.until_caught_up:
            # Who asked for all there is must not take a part for it. Who follows the log sees that it ends.
            raise shard.failure or Unavailable(
                f"the node stopped before the watch came to event {last}",
                code="error.resourcelease.draining",
                retry_after_ms=1_000,
            )
