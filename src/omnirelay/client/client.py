"""`Client`: every verb of a node as an async method.

    async with Client("http://127.0.0.1:7070") as client:
        item = await client.enqueue("table", "sales.orders", body=b"...")
        [lease] = await client.lease(peer_id="worker-1", wait_ms=30_000)
        await client.complete(lease)

All calls share one connection that carries many at a time; it is made when it is first needed and made again when it
breaks. A call that fails on the way is tried again within its time, and carries a request id, so that it is carried
out once. Cancelling a call stops waiting for it; what the node has taken in by then stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from copy import copy
from types import TracebackType
from typing import Any, TypeVar

from omnirelay.client.arguments import (
    Bytes,
    as_bytes,
    as_finite_or_none,
    as_given_list,
    as_header,
    as_instant,
    as_kind,
    as_list,
    as_mapping,
    as_some_names,
    as_text,
    as_text_list,
    as_timeout,
    as_wait,
    as_whole,
    as_whole_or_none,
)
from omnirelay.client.asking import Asking, AskingItems, AskingTokens
from omnirelay.client.failures import ConnectionLost, error_of
from omnirelay.client.items import BATCH_ITEMS, in_batches, new_request_id, with_ids
from omnirelay.client.items import ItemSpec as ItemSpec
from omnirelay.client.linking import ClientMisplaced, Linking, Mode
from omnirelay.client.retrying import RetryBudget, pause_ms
from omnirelay.client.watching import watch_events
from omnirelay.core.payload import DEFAULT_PRIORITY, DEFAULT_WEIGHT, OwnershipToken
from omnirelay.errors import (
    DeadlineExceeded,
    InvalidArgument,
    LogOutcomeUnknown,
    OmniRelayError,
    RequestIdsFull,
    ResourceExhausted,
    Unavailable,
)
from omnirelay.wire import answers as out
from omnirelay.wire import requests as asked
from omnirelay.wire.streams import StreamAck

DEFAULT_URL = "http://127.0.0.1:7070"
TIMEOUT_MS = 30_000
BATCHES_IN_FLIGHT = 4
PAUSES_GROW = 10
RESENT_FREELY = 3

A = TypeVar("A")


def token_of(lease: out.Lease | OwnershipToken) -> OwnershipToken:
    return lease if isinstance(lease, OwnershipToken) else as_kind("lease", lease, out.Lease).ownership_token


class Client:
    """One object is for one event loop; any number of tasks may use it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        namespace: str = "resourcelease",
        caller: str | None = None,
        mode: Mode = "auto",
        timeout_ms: int = TIMEOUT_MS,
        request_ids: bool = True,
    ) -> None:
        """`mode`: a stream, plain HTTP, or (auto) HTTP only where a stream cannot get through.

        `request_ids` gives every item one that has none, so that a retry cannot enqueue it twice; the node remembers
        them for minutes. Without, an enqueue of which nobody knows whether it was carried out raises ConnectionLost or
        LogOutcomeUnknown instead of being repeated.
        """
        self.url = url
        self.namespace = namespace
        self.timeout_ms = as_timeout("timeout_ms", timeout_ms)
        self._request_ids = request_ids
        as_header("caller", caller)
        headers = {} if caller is None else {"rpc-caller": caller}
        self._linking = Linking(url, namespace, headers, mode)
        self._budget = RetryBudget()
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where its connection lives: that of the first call."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection. Safe to call twice."""
        await self._linking.close()

    # -- coming in -----------------------------------------------------------------------------

    async def enqueue(
        self,
        resource_type: str,
        resource_id: str,
        *,
        body: Bytes = b"",
        encoding: str | None = None,
        partition_key: str | None = None,
        attributes: dict[str, str] | None = None,
        request_id: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        weight: int = DEFAULT_WEIGHT,
        delay_ms: int | None = None,
        not_before_ms: int | None = None,
        max_attempts: int | None = None,
        wait_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> out.EnqueueResult:
        """Take one item in. Under backpressure the call waits for room, up to `wait_ms` or its timeout."""
        item = ItemSpec(
            resource_type=resource_type,
            resource_id=resource_id,
            body=body,
            encoding=encoding,
            partition_key=partition_key,
            attributes=attributes,
            request_id=request_id,
            priority=priority,
            weight=weight,
            delay_ms=delay_ms,
            not_before_ms=not_before_ms,
            max_attempts=max_attempts,
        )
        try:
            [result] = await self._enqueue_batch([item], self._missing_ids([item]), wait_ms, timeout_ms)
        except OmniRelayError as error:
            error.details.pop("index", None)  # It may have gone as a batch of one.
            raise
        return result

    async def enqueue_many(
        self, items: Sequence[ItemSpec], *, wait_ms: int | None = None, timeout_ms: int | None = None
    ) -> list[out.EnqueueResult]:
        """Take many items in, in batches of which each comes in whole or not at all; the results stand in order.

        Several batches are under way at a time, so when one fails, later ones may be in. The error is that of the first
        that failed, and its `remaining` are the items that are not known to be in, in order, with the request ids they
        were sent under: to hand those to another call, as they are or mended, doubles nothing. To hand it all `items`
        again does, unless they have request ids of their own. A call that is cancelled says nothing of what is in.
        """
        results: list[out.EnqueueResult] = []
        batches = in_batches(as_given_list("items", items))
        for start in range(0, len(batches), BATCHES_IN_FLIGHT):
            part = [(batch, self._missing_ids(batch)) for batch in batches[start : start + BATCHES_IN_FLIGHT]]
            ended = await asyncio.gather(
                *(self._enqueue_batch(batch, ids, wait_ms, timeout_ms) for batch, ids in part), return_exceptions=True
            )
            failure: BaseException | None = None
            remaining: list[ItemSpec] = []
            for (batch, ids), outcome in zip(part, ended, strict=True):
                if isinstance(outcome, BaseException):
                    failure = failure or outcome
                    remaining += with_ids(batch, ids)
                elif failure is None:
                    results += outcome
            if failure is not None:
                remaining += (item for batch in batches[start + BATCHES_IN_FLIGHT :] for item in batch)
                raise _of_many(failure, len(results), remaining)
        return results

    def _missing_ids(self, items: list[ItemSpec]) -> list[str | None]:
        """A request id for each item that is to get one."""
        if not self._request_ids:
            return [None] * len(items)
        return [new_request_id() if item.request_id is None else None for item in items]

    async def _enqueue_batch(
        self, items: list[ItemSpec], ids: list[str | None], wait_ms: int | None, timeout_ms: int | None
    ) -> list[out.EnqueueResult]:
        added = any(ids)
        sent = with_ids(items, ids) if added else items
        repeatable = all(item.request_id is not None for item in sent)
        try:
            answer = await self._send_items(sent, wait_ms, timeout_ms, repeatable, ids_needed=not added)
        except (RequestIdsFull, InvalidArgument) as error:
            if not added or not _without_ids_it_fits(error):
                raise
            # The node cannot remember all of them. It refused, so nothing came in: once more, without those we added.
            answer = await self._send_items(items, wait_ms, timeout_ms, False)
        if answer.results is not None:
            return answer.results
        assert answer.sequence_id is not None
        assert answer.duplicate is not None
        return [out.EnqueueResult(sequence_id=answer.sequence_id, duplicate=answer.duplicate)]

    async def _send_items(
        self,
        items: list[ItemSpec],
        wait_ms: int | None,
        timeout_ms: int | None,
        repeatable: bool,
        *,
        ids_needed: bool = True,
    ) -> out.EnqueueAnswer:
        """Without `ids_needed` a node that cannot remember one more id is not asked again."""
        request = AskingItems(items, as_whole_or_none("wait_ms", wait_ms))
        attempt = self._attempt("enqueue", request, out.EnqueueAnswer)
        final = () if ids_needed else (RequestIdsFull,)
        return await self._with_retries(
            attempt, self.timeout_ms if timeout_ms is None else timeout_ms, repeatable=repeatable, final=final
        )

    # -- leasing -------------------------------------------------------------------------------

    async def lease(
        self,
        *,
        peer_id: str | None = None,
        max_items: int = 1,
        wait_ms: int = 0,
        lease_duration_ms: int | None = None,
        resource_types: Sequence[str] | None = None,
        tenants: Sequence[str] | None = None,
        request_id: str | None = None,
    ) -> list[out.Lease]:
        """Up to `max_items` leases, the last of them the one that takes their bodies beyond 6 MiB; an empty list when
        none came within `wait_ms`.
        """
        request = asked.LeaseRequest(
            peer_id=as_text("peer_id", peer_id),
            max_items=as_whole("max_items", max_items),
            wait_ms=as_wait("wait_ms", wait_ms),
            lease_duration_ms=as_whole_or_none("lease_duration_ms", lease_duration_ms),
            resource_types=as_text_list("resourceTypes", resource_types),
            tenants=as_text_list("tenants", tenants),
            request_id=as_text("request_id", request_id) or new_request_id(),
        )
        answer = await self.call("lease", request, out.LeaseAnswer, timeout_ms=wait_ms + self.timeout_ms)
        return answer.leases

    async def heartbeat(
        self,
        lease: out.Lease | OwnershipToken,
        *,
        fraction: float | None = None,
        message: str | None = None,
        data: Any = None,
        peer_id: str | None = None,
    ) -> out.Outcome:
        """Keep the lease; the answer says until when, and whether the owner is asked to stop."""
        said = fraction is not None or message is not None or data is not None
        done = as_finite_or_none("fraction", fraction)
        progress = asked.IncomingProgress(fraction=done, message=message, data=data) if said else None
        return await self.acknowledge(_ack("heartbeat", lease, peer_id, progress=progress))

    async def complete(
        self,
        lease: out.Lease | OwnershipToken,
        *,
        result: Bytes | None = None,
        result_encoding: str | None = None,
        follow_ups: Sequence[ItemSpec] | None = None,
        peer_id: str | None = None,
    ) -> out.Outcome:
        """End the item well. Follow-ups come in with it, or not at all."""
        given = as_list("follow_ups", follow_ups)
        wires = None if given is None else [as_kind("follow_ups", each, ItemSpec).wire() for each in given]
        data = None if result is None else as_bytes("result", result)
        return await self.acknowledge(
            _ack("complete", lease, peer_id, result=data, result_encoding=result_encoding, follow_ups=wires)
        )

    async def complete_many(self, leases: Sequence[out.Lease | OwnershipToken]) -> list[out.Outcome]:
        """End many items well, each with an outcome of its own, in order: one that is refused says why, and harms none
        of the others.
        """
        tokens = [token_of(lease) for lease in as_given_list("leases", leases)]
        outcomes: list[out.Outcome] = []
        for start in range(0, len(tokens), BATCH_ITEMS):
            request = AskingTokens(tokens[start : start + BATCH_ITEMS])
            outcomes += (await self.call("complete", request, out.AcksAnswer)).results
        return outcomes

    async def fail(
        self,
        lease: out.Lease | OwnershipToken,
        *,
        reason: str | None = None,
        error_code: str | None = None,
        mode: str = "retry",
        delay_ms: int | None = None,
        metadata: Mapping[str, str] | None = None,
        peer_id: str | None = None,
    ) -> out.Outcome:
        """Give the item up: `retry`, `release` (the attempt is not burned) or `dead`."""
        return await self.acknowledge(
            _ack(
                "fail",
                lease,
                peer_id,
                reason=as_text("reason", reason),
                error_code=as_text("error_code", error_code),
                mode=mode,
                delay_ms=as_whole_or_none("delay_ms", delay_ms),
                metadata=None if metadata is None else as_mapping("metadata", metadata),
            )
        )

    async def release(
        self, lease: out.Lease | OwnershipToken, *, delay_ms: int | None = None, peer_id: str | None = None
    ) -> out.Outcome:
        """Hand the item back; the attempt is not burned."""
        delay = as_whole_or_none("delay_ms", delay_ms)
        return await self.acknowledge(_ack("release", lease, peer_id, delay_ms=delay))

    async def acknowledge(self, ack: StreamAck, *, timeout_ms: int | None = None) -> out.Outcome:
        """Any acknowledgement. Repeats get the first answer, so it is tried again until its time is over."""

        async def attempt(left_ms: float) -> out.Outcome:
            connection = self._linking.live or await self._linking.connected(left_ms)
            return await connection.acknowledge(ack, left_ms)

        return self.checked(
            await self._with_retries(attempt, self.timeout_ms if timeout_ms is None else timeout_ms, repeatable=True)
        )

    @staticmethod
    def checked(outcome: out.Outcome) -> out.Outcome:
        """The outcome when it is a success; raises the refusal otherwise."""
        if not outcome.success:
            raise _refusal_of(outcome)
        return outcome

    # -- handling ------------------------------------------------------------------------------

    async def get(self, sequence_id: int | None = None, *, request_id: str | None = None, wait_ms: int = 0) -> out.Item:
        """One item; with `wait_ms` the answer waits for its end."""
        request = asked.GetRequest(
            sequence_id=sequence_id,
            request_id=as_text("request_id", request_id),
            wait_ms=as_wait("wait_ms", wait_ms),
        )
        return (await self.call("get", request, out.ItemAnswer, timeout_ms=wait_ms + self.timeout_ms)).item

    async def cancel(self, sequence_id: int, *, reason: str | None = None, force: bool = False) -> out.CancelAnswer:
        request = asked.CancelRequest(sequence_id=sequence_id, reason=as_text("reason", reason), force=force)
        return await self.call("cancel", request, out.CancelAnswer)

    async def drain(self, *, max_items: int = 10_000, pause_intake: bool = False) -> out.DrainAnswer:
        """Take a page of pending items out. Never repeated by itself: an answer that got lost took them with it."""
        request = asked.DrainRequest(max_items=as_whole("max_items", max_items), pause_intake=pause_intake)
        return await self.call("drain", request, out.DrainAnswer, repeatable=False)

    async def restore(self, items: Sequence[out.PendingItem]) -> out.RestoreAnswer:
        request = {"items": as_given_list("items", items)}
        return await self.call("restore", request, out.RestoreAnswer)

    async def pause(
        self,
        *,
        resource_type: str | None = None,
        tenant: str | None = None,
        intake: bool = False,
        reason: str | None = None,
        until_ms: int | None = None,
    ) -> list[out.OutgoingPause]:
        request = asked.PauseRequest(
            resource_type=as_text("resource_type", resource_type),
            tenant=as_text("tenant", tenant),
            intake=intake,
            reason=as_text("reason", reason),
            until=as_instant("until_ms", until_ms),
        )
        return (await self.call("pause", request, out.PausesAnswer)).pauses

    async def resume(self, *, resource_type: str | None = None, tenant: str | None = None) -> list[out.OutgoingPause]:
        request = asked.ResumeRequest(
            resource_type=as_text("resource_type", resource_type), tenant=as_text("tenant", tenant)
        )
        return (await self.call("resume", request, out.PausesAnswer)).pauses

    # -- dead letters --------------------------------------------------------------------------

    async def dead_letters(
        self,
        *,
        resource_type: str | None = None,
        error_code: str | None = None,
        after: int = 0,
        max_items: int = 100,
    ) -> out.DeadLettersAnswer:
        request = asked.DeadLettersRequest(
            resource_type=as_text("resource_type", resource_type),
            error_code=as_text("error_code", error_code),
            after=as_whole("after", after),
            max_items=as_whole("max_items", max_items),
        )
        return await self.call("deadletters", request, out.DeadLettersAnswer)

    async def edit(
        self,
        sequence_id: int,
        resource_type: str,
        resource_id: str,
        *,
        body: Bytes = b"",
        encoding: str | None = None,
        partition_key: str | None = None,
        attributes: dict[str, str] | None = None,
        request_id: str | None = None,
    ) -> out.Item:
        """Give a dead letter another payload; `redrive` makes it pending again."""
        spec = ItemSpec(
            resource_type=resource_type,
            resource_id=resource_id,
            partition_key=partition_key,
            encoding=encoding,
            body=body,
            attributes=attributes,
            request_id=request_id,
        )
        request = asked.EditRequest(sequence_id=sequence_id, payload=spec.wire().payload)
        return (await self.call("edit", request, out.ItemAnswer)).item

    async def redrive(self, sequence_ids: Sequence[int] | None = None, *, rate_per_second: float | None = None) -> int:
        """Make dead letters pending again; without ids all of them."""
        ids = as_list("sequenceIds", sequence_ids)
        rate = as_finite_or_none("rate_per_second", rate_per_second)
        request = asked.RedriveRequest(sequence_ids=ids, all=ids is None, rate_per_second=rate)
        return (await self.call("redrive", request, out.RedriveAnswer)).redriven_count

    async def purge(self, sequence_ids: Sequence[int]) -> int:
        """Forget dead letters for good."""
        request = asked.PurgeRequest(sequence_ids=as_list("sequenceIds", sequence_ids))
        return (await self.call("purge", request, out.PurgeAnswer)).purged_count

    # -- looking -------------------------------------------------------------------------------

    async def stats(self) -> out.ShardStats:
        return (await self.call("stats", asked.StatsRequest(), out.StatsAnswer)).stats

    async def peek(
        self,
        *,
        state: str = "ready",
        resource_type: str | None = None,
        tenant: str | None = None,
        after: int = 0,
        max_items: int = 100,
    ) -> out.PageAnswer:
        request = asked.PeekRequest(
            state=state,
            resource_type=as_text("resource_type", resource_type),
            tenant=as_text("tenant", tenant),
            after=as_whole("after", after),
            max_items=as_whole("max_items", max_items),
        )
        return await self.call("peek", request, out.PageAnswer)

    async def why(self, sequence_id: int) -> out.WhyAnswer:
        return await self.call("why", asked.WhyRequest(sequence_id=sequence_id), out.WhyAnswer)

    def watch(
        self, from_sequence: int | None = None, *, types: Sequence[str] | None = None, until_caught_up: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Every durable event from there on, in order. The first connection has the time of a call; later it goes on by
        itself however often that breaks. Raises LogRegressed when the node has come back with a log that ends before
        the last event seen.
        """
        self._linking.check_open()
        return watch_events(
            self.url,
            self.namespace,
            from_sequence,
            as_some_names("types", types),
            until_caught_up,
            reach=lambda attempt: self._with_retries(attempt, self.timeout_ms, repeatable=True),
            check_open=self._linking.check_open,
        )

    # -- how it is done ------------------------------------------------------------------------

    async def call(
        self,
        verb: str,
        request: Any,
        answer: type[A],
        *,
        timeout_ms: int | None = None,
        repeatable: bool = True,
    ) -> A:
        """Any verb: send the request, read the answer. `repeatable`: carrying it out twice is as good as once."""
        attempt = self._attempt(verb, request, answer)
        return await self._with_retries(
            attempt, self.timeout_ms if timeout_ms is None else timeout_ms, repeatable=repeatable
        )

    def _attempt(self, verb: str, request: Any, answer: type[A]) -> Callable[[float], Awaitable[A]]:
        asking = request if isinstance(request, Asking) else Asking(request)
        asking.body(packed=self._linking.packs)  # Says at once when it cannot be sent.

        async def attempt(left_ms: float) -> A:
            connection = self._linking.live or await self._linking.connected(left_ms)
            return await connection.call(verb, asking, left_ms, answer)

        return attempt

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            raise ClientMisplaced("this client was used in another event loop; make one for each, or use SyncClient")
        self._loop = loop

    async def _with_retries(
        self,
        attempt: Callable[[float], Awaitable[A]],
        timeout_ms: float,
        *,
        repeatable: bool,
        final: tuple[type[OmniRelayError], ...] = (),
    ) -> A:
        """`final` are refusals that the caller wants to hear of at once."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._belong_to(loop)
        end = loop.time() + as_timeout("timeout_ms", timeout_ms) / 1000
        tried = 0
        before = ""
        while True:
            left_ms = (end - loop.time()) * 1000
            try:
                outcome = await attempt(max(1.0, left_ms))
            except TimeoutError:
                raise DeadlineExceeded(f"no answer came within {timeout_ms:.0f} ms{before}") from None
            except (Unavailable, ResourceExhausted) as error:
                if isinstance(error, final):
                    raise
                if isinstance(error, ConnectionLost | LogOutcomeUnknown) and not repeatable:
                    raise  # It may have been carried out.
                pause = pause_ms(min(tried, PAUSES_GROW), error.retry_after_ms)
                # A connection is made for all callers at once, so waiting for one is free, also for one that a node
                # refuses while it starts; and when it breaks, every call that was under way has to be sent again. The
                # budget is for a node that cannot keep up.
                resent = isinstance(error, ConnectionLost) and tried < RESENT_FREELY
                affordable = resent or self._linking.asked_once_for_all(error) or self._budget.spend()
                if (loop.time() + pause / 1000) > end or not affordable:
                    raise
                tried += 1
                # The last try may be left too little time to hear the same again; then this is what the caller can use.
                before = f"; the try before: {error.message}"
                await asyncio.sleep(pause / 1000)
            else:
                self._budget.earn()
                return outcome


def _ack(verb: str, lease: out.Lease | OwnershipToken, peer_id: str | None, **fields: Any) -> StreamAck:
    token = token_of(lease)
    named = asked.IncomingToken(
        sequence_id=token.sequence_id, attempt=token.attempt, lease_id=token.lease_id, fence=token.fence
    )
    return StreamAck(verb=verb, ownership_token=named, peer_id=peer_id, **fields)


_STATUSES = {
    "error.resourcelease.not_owner": "PERMISSION_DENIED",
    "error.resourcelease.backpressure": "RESOURCE_EXHAUSTED",
    RequestIdsFull.default_code: "RESOURCE_EXHAUSTED",
    "error.resourcelease.paused": "UNAVAILABLE",
    "error.resourcelease.draining": "UNAVAILABLE",
    "error.resourcelease.no_leader": "UNAVAILABLE",
    "error.resourcelease.log_unavailable": "UNAVAILABLE",
    LogOutcomeUnknown.default_code: "UNAVAILABLE",
    "resourcelease.request_id.conflict": "ALREADY_EXISTS",
    "resource-exhausted": "RESOURCE_EXHAUSTED",
    "invalid-argument": "INVALID_ARGUMENT",
    "internal": "INTERNAL",
}


def _refusal_of(outcome: out.Outcome) -> OmniRelayError:
    """An outcome has no status beside its code; most are of a token that no longer holds the item."""
    code = outcome.error_code or "internal"
    of_request = "INVALID_ARGUMENT" if code.startswith("resourcelease.") else "FAILED_PRECONDITION"
    status = _STATUSES.get(code, of_request)
    return error_of(out.ErrorBody(message=outcome.error_message or "refused", status=status, code=code))


def _without_ids_it_fits(error: OmniRelayError) -> bool:
    """Whether it is the number of request ids that a node refused, now or whenever."""
    return isinstance(error, RequestIdsFull) or (error.details.get("field") == "requestId" and "limit" in error.details)


def _of_many(error: BaseException, before: int, remaining: list[ItemSpec]) -> BaseException:
    """The error of a batch as that of the whole call. A copy: calls that broke off together may share the error."""
    if not isinstance(error, OmniRelayError):
        return error
    error = copy(error).with_traceback(error.__traceback__)
    error.remaining = remaining
    if str(error.details.get("index", "")).isdigit():
        error.details = {**error.details, "index": int(str(error.details["index"])) + before}
    return error
