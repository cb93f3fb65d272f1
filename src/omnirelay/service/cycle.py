"""The verbs of the lease cycle, in steps: what is asked of the shard, and what is made of its answer.

They wait for the shard and for nothing else, so a stream can serve them without a task; see `omnirelay.rpc.procedures`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from omnirelay.core import commands as cmd
from omnirelay.core.answers import EnqueueAnswer, GrantedLease
from omnirelay.core.intake import BATCH_ITEMS_MAX, refuse
from omnirelay.core.payload import Caller, NewItem
from omnirelay.engine.shard import Shard
from omnirelay.errors import TOO_LARGE, InvalidArgument, OmniRelayError
from omnirelay.rpc.calls import AnswerForm, Reply, RequestMeta
from omnirelay.rpc.procedures import Steps
from omnirelay.service import acknowledging
from omnirelay.service.callers import caller_of
from omnirelay.service.owners import Owners
from omnirelay.wire import answers as out
from omnirelay.wire import requests as asked
from omnirelay.wire.compact import CompactLeases, compact_enqueued, compact_outcomes
from omnirelay.wire.forms import packed
from omnirelay.wire.packed import CompactAcks, CompactEnqueue

LEASE_WAIT_MS = 30_000
"""How long a lease call waits that says nothing and has no deadline."""

_encode = msgspec.json.Encoder().encode


class CycleVerbs:
    """`shard` is asked anew by each call, and may refuse it."""

    def __init__(self, shard: Callable[[], Shard]) -> None:
        self._shard = shard
        self._owners = Owners()

    def enqueue(self) -> Steps:
        return Steps(self._begin_enqueue, self._finish_enqueue)

    def lease(self) -> Steps:
        return Steps(self._begin_lease, self._finish_lease, self._give_back)

    def acknowledge(self, command: Callable[[Any, Caller], Any]) -> Steps:
        """One of the verbs that end or prolong a lease; `command` is one of `omnirelay.service.acknowledging`."""
        return Steps(partial(self._begin_acknowledge, command), self._finish_acknowledge)

    # -- coming in -----------------------------------------------------------------------------

    def _begin_enqueue(
        self, meta: RequestMeta, request: asked.EnqueueRequest | CompactEnqueue
    ) -> asyncio.Future[EnqueueAnswer]:
        items = request.values() if isinstance(request, CompactEnqueue) else _items(request)
        wait_ms = meta.wait_ms(request.wait_ms, without_deadline_ms=0)
        return self._shard().submit_enqueue(items, caller_of(meta), wait_ms)

    def _finish_enqueue(
        self,
        meta: RequestMeta,
        request: asked.EnqueueRequest | CompactEnqueue,
        enqueued: asyncio.Future[EnqueueAnswer],
    ) -> Any:
        batch = request.items is not None
        try:
            answer = enqueued.result()
        except OmniRelayError as error:
            # The shard knows a single item only as a batch of one.
            if not batch:
                error.details.pop("index", None)
            elif isinstance(error, InvalidArgument) and request.items is not None and len(request.items) == 1:
                error.details.setdefault("index", 0)
            raise
        if batch and meta.answer_form == "compact":
            return compact_enqueued(answer)
        return out.enqueue_answer(answer, batch=batch)

    # -- leasing -------------------------------------------------------------------------------

    def _begin_lease(self, meta: RequestMeta, request: asked.LeaseRequest) -> asyncio.Future[list[GrantedLease]]:
        types, tenants = request.resource_types, request.tenants
        command = cmd.GrantLeases(
            caller_of(meta, request.peer_id),
            1 if request.max_items is None else request.max_items,
            request.lease_duration_ms,
            request.request_id,
            None if types is None else tuple(types),
            None if tenants is None else tuple(tenants),
        )
        return self._shard().submit_lease(command, meta.wait_ms(request.wait_ms, without_deadline_ms=LEASE_WAIT_MS))

    def _finish_lease(
        self, meta: RequestMeta, request: asked.LeaseRequest, leased: asyncio.Future[list[GrantedLease]]
    ) -> Reply:
        granted = leased.result()
        self._owners.note(granted, meta)
        reply = _leases(granted, request.max_items, meta.answer_form)
        reply.undelivered = partial(self._give_back, granted)
        return reply

    def _give_back(self, granted: list[GrantedLease]) -> None:
        with suppress(OmniRelayError):  # Without a shard nobody can take them back; they run out as undelivered.
            self._shard().undelivered(granted)

    # -- acknowledging -------------------------------------------------------------------------

    def _begin_acknowledge(
        self, command: Callable[[Any, Caller], Any], meta: RequestMeta, request: Any
    ) -> asyncio.Future[list[Any]]:
        shard = self._shard()
        if type(request) is CompactAcks:
            commands = self._compact_commands(meta, request, command)
        elif request.acks is None:
            commands = [command(request, self._owners.holder(meta, request, shard.state))]
        else:
            asked.refuse_beside("acks", request)
            commands = self._commands(meta, request.acks, command)
        return shard.submit_acknowledgements(commands)

    def _finish_acknowledge(self, meta: RequestMeta, request: Any, acknowledged: asyncio.Future[list[Any]]) -> Any:
        outcomes = acknowledged.result()
        if request.acks is None:
            [outcome] = outcomes
            if isinstance(outcome, OmniRelayError):
                raise outcome
            return out.outcome_of(outcome)
        if meta.answer_form == "compact":
            return compact_outcomes(outcomes)
        return out.AcksAnswer(results=out.outcomes_of(outcomes))

    def _commands(
        self, meta: RequestMeta, acks: Sequence[asked.Acknowledgement], command: Callable[[Any, Caller], Any]
    ) -> list[Any]:
        if not acks:
            refuse("acks", "must be a list with at least one element")
        check_count("acks", acks)
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


def check_count(field: str, batch: Sequence[Any]) -> None:
    if len(batch) > BATCH_ITEMS_MAX:
        refuse(
            field,
            f"must be at most {BATCH_ITEMS_MAX} in one call, got {len(batch)}",
            code=TOO_LARGE,
            limit=BATCH_ITEMS_MAX,
        )


def no_leases(meta: RequestMeta, request: asked.LeaseRequest) -> Reply:
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
