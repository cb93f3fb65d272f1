"""Keeping leases: the half of a worker that talks to the node, in a thread and an event loop of its own.

A handler that blocks its event loop, or computes for minutes, holds up nothing here: leases are renewed, cancellations
are heard, and what is over is acknowledged. The handlers' half hears of leases through `Receiver`, and calls `begin`,
`report` and `finish` from its own thread.

When a lease is certain to live is counted from before the node was asked, never from when the answer came:

    until = time the request was sent + remainingMs of its answer

A lease that could not be renewed by then, less a margin, is treated as lost although the node may still know it. It
is counted by a clock that goes on while this machine is suspended, because the node's does.

When the connection drops, the node takes back what it has not heard the beginning of. So does the worker: what was not
begun, and what was begun so late that the node may not have heard, is dropped here and released there, in case the node
still has it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from omnirelay.client.addresses import without_password
from omnirelay.client.asking import encoded, json_of
from omnirelay.client.client import Client
from omnirelay.client.elapsed_time import elapsed_seconds
from omnirelay.client.failures import NotConnected
from omnirelay.client.linking import STREAM_AGAIN_SECONDS, open_stream
from omnirelay.client.retrying import pause_ms
from omnirelay.client.stream_connection import StreamConnection
from omnirelay.core.commands import Progress
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    OmniRelayError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from omnirelay.wire.answers import Lease, Outcome
from omnirelay.wire.requests import IncomingProgress
from omnirelay.wire.streams import CREDIT_MAX, StreamAck
from omnirelay.worker.kept import DROPPED, Kept, Receiver, Told, acknowledgement
from omnirelay.worker.standing import Standing

_log = logging.getLogger("omnirelay.worker")

TICK_SECONDS_MAX = 0.25
CLOCK_EVERY_SECONDS = 1.0
"""How often an idle stream tells the node its clock. It is the most that a fresh lease seems shorter than it is."""
ACK_RETRY_SECONDS = 600.0
"""How long an acknowledgement is tried again when the node is away; that long it remembers the first answer."""
POLL_WAIT_MS = 20_000
GIVING_BACK_SECONDS = 5.0
SAID_AGAIN_SECONDS = 30.0
IDS_SAID_MAX = 100
"""So many items are named in one line of the log."""
INVALID = "error.worker.acknowledgement_invalid"
"""The error code of an attempt whose outcome the node does not take."""


class Keeper:
    """Everything here runs in the keeper's event loop, but `threadsafe` methods, which may be called from anywhere."""

    def __init__(
        self,
        url: str,
        namespace: str,
        peer_id: str,
        patterns: Sequence[str],
        receiver: Receiver,
        *,
        capacity: int,
        lease_duration_ms: int | None,
        guard_ms: int,
        silent_ms_max: int,
        tenants: Sequence[str] | None = None,
    ) -> None:
        self._url = url
        self._shown_url = without_password(url)
        self._namespace = namespace
        self._peer_id = peer_id
        self._patterns = list(patterns)
        self._tenants = None if tenants is None else list(tenants)
        self._receiver = receiver
        self._capacity = capacity
        self._lease_duration_ms = lease_duration_ms
        self._guard = guard_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._kept: dict[str, Kept] = {}
        self._stream: StreamConnection | None = None
        self._gone = asyncio.Event()
        self._credit = 0
        """Leases that the node may still push."""
        self._taking = True
        self._changed = asyncio.Event()
        """A lease has ended, so there may be room for another."""
        self._client = Client(url, namespace=namespace, caller=peer_id, mode="auto")
        self._finishing: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[Any] | None = None
        self._connected_at = 0.0
        self._lasted = False
        """The last stream has outlived the moment at which a node refuses: that it ended is no failure to connect."""
        self._untold: dict[asyncio.Task[Any], tuple[OwnershipToken, str]] = {}
        """Ends of leases that the node has not answered yet: of which, and what it was told."""
        self.standing = Standing(time.monotonic(), silent_ms_max / 1000)
        self._said: str | None = None
        self._said_at = 0.0
        """Why the connection ended, as it was last written to the log, and when."""
        self._repeating = False
        """It ends for that reason over and over; connecting again is no news then."""

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, take leases, keep them, until `close`."""
        self._running = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_connected())
                group.create_task(self._keep_leases())
        finally:
            if self._stream is not None:
                await self._stream.aclose()
            await self._client.close()

    async def close(self) -> None:
        """End `run` and its connections. What the node has not answered by now is given up, and said so."""
        dropped = self._untold.copy()
        for task in dropped:
            task.cancel()
        if dropped:
            await asyncio.wait(dropped)
            self._say_dropped(list(dropped.values()))
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    def _say_dropped(self, dropped: list[tuple[OwnershipToken, str]]) -> None:
        ids = sorted(token.sequence_id for token, _ in dropped)
        _log.warning(
            "outcomes_dropped",
            extra={
                "url": self._shown_url,
                "outcomes": len(ids),
                "completions": sum(verb == "complete" for _, verb in dropped),
                "sequence_ids": ids[:IDS_SAID_MAX],
                "reason": self.standing.last_error or "the node did not answer",
            },
        )

    def stop_taking(self) -> None:
        """Take nothing new, and give back what was not begun (threadsafe, also in the handler of a signal)."""
        self._soon(self._stop_taking)

    def _stop_taking(self) -> None:
        self._taking = False
        self._credit = 0
        if self._stream is not None:
            # Before anything is given back, or it would be pushed right back here, until the credit is used up. A node
            # that does not know of it does just that.
            self._stream.say(withdraw=True)
        unbegun = [kept for kept in self._kept.values() if not kept.begun]
        for kept in unbegun:
            kept.withdrawn = True  # Its handler may begin at this very moment, and is stopped then.
            self._forget(kept)
            self._receiver.stop_job(kept.lease_id, "withdrawn")
            self._start(self._give_back(kept.lease))

    async def _give_back(self, lease: Lease) -> None:
        """Release what nobody works on here. What the node has taken back by itself it refuses, and that is well."""
        with suppress(OmniRelayError):
            await self._send(self._ack("release", lease.ownership_token), 30_000)

    async def settled(self, seconds: float) -> None:
        """Wait until the node has heard how every lease ended, but no longer than this. Items that are given back are
        not waited for as long: a node that does not answer takes them back by itself.
        """
        end = self._loop.time() + seconds
        rest_end = self._loop.time() + min(seconds, GIVING_BACK_SECONDS)
        while self._untold and (left := end - self._loop.time()) > 0:
            await asyncio.wait(self._untold, timeout=left)
        while self._finishing and (left := rest_end - self._loop.time()) > 0:
            await asyncio.wait(self._finishing, timeout=left)

    # -- the connection ------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            self._lasted = False
            asked_ms: int | None = None
            try:
                if not await self._stream_leases():
                    await self._poll_leases()
                failures = 0
            except OmniRelayError as error:
                self._disconnected(error.message)
                failures = 1 if self._lasted else failures + 1
                asked_ms = error.retry_after_ms
            except Exception as error:
                # Nobody would notice that no more leases come: whatever it is, it is worth another try.
                _log.exception("worker_connection_failed", extra={"url": self._shown_url})
                self.standing.last_error = repr(error)
                failures += 1
            await asyncio.sleep(pause_ms(min(failures, 6), asked_ms) / 1000)

    def _disconnected(self, reason: str) -> None:
        """Say so, but not each time: a node that refuses what this worker asks for does so again and again."""
        now = time.monotonic()
        self.standing.last_error = reason
        self._repeating = reason == self._said and now < self._said_at + SAID_AGAIN_SECONDS
        if not self._repeating:
            self._said, self._said_at = reason, now
            _log.warning("worker_disconnected", extra={"reason": reason, "url": self._shown_url})

    async def _stream_leases(self) -> bool:
        """Have leases pushed until the connection ends; false when no stream gets through to the node."""
        self._gone = asyncio.Event()
        stream = await open_stream(
            self._url, self._namespace, {"rpc-caller": self._peer_id}, pushed=self, on_gone=self._gone.set
        )
        if stream is None:
            return False
        try:
            await self._stream_until_gone(stream)
        finally:
            self._stream = None
            await stream.aclose()
        raise NotConnected(stream.end_reason or "the connection to the node ended", retry_after_ms=100)

    async def _stream_until_gone(self, stream: StreamConnection) -> None:
        self._stream = stream
        self._connected_at = time.monotonic()
        if not self._repeating:
            _log.info("worker_connected", extra={"url": self._shown_url, "peer": self._peer_id})
        self._credit = self._room() if self._taking else 0
        stream.say(
            open={
                "peerId": self._peer_id,
                "credit": self._credit,
                "filters": {"resourceTypes": self._patterns, "tenants": self._tenants},
                "leaseDurationMs": self._lease_duration_ms,
            }
        )
        begun = [kept.lease.ownership_token for kept in self._kept.values() if kept.begun]
        if begun:
            stream.say(begin=begun)
        await self._gone.wait()
        self._stream = None
        self._lasted = time.monotonic() - self._connected_at > CLOCK_EVERY_SECONDS
        for kept in [kept for kept in self._kept.values() if not self._known_begun(kept)]:
            # The node takes back what it has not heard the beginning of, unless it died itself: then it still has it.
            kept.withdrawn = True
            self._forget(kept)
            self._receiver.stop_job(kept.lease_id, "withdrawn")
            if not kept.begun:
                self._start(self._give_back(kept.lease))

    def _known_begun(self, kept: Kept) -> bool:
        return kept.begun and kept.mark is None

    async def _poll_leases(self) -> None:
        """Ask for leases one call at a time, where no stream gets through. Ends when it is time to try one again."""
        end = self._loop.time() + STREAM_AGAIN_SECONDS
        while (left := end - self._loop.time()) > 0:
            room = self._room() if self._taking else 0
            if room == 0:
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)
                continue
            asked_at = elapsed_seconds()
            leases = await self._client.lease(
                peer_id=self._peer_id,
                max_items=min(room, 1_000),
                wait_ms=min(POLL_WAIT_MS, int(left * 1000)),
                lease_duration_ms=self._lease_duration_ms,
                resource_types=self._patterns,
                tenants=self._tenants,
            )
            self.leases(leases, asked_at)

    def _room(self) -> int:
        return min(max(0, self._capacity - len(self._kept)), CREDIT_MAX)

    # -- what the node pushes ------------------------------------------------------------------

    def leases(self, leases: list[Lease], not_before: float) -> None:
        now = elapsed_seconds()
        self.standing.heard(time.monotonic())
        self._credit -= len(leases)
        for lease in leases:
            if not self._taking:
                self._start(self._give_back(lease))
                continue
            lasts = lease.remaining_ms / 1000
            kept = Kept(lease, min(now, not_before) + lasts, now)
            self._kept[lease.ownership_token.lease_id] = kept
            if kept.until - now < lasts / 2:
                # It may be fresh, but the time it is counted from is old: ask, before anybody works under it.
                self._start(self._look_again(kept, now + lasts))
            else:
                self._receiver.arrived(kept)

    async def _look_again(self, kept: Kept, until_at_most: float) -> None:
        certain, kept.until = kept.until, until_at_most  # Else it would be given up before the answer comes.
        kept.certain = certain
        await self._heartbeat(kept)
        if kept.lease_id not in self._kept:
            return
        if kept.certain - self._guard > elapsed_seconds():
            kept.until = kept.certain
            self._receiver.arrived(kept)
        else:
            self._lose(kept.lease_id)

    def taken_in(self, mark: int) -> None:
        """The node has heard everything up to this mark. What it knows to be begun stays so over every later drop."""
        for kept in self._kept.values():
            if kept.mark is not None and kept.mark <= mark:
                kept.mark = None

    def cancel(self, tokens: list[OwnershipToken]) -> None:
        for token in tokens:
            self._receiver.stop_job(token.lease_id, "cancelled")

    def lost(self, tokens: list[OwnershipToken]) -> None:
        for token in tokens:
            self._lose(token.lease_id)

    def _lose(self, lease_id: str) -> None:
        kept = self._kept.get(lease_id)
        if kept is not None:
            self._forget(kept)
            self._receiver.stop_job(lease_id, "lost")

    def _forget(self, kept: Kept) -> None:
        """The lease is over here, so there is room for another."""
        if self._kept.pop(kept.lease_id, None) is None:
            return
        self._changed.set()
        if self._stream is not None and self._taking:
            more = self._room() - self._credit
            if more > 0:
                self._credit += more
                self._stream.say(credit=more)

    # -- what handlers do (threadsafe) ---------------------------------------------------------

    def begin(self, kept: Kept) -> None:
        """The handler starts now; from here on a lost connection alone does not give the item back."""
        self._soon(self._begin, kept)

    def _begin(self, kept: Kept) -> None:
        kept.begun = True
        if self._stream is not None and kept.lease_id in self._kept:
            kept.mark = self._stream.say(begin=[kept.lease.ownership_token])

    def report(self, kept: Kept, progress: Progress) -> None:
        self._soon(self._report, kept, progress)

    def _report(self, kept: Kept, progress: Progress) -> None:
        kept.progress = progress
        if not kept.heartbeating and kept.lease_id in self._kept:
            self._start(self._heartbeat(kept))

    def finish(self, kept: Kept, ack: StreamAck, told: Told) -> None:
        """The handler is done; acknowledge it, and tell what came of that."""
        self._soon(self._finish, kept, ack, told)

    def _finish(self, kept: Kept, ack: StreamAck, told: Told) -> None:
        if kept.lease_id in self._kept:
            self._start(self._acknowledge(kept, ack, told))
        elif kept.withdrawn and ack.verb == "complete":
            # Done is done, if the node still has the lease because it died itself; else it refuses.
            self._start(self._acknowledge(kept, ack, told))
        elif kept.withdrawn:
            self._start(self._give_back(kept.lease))
            told("release")
        else:
            told(None)

    def _soon(self, do: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # The worker has stopped, and a handler in a thread goes on: nobody to tell.
            self._loop.call_soon_threadsafe(do, *arguments)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    # -- renewing and acknowledging ------------------------------------------------------------

    async def _acknowledge(self, kept: Kept, ack: StreamAck, told: Told) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._untold[task] = kept.lease.ownership_token, ack.verb
        try:
            told(await self._taken(kept, ack))
        except asyncio.CancelledError:
            told(DROPPED)
            raise
        finally:
            del self._untold[task]
            self._forget(kept)

    async def _taken(self, kept: Kept, ack: StreamAck) -> str | None:
        """Acknowledge until the node has answered; which verb it took, if it did."""
        token = kept.lease.ownership_token
        if kept.progress is not None:
            # Reported while a heartbeat was under way. It goes out before the end of the lease, or never.
            self._start(self._heartbeat(kept))
            await asyncio.sleep(0)
        end = self._loop.time() + ACK_RETRY_SECONDS
        tried = 0
        while True:
            try:
                await self._send(ack, 30_000)
                return ack.verb
            except (FailedPrecondition, PermissionDenied) as error:
                # Somebody else has the item, or had it: what was done here does not count.
                _log.warning(
                    "acknowledgement_refused",
                    extra={"sequence_id": token.sequence_id, "verb": ack.verb, "code": error.code},
                )
                return None
            except (Unavailable, DeadlineExceeded, ResourceExhausted) as error:
                if self._loop.time() > end:
                    _log.error("acknowledgement_given_up", extra={"sequence_id": token.sequence_id, "verb": ack.verb})
                    return None
                tried += 1
                await asyncio.sleep(pause_ms(min(tried, 6), error.retry_after_ms) / 1000)
            except OmniRelayError as error:
                # The node will never take this (a result too large, a bad follow-up): the attempt has failed.
                _log.error("acknowledgement_invalid", extra={"sequence_id": token.sequence_id, "code": error.code})
                if ack.verb == "fail" and ack.error_code == INVALID:
                    return None
                mode = ack.mode if ack.verb == "fail" else None
                ack = self._ack("fail", token, reason=error.message, error_code=INVALID, mode=mode)
            except Exception:
                # Whatever it was, the lease of a job that is over must not be kept for ever.
                _log.exception("acknowledgement_given_up", extra={"sequence_id": token.sequence_id, "verb": ack.verb})
                return None

    async def _send(self, ack: StreamAck, timeout_ms: int) -> Outcome:
        """Tell the node, and remember what came of it."""
        asked = self.standing.asked(time.monotonic())
        try:
            outcome = await self._sent(ack, timeout_ms)
        except (Unavailable, DeadlineExceeded, ResourceExhausted) as error:
            self.standing.unanswered(asked, time.monotonic(), error.message)
            raise
        except (FailedPrecondition, PermissionDenied) as error:
            self.standing.refused(asked, time.monotonic(), error.message)
            raise
        else:
            self.standing.answered(asked, time.monotonic())
            return outcome
        finally:
            self.standing.withdrawn(asked)

    async def _sent(self, ack: StreamAck, timeout_ms: int) -> Outcome:
        """By the stream that leases come from, if there is one: what was said on it before is in order before this."""
        stream = self._stream
        if stream is None or not stream.alive:
            return await self._client.acknowledge(ack, timeout_ms=timeout_ms)
        try:
            outcome = await stream.acknowledge(ack, timeout_ms)
        except TimeoutError:
            raise DeadlineExceeded(f"no answer came within {timeout_ms} ms") from None
        return self._client.checked(outcome)

    async def _keep_leases(self) -> None:
        clock_at = 0.0
        while True:
            now = elapsed_seconds()
            tick = TICK_SECONDS_MAX
            for kept in list(self._kept.values()):
                if now >= kept.until - self._guard:
                    _log.warning("lease_outlived", extra={"sequence_id": kept.lease.sequence_id})
                    self._lose(kept.lease_id)
                elif now >= kept.heartbeat_at and not kept.heartbeating:
                    self._start(self._heartbeat(kept))
                tick = min(tick, max(0.01, (kept.until - self._guard - now) / 10))
            if self._stream is not None and now - clock_at >= CLOCK_EVERY_SECONDS:
                clock_at = now
                self._stream.say()
                if time.monotonic() - self._connected_at > CLOCK_EVERY_SECONDS:
                    # It has outlived the moment at which a node refuses, so what is heard on it is a success.
                    self.standing.heard(self._stream.heard_at)
                    if not self.standing.trouble(time.monotonic()):
                        self.standing.last_error = None
            await asyncio.sleep(tick)

    async def _heartbeat(self, kept: Kept) -> None:
        """Renew once. What does not get through is tried again at the next tick, as long as the lease may live."""
        token = kept.lease.ownership_token
        kept.heartbeating = True
        progress, kept.progress = kept.progress, None
        said = None
        if progress is not None:
            said = IncomingProgress(fraction=progress.fraction, message=progress.message, data=progress.data)
        sent_at = elapsed_seconds()
        try:
            if said is not None:
                encoded(said, json_of)  # NaN would be kept as null, in place of what was reported before.
            timeout_ms = max(100, int(min(kept.remaining_ms() / 2, 10_000)))
            outcome = await self._send(self._ack("heartbeat", token, progress=said), timeout_ms)
        except (FailedPrecondition, PermissionDenied):
            self._lose(token.lease_id)
        except InvalidArgument as error:
            # It is the progress that the node does not take; the lease must not be lost for it.
            _log.warning("progress_refused", extra={"sequence_id": token.sequence_id, "reason": error.message})
            kept.heartbeat_at = elapsed_seconds()
        except OmniRelayError:
            kept.progress = kept.progress or progress
            kept.heartbeat_at = elapsed_seconds() + min(1.0, kept.remaining_ms() / 10_000)
        else:
            remaining = (outcome.remaining_ms or 0) / 1000
            kept.certain = sent_at + remaining
            kept.until = max(kept.until, kept.certain)
            again = min((outcome.heartbeat_after_ms or 0) / 1000, remaining / 2)
            # What was reported meanwhile is not kept waiting for the next turn.
            kept.heartbeat_at = elapsed_seconds() + (max(0.02, again) if kept.progress is None else 0.0)
            if outcome.cancel_requested:
                self._receiver.stop_job(token.lease_id, "cancelled")
        finally:
            kept.heartbeating = False

    def _ack(self, verb: str, token: OwnershipToken, **fields: object) -> StreamAck:
        return acknowledgement(verb, token, self._peer_id, **fields)
