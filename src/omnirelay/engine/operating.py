"""The verbs of a shard that operators use: handling single items, dead letters, pauses, and looking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from omnirelay.core import commands as cmd
from omnirelay.core import views
from omnirelay.core.answers import (
    CancelAnswer,
    CountAnswer,
    DrainAnswer,
    ItemView,
    Page,
    PauseAnswer,
    RedriveAnswer,
    RestoreAnswer,
    Stats,
    WhyAnswer,
)
from omnirelay.core.events import RestoredItem
from omnirelay.core.intake import check_caller, check_number, check_text, refuse
from omnirelay.core.items import COMPLETED
from omnirelay.core.options import QueueOptions
from omnirelay.core.pauses import Pause
from omnirelay.core.payload import ANONYMOUS, Caller, Payload
from omnirelay.core.rules.handling import count_selected
from omnirelay.core.state import State
from omnirelay.core.why import why
from omnirelay.engine.clock import Clock
from omnirelay.engine.writer import Writer
from omnirelay.errors import ResourceExhausted

WAIT_MAX_MS = 24 * 3_600_000
"""Longest that a call may wait."""

A = TypeVar("A")


class Operating:
    """The operators' half of `Shard`."""

    _writer: Writer
    _clock: Clock

    # -- items ---------------------------------------------------------------------------------

    async def get(
        self,
        sequence_id: int | None = None,
        *,
        request_id: str | None = None,
        wait_ms: int = 0,
        caller: Caller = ANONYMOUS,
    ) -> ItemView:
        """The item by its id or the request id it came with; with `wait_ms` the answer waits for its end."""
        check_number("waitMs", wait_ms, 0, WAIT_MAX_MS)
        check_text("requestId", request_id)
        check_caller(caller)
        view = await self._read(lambda state, now_ms: views.view(views.locate(state, sequence_id, request_id, caller)))
        if wait_ms <= 0 or view.state in ("completed", "dead", "cancelled"):
            return view
        return await self._get_when_ended(view.sequence_id, wait_ms)

    async def _get_when_ended(self, sequence_id: int, wait_ms: int) -> ItemView:
        ended: asyncio.Future[ItemView] = asyncio.get_running_loop().create_future()

        def register(state: State, now_ms: int) -> None:
            item = state.items.get(sequence_id)
            if item is None or item.state >= COMPLETED or self._writer.closing:
                ended.set_result(views.view(views.locate(state, sequence_id, None, ANONYMOUS)))
            else:
                self._writer.items.add(sequence_id, ended)

        try:
            await self._read(register)
            await self._done_within(ended, wait_ms)
            if ended.done():
                return ended.result()
        finally:
            # Also when the caller leaves while its registration waits for the disk: it stands by then.
            if not ended.cancel() and not ended.cancelled():
                ended.exception()  # Raised to the caller by now, by the one or the other.
        return await self._read(lambda state, now_ms: views.view(views.locate(state, sequence_id, None, ANONYMOUS)))

    async def _done_within(self, future: asyncio.Future[Any], wait_ms: int) -> None:
        """Return when the future is done or the time is over, whichever comes first."""
        over = asyncio.Event()
        timer = self._clock.call_later(wait_ms, over.set)
        timeout = asyncio.ensure_future(over.wait())
        try:
            await asyncio.wait((future, timeout), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            timeout.cancel()

    async def cancel(
        self,
        sequence_id: int,
        *,
        reason: str | None = None,
        force: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> CancelAnswer:
        """Cancel a pending item at once; ask the owner of a leased one to stop, or with `force` take it away."""
        answer: CancelAnswer = await self._writer.command(cmd.CancelItem(sequence_id, caller, reason, force))
        return answer

    async def drain(
        self, *, max_items: int = 10_000, pause_intake: bool = False, caller: Caller = ANONYMOUS
    ) -> DrainAnswer:
        """Take a page of pending items out of the shard. Call again until `remaining_count` is 0.

        With `pause_intake` the shard is paused first, so that nothing new comes in behind what was drained.
        """
        answer: DrainAnswer = await self._writer.command(cmd.DrainItems(max_items, caller, pause_intake))
        return answer

    async def restore(self, items: Sequence[RestoredItem], *, caller: Caller = ANONYMOUS) -> RestoreAnswer:
        """Take drained items in, here or elsewhere; what is there already is counted and left alone.

        An item whose id stands for another one here comes in under a new id, which the answer names.
        """
        batch = listed("items", items)
        answer: RestoreAnswer = await self._writer.command(cmd.RestoreItems(batch, caller), len(batch))
        return answer

    # -- dead letters --------------------------------------------------------------------------

    async def dead_letters(
        self,
        *,
        sequence_id: int | None = None,
        resource_type: str | None = None,
        error_code: str | None = None,
        after: int = 0,
        max_items: int = 100,
    ) -> Page:
        return await self._read(
            lambda state, now_ms: views.dead_letters(
                state,
                sequence_id=sequence_id,
                resource_type=resource_type,
                error_code=error_code,
                after=after,
                items_max=max_items,
            )
        )

    async def edit(self, sequence_id: int, payload: Payload, *, caller: Caller = ANONYMOUS) -> ItemView:
        """Give a dead letter another payload, to be redriven with it."""
        await self._writer.command(cmd.EditDeadLetter(sequence_id, payload, caller))
        return await self.get(sequence_id)

    async def redrive(
        self,
        *,
        sequence_ids: Sequence[int] | None = None,
        resource_type: str | None = None,
        error_code: str | None = None,
        everything: bool = False,
        rate_per_second: float | None = None,
        caller: Caller = ANONYMOUS,
    ) -> int:
        """Make dead letters pending again with fresh attempts; returns how many. Many go in several frames.

        Named ones are redriven all or not at all. Of others as many as there is room for, the oldest first; when there
        is room for none, that is `ResourceExhausted`. `redrive_fitting` also says how many are left.
        """
        selection = _selection(sequence_ids, resource_type, error_code, everything)
        return (await self.redrive_fitting(selection, rate_per_second=rate_per_second, caller=caller)).count

    async def redrive_fitting(
        self,
        selection: cmd.DeadLetterSelection,
        *,
        rate_per_second: float | None = None,
        caller: Caller = ANONYMOUS,
    ) -> RedriveAnswer:
        """What `redrive` does, with an answer that also counts those there was no room for."""
        if not isinstance(selection, cmd.DeadLetterSelection):
            refuse("selection", f"must be a DeadLetterSelection, not {type(selection).__name__}")
        count = 0
        meant = msgspec.structs.replace(selection)
        while True:
            try:
                answer: CountAnswer = await self._writer.command(
                    cmd.RedriveItems(meant, caller, rate_per_second, count)
                )
            except ResourceExhausted:
                if not count:
                    raise
                return RedriveAnswer(count, await self._count_selected(meant))
            count += answer.count
            if answer.next is None:
                return RedriveAnswer(count)
            meant.after = answer.next

    async def _count_selected(self, selection: cmd.DeadLetterSelection) -> int:
        meant = msgspec.structs.replace(selection)
        count = 0
        while True:
            answer = await self._read(lambda state, now_ms: count_selected(state, meant))
            count += answer.count
            if answer.next is None:
                return count
            meant.after = answer.next

    async def purge(
        self,
        *,
        sequence_ids: Sequence[int] | None = None,
        resource_type: str | None = None,
        error_code: str | None = None,
        everything: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> int:
        """Forget dead letters for good; returns how many."""
        count = 0
        selection = _selection(sequence_ids, resource_type, error_code, everything)
        while True:
            answer: CountAnswer = await self._writer.command(cmd.PurgeItems(selection, caller))
            count += answer.count
            if answer.next is None:
                return count
            selection.after = answer.next

    # -- pauses --------------------------------------------------------------------------------

    async def pause(
        self,
        *,
        resource_type: str | None = None,
        tenant: str | None = None,
        intake: bool = False,
        reason: str | None = None,
        until_ms: int | None = None,
        caller: Caller = ANONYMOUS,
    ) -> list[Pause]:
        """Grant nothing from a resource type, a tenant, or with neither the whole shard; returns all pauses.

        With `intake` enqueues are refused too. Leases that live go on. `until_ms` ends it by itself.
        """
        answer: PauseAnswer = await self._writer.command(
            cmd.PauseScope(resource_type, tenant, intake, reason, until_ms, caller)
        )
        return answer.pauses

    async def resume(
        self, *, resource_type: str | None = None, tenant: str | None = None, caller: Caller = ANONYMOUS
    ) -> list[Pause]:
        """End the pause of that scope, if there is one; returns the pauses that are left."""
        answer: PauseAnswer = await self._writer.command(cmd.ResumeScope(resource_type, tenant, caller))
        return answer.pauses

    # -- intake --------------------------------------------------------------------------------

    async def close_intake(self, cause: str, reason: str) -> bool:
        """Take no new items until `open_intake` with the same cause; true when that is news.

        Callers are refused as under any backpressure, or wait for room. What lives goes on: leases, acknowledgements,
        retries, follow-ups. Causes do not touch each other, nor what the watermarks say. A cause holds as long as this
        shard object leads: whoever takes the shard over starts without it and has to be told again.
        """
        changed: bool = await self._writer.command(cmd.CloseIntake(cause, reason))
        return changed

    async def open_intake(self, cause: str, reason: str | None = None) -> bool:
        """Withdraw what `close_intake` said; true when that is news. Intake opens when no cause is left."""
        changed: bool = await self._writer.command(cmd.OpenIntake(cause, reason))
        return changed

    # -- looking -------------------------------------------------------------------------------

    async def stats(self) -> Stats:
        return await self._read(views.stats)

    async def peek(
        self,
        *,
        state: str = "ready",
        resource_type: str | None = None,
        tenant: str | None = None,
        after: int = 0,
        max_items: int = 100,
    ) -> Page:
        """A page of items in one state, for people and dashboards."""
        return await self._read(
            lambda live, now_ms: views.peek(
                live,
                state_name=state,
                resource_type=resource_type,
                tenant=tenant,
                after=after,
                items_max=max_items,
            )
        )

    async def why(self, sequence_id: int) -> WhyAnswer:
        """The gates between an item and its grant; none: it is next."""
        return await self._read(lambda state, now_ms: why(state, sequence_id, now_ms))

    async def change_options(self, options: QueueOptions, *, caller: Caller = ANONYMOUS) -> None:
        await self._writer.command(cmd.ChangeOptions(options, caller))

    async def _read(self, read: Callable[[State, int], A]) -> A:
        """Read the state: at once when all of it is durable, else when it is."""
        self._writer.check_open()
        if self._writer.idle:
            return read(self._writer.state, self._writer.now_ms())
        answer: A = await self._writer.read(read)
        return answer


def listed(field: str, given: Any) -> list[Any]:
    """Several values of a caller in this process, as a list; what is no collection at all is the caller's mistake."""
    try:
        return list(given)
    except TypeError:
        refuse(field, f"must be a list, not {type(given).__name__}")


def _selection(
    sequence_ids: Sequence[int] | None, resource_type: str | None, error_code: str | None, everything: bool
) -> cmd.DeadLetterSelection:
    return cmd.DeadLetterSelection(
        sequence_ids=None if sequence_ids is None else listed("sequenceIds", sequence_ids),
        resource_type=resource_type,
        error_code=error_code,
        everything=everything,
    )
