"""The verbs of the lease surface: from what callers send to the shard's methods and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from omnirelay.core import commands as cmd
from omnirelay.core.answers import GrantedLease
from omnirelay.core.intake import BATCH_ITEMS_MAX, refuse
from omnirelay.core.payload import ANONYMOUS, Caller, NewItem
from omnirelay.engine.shard import Shard
from omnirelay.errors import TOO_LARGE, InvalidArgument, OmniRelayError, Unavailable
from omnirelay.rpc.calls import ENDED, AnswerForm, Message, Messages, Reply, RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service import acknowledging
from omnirelay.service.owners import Owners
from omnirelay.wire import answers as out
from omnirelay.wire import requests as asked
from omnirelay.wire.compact import CompactLeases, compact_enqueued, compact_outcomes
from omnirelay.wire.events import event_of, event_types_named
from omnirelay.wire.forms import packed
from omnirelay.wire.instants import read_instant_or_none
from omnirelay.wire.packed import CompactAcks, CompactEnqueue

LEASE_WAIT_MS = 30_000
"""How long a lease call waits that says nothing and has no deadline."""

_encode = msgspec.json.Encoder().encode


def caller_of(meta: RequestMeta, peer_id: str | None = None) -> Caller:
    """Who is calling: the name in the body first, then the headers. Only a verified principal is one."""
    peer_id = peer_id or meta.peer_id or meta.principal
    if peer_id is None and meta.principal is None:
        return ANONYMOUS
    return Caller(principal=meta.principal, peer_id=peer_id)


def holder_of(meta: RequestMeta, peer_id: str | None = None) -> Caller:
    """Who acknowledges on a stream: the peer that opened it, or the one an acknowledgement names. The service that
    connected may carry the streams of many peers, so its own name says nothing here.
    """
    if peer_id is None and meta.caller is None:
        peer_id = meta.headers.get("x-peer-id")
    return Caller(principal=meta.principal, peer_id=peer_id) if peer_id or meta.principal else ANONYMOUS


DIRECT = frozenset({"enqueue", "lease", "heartbeat", "complete", "fail", "release"})
"""The lease cycle: its verbs wait for the shard and nothing else."""


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
            late=_no_leases if verb == "lease" else None,
            direct=verb in DIRECT,
            summary=summary,
        )
    dispatcher.server_stream(
        f"{namespace}::watch",
        verbs.watch,
        request=asked.WatchRequest,
        summary="Follow the log: every durable event, in order.",
    )


class LeaseVerbs:
    """One method per verb. Each gets the metadata of the call and the decoded request."""

    def __init__(self, shard: Callable[[], Shard]) -> None:
        self._shard = shard
        self._owners = Owners()

    def table(self) -> dict[str, tuple[Callable[[RequestMeta, Any], Any], tuple[Any, ...], str]]:
        acknowledged = (out.Outcome, out.AcksAnswer)
        return {
            "enqueue": (self.enqueue, (out.EnqueueAnswer,), "Take one item in, or a batch: all of it or nothing."),
            "lease": (
                self.lease,
                (out.Lease, out.LeaseAnswer),
                "Lease one item, or with maxItems up to so many; waits for work.",
            ),
            "heartbeat": (self.heartbeat, acknowledged, "Keep a lease, report progress, hear of a cancellation."),
            "complete": (self.complete, acknowledged, "End the item well, with a result and follow-ups."),
            "fail": (self.fail, acknowledged, "Give the item up: to be tried again, released, or dead."),
            "release": (self.release, acknowledged, "Hand the item back; the attempt is not burned."),
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

    # -- coming in -----------------------------------------------------------------------------

    async def enqueue(self, meta: RequestMeta, request: asked.EnqueueRequest | CompactEnqueue) -> Any:
        batch = request.items is not None
        if isinstance(request, CompactEnqueue):
            items = request.values()
        else:
            items = _items(request)
        wait_ms = meta.wait_ms(request.wait_ms, without_deadline_ms=0)
        try:
            answer = await self._shard().enqueue(items, caller=caller_of(meta), wait_ms=wait_ms)
        except OmniRelayError as error:
            # The shard knows a single item only as a batch of one.
            if not batch:
                error.details.pop("index", None)
            elif len(items) == 1 and isinstance(error, InvalidArgument):
                error.details.setdefault("index", 0)
            raise
        if batch and meta.answer_form == "compact":
            return compact_enqueued(answer)
        return out.enqueue_answer(answer, batch=batch)

    # -- leasing -------------------------------------------------------------------------------

    async def lease(self, meta: RequestMeta, request: asked.LeaseRequest) -> Reply:
        shard = self._shard()
        wait_ms = meta.wait_ms(request.wait_ms, without_deadline_ms=LEASE_WAIT_MS)
        granted = await shard.lease(
            caller_of(meta, request.peer_id),
            max_items=1 if request.max_items is None else request.max_items,
            wait_ms=wait_ms,
            lease_duration_ms=request.lease_duration_ms,
            request_id=request.request_id,
            resource_types=request.resource_types,
            tenants=request.tenants,
        )
        self._owners.note(granted, meta)
        reply = _leases(granted, request.max_items, meta.answer_form)
        reply.undelivered = partial(shard.undelivered, granted)
        return reply

    async def heartbeat(self, meta: RequestMeta, request: asked.HeartbeatRequest) -> Any:
        return await self._acknowledge(meta, request, acknowledging.heartbeat)

    async def complete(self, meta: RequestMeta, request: asked.CompleteRequest) -> Any:
        return await self._acknowledge(meta, request, acknowledging.complete)

    async def fail(self, meta: RequestMeta, request: asked.FailRequest) -> Any:
        return await self._acknowledge(meta, request, acknowledging.fail)

    async def release(self, meta: RequestMeta, request: asked.ReleaseRequest) -> Any:
        return await self._acknowledge(meta, request, acknowledging.release)

    async def _acknowledge(
        self,
        meta: RequestMeta,
        request: Any,
        command: Callable[[Any, Caller], Any],
    ) -> Any:
        shard = self._shard()
        if type(request) is CompactAcks:
            commands = self._compact_commands(meta, request, command)
        elif request.acks is None:
            [outcome] = await shard.acknowledge([command(request, self._owners.holder(meta, request, shard.state))])
            if isinstance(outcome, OmniRelayError):
                raise outcome
            return out.outcome_of(outcome)
        else:
            asked.refuse_beside("acks", request)
            commands = self._commands(meta, request.acks, command)
        outcomes = await shard.acknowledge(commands)
        if meta.answer_form == "compact":
            return compact_outcomes(outcomes)
        return out.AcksAnswer(results=out.outcomes_of(outcomes))

    def _commands(
        self, meta: RequestMeta, acks: Sequence[asked.Acknowledgement], command: Callable[[Any, Caller], Any]
    ) -> list[Any]:
        if not acks:
            refuse("acks", "must be a list with at least one element")
        _check_count("acks", acks)
        commands: list[Any] = []
        owners, state = self._owners, self._shard().state
        anyone = owners.anyone(meta)
        try:
            for ack in acks:
                caller = anyone if anyone and ack.peer_id is None else owners.holder(meta, ack, state)
                commands.append(command(ack, caller))
        except InvalidArgument as error:
            error.details["index"] = len(commands)
            raise
        return commands

    def _compact_commands(
        self, meta: RequestMeta, request: CompactAcks, command: Callable[[Any, Caller], Any]
    ) -> list[Any]:
        """The commands of acknowledgements that have a token and nothing else."""
        anyone = self._owners.anyone(meta)
        if anyone is None or command is not acknowledging.complete:
            return self._commands(meta, request.spelled_out(acknowledging.ACKS[command]), command)
        return [cmd.CompleteItem(token, anyone) for token in request.tokens()]

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
        if not request.items:
            return out.RestoreAnswer(restored_count=0, duplicate_count=0)
        _check_count("items", request.items)
        answer = await self._shard().restore(request.values(), caller=caller_of(meta))
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


def _check_count(field: str, batch: Sequence[Any]) -> None:
    if len(batch) > BATCH_ITEMS_MAX:
        refuse(
            field,
            f"must be at most {BATCH_ITEMS_MAX} in one call, got {len(batch)}",
            code=TOO_LARGE,
            limit=BATCH_ITEMS_MAX,
        )


def _no_leases(meta: RequestMeta, request: asked.LeaseRequest) -> Reply:
    """A log that is slower than the deadline allows is no error: what it still grants is released at once."""
    return _leases([], request.max_items, meta.answer_form)


def _leases(granted: list[GrantedLease], max_items: int | None, form: AnswerForm) -> Reply:
    """Without `maxItems` one lease stands for itself, and none is an empty object: callers of old know no list."""
    answer: Any
    if max_items is None:
        answer = out.lease_of(granted[0]) if granted else {}
    elif form == "compact":
        answer = CompactLeases(leases=granted)
    else:
        answer = out.LeaseAnswer(leases=[out.lease_of(each) for each in granted])
    return Reply(_encode(answer)) if form == "json" else Reply(packed(answer), encoding="msgpack")


def _items(request: asked.EnqueueRequest) -> list[NewItem]:
    if request.items is None:
        return [request.value()]
    asked.refuse_beside("items", request, "wait_ms")
    return asked.item_values(request.items)
