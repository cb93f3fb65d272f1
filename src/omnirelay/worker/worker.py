"""`Worker`: leases work, runs handlers, keeps the leases alive, acknowledges.

    worker = Worker(handlers, url="http://127.0.0.1:7070", concurrency=8)
    await worker.run()          # until worker.stop() or, with `omnirelay work`, a signal

Async handlers run in the caller's event loop, others in threads; the leases are kept in a thread of their own, so a
handler that blocks loses nothing. A handler is told to stop as soon as its lease is lost or its item is cancelled: an
async one is cancelled, one in a thread finds `job.stopped`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from omnirelay.client.arguments import as_header, as_kind, as_some_names
from omnirelay.client.client import DEFAULT_URL
from omnirelay.client.connections import checked_namespace, checked_url
from omnirelay.client.threads import LoopThread
from omnirelay.core.intake import CALLER_MAX
from omnirelay.errors import FailedPrecondition, InvalidArgument
from omnirelay.wire.answers import Lease
from omnirelay.wire.streams import StreamAck
from omnirelay.worker.handlers import FailMode, GiveUp, Handlers, Registered, Release, Retry
from omnirelay.worker.job import Job, JobStopped
from omnirelay.worker.keeping import Keeper
from omnirelay.worker.kept import DROPPED, Kept, acknowledgement
from omnirelay.worker.outcomes import encoded_result, mode_of, reason_of

_log = logging.getLogger("omnirelay.worker")

SETTLE_SECONDS = 5.0
"""How long a worker that stops waits at least for the node to answer what it was told."""
REST_MS = 1_000
"""How long an item rests that was handed back because this worker cannot work on it now."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the worker gets anywhere. `ok` is false when the node has answered nothing for a while, or refused all
    that it was told.
    """

    ok: bool
    reason: str
    silent_ms: int
    running: int
    waiting: int


@dataclass(slots=True)
class Counts:
    """What came of the leases of a worker since it started, each counted when the node has taken its end."""

    completed: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    """They were over before their end was acknowledged: what was done under them does not count. Those, too, of which
    nobody knows, because the node did not answer.
    """
    cancelled: int = 0
    dropped: int = 0
    """They were over, and the node did not answer until the worker had stopped: if it has not heard of that, they run
    out and are done again.
    """


class _LeftRunning(Exception):
    """A handler's thread goes on, and whoever waited for it has to go."""


class _Running:
    """A job and the task that runs its handler."""

    __slots__ = ("_asked", "job", "kept", "task")

    def __init__(self, kept: Kept, job: Job, task: asyncio.Task[None]) -> None:
        self.kept = kept
        self.job = job
        self.task = task
        self._asked = False

    def stop(self, reason: str) -> None:
        """Cancel the handler, once: every further time would cut off its cleanup, or the wait for its thread. The node
        asks for it again with each heartbeat.
        """
        self.job.stop(reason)
        if not self._asked:
            self._asked = True
            self.task.cancel()


class Worker:
    """Start once with `run`, stop with `stop`, which is safe to call twice, from any thread or handler of a signal."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        url: str = DEFAULT_URL,
        namespace: str = "resourcelease",
        peer_id: str | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        lease_duration_ms: int | None = None,
        tenants: Sequence[str] | None = None,
        guard_ms: int = 200,
        stop_budget_ms: int = 10_000,
        silent_ms_max: int = 60_000,
    ) -> None:
        """`prefetch`: leases held beyond those being worked on, so that nobody waits for the network; by default half
        of `concurrency`. `guard_ms`: a lease is given up for lost this long before it could run out. `silent_ms_max`:
        `health` is red when the node has answered nothing for so long. `stop_budget_ms`: what handlers get to finish
        when the worker stops; then they are cancelled and their items released.
        """
        as_kind("handlers", handlers, Handlers)
        if peer_id:
            _check_peer(peer_id)
        _check_number("concurrency", concurrency, 1)
        _check_number("prefetch", 0 if prefetch is None else prefetch, 0)
        _check_number("guard_ms", guard_ms, 0)
        _check_number("stop_budget_ms", stop_budget_ms, 0)
        _check_number("silent_ms_max", silent_ms_max, 0)
        if lease_duration_ms is not None:
            _check_number("lease_duration_ms", lease_duration_ms, 1)
            if guard_ms >= lease_duration_ms:
                raise InvalidArgument(
                    f"guard_ms must be less than lease_duration_ms, or every lease is given up for lost as soon as it"
                    f" comes: {guard_ms} is not less than {lease_duration_ms}",
                    field="guard_ms",
                )
        if not handlers.patterns:
            raise InvalidArgument("the registry has no handlers", field="handlers")
        self._handlers = handlers
        self._url = checked_url(url)
        self._namespace = checked_namespace(namespace)
        self.peer_id = peer_id or _own_name()
        self._concurrency = concurrency
        self._prefetch = max(1, concurrency // 2) if prefetch is None else prefetch
        self._lease_duration_ms = lease_duration_ms
        self._tenants = as_some_names("tenants", tenants)
        self._guard_ms = guard_ms
        self._stop_budget_ms = stop_budget_ms
        self._silent_ms_max = silent_ms_max
        self._thread = LoopThread("omnirelay-leases")
        self._keeper: Keeper | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="omnirelay-handler")
        self._in_threads: set[Job] = set()
        self._waiting: deque[Kept] = deque()
        self._jobs: dict[str, _Running] = {}
        self._stop_by: float | None = None
        """When a worker that is to stop cancels its handlers, in monotonic seconds."""
        self._stopping = asyncio.Event()
        self._counting = threading.Lock()
        self.counts = Counts()

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop` is called. Cancelling it stops the worker within its budget too."""
        if self._loop is not None:
            raise FailedPrecondition("a worker runs once; make another one", code="error.worker.started")
        self._loop = asyncio.get_running_loop()
        if self._stop_by is not None:
            self._stopping.set()
        self._thread.start()
        try:
            self._keeper = await asyncio.wrap_future(self._thread.submit(self._make_keeper()))
            kept = asyncio.wrap_future(self._thread.submit(self._keeper.run()))
            stopping = asyncio.ensure_future(self._stopping.wait())
            try:
                # The keeper ends by itself only when it fails; a worker without one would wait for leases for ever.
                await asyncio.wait((stopping, kept), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.stop()
                await self._finish()
                failed = kept.done()
                await _quietly(asyncio.wrap_future(self._thread.submit(self._keeper.close())))
                await asyncio.wait((asyncio.ensure_future(_quietly(kept)), stopping))
            if failed:
                kept.result()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.stop)

    async def _make_keeper(self) -> Keeper:
        return Keeper(
            self._url,
            self._namespace,
            self.peer_id,
            self._handlers.patterns,
            self,
            capacity=self._concurrency + self._prefetch,
            lease_duration_ms=self._lease_duration_ms,
            guard_ms=self._guard_ms,
            silent_ms_max=self._silent_ms_max,
            tenants=self._tenants,
        )

    def stop(self) -> None:
        """Take nothing new, finish what runs within the budget, release the rest. The budget counts from here, and what
        was not begun is given back, also while a handler blocks the event loop.
        """
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._stop_budget_ms / 1000
        if self._keeper is not None:
            self._keeper.stop_taking()
        if self._loop is not None:
            with suppress(RuntimeError):  # It has stopped, and its loop is closed.
                self._loop.call_soon_threadsafe(self._stopping.set)

    def _left_s(self) -> float:
        """What is left of the budget."""
        return 0.0 if self._stop_by is None else max(0.0, self._stop_by - time.monotonic())

    async def _finish(self) -> None:
        keeper = self._keeper
        assert keeper is not None
        self._waiting.clear()
        keeper.stop_taking()  # It may have been made after the stop.
        if running := [each.task for each in self._jobs.values()]:
            await asyncio.wait(running, timeout=self._left_s())
        for each in list(self._jobs.values()):
            each.stop("stopping")
        if left := [each.task for each in self._jobs.values()]:
            # Threads cannot be cancelled; the lease of one that does not look at `job.stopped` runs out.
            await asyncio.wait(left, timeout=1.0)
        await asyncio.wrap_future(self._thread.submit(keeper.settled(max(SETTLE_SECONDS, self._left_s()))))

    def abandon(self) -> None:
        """For a process that is to end while a handler blocks the event loop, which must not go on any more: give back
        what merely waits there, and tell the node what is over. What blocks the loop, and what runs in threads, nobody
        else may have before it has ended, so that runs out.
        """
        keeper, loop = self._keeper, self._loop
        assert keeper is not None
        assert loop is not None
        self.stop()
        blocking = asyncio.current_task(loop)
        running = list(self._jobs.items())
        for _, each in running:
            each.job.stop("stopping")
        if any(each.task is blocking for _, each in running):  # Else nobody knows which of them it is.
            for lease_id, each in running:
                if each.task is not blocking and not each.task.done() and each.job not in self._in_threads:
                    del self._jobs[lease_id]
                    self._hand_back(each.kept, each.job.stop_reason)
        for last in (keeper.settled(SETTLE_SECONDS), keeper.close()):
            with suppress(Exception, CancelledError):
                self._thread.submit(last).result(2 * SETTLE_SECONDS)

    def health(self) -> Health:
        """For a liveness probe: red when nothing has come from the node for a while, or nothing in answer to heartbeats
        and acknowledgements. While there is nothing to ask for, a connection that lives is enough.
        """
        keeper = self._keeper
        if keeper is None:
            return Health(False, "the worker has not started", 0, 0, 0)
        now = time.monotonic()
        silent_ms = int(keeper.standing.silent_s(now) * 1000)
        reason = keeper.standing.trouble(now)
        return Health(not reason, reason, silent_ms, len(self._jobs), len(self._waiting))

    @property
    def left_running(self) -> int:
        """Handlers that run now. After `run` those are the ones that did not stop: their leases are no more kept, and
        Python waits for those in threads when the process ends.
        """
        return len(self._in_threads | {each.job for each in self._jobs.copy().values() if not each.task.done()})

    # -- what the keeper says, in its thread ---------------------------------------------------

    def arrived(self, kept: Kept) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._arrived, kept)

    def stop_job(self, lease_id: str, reason: str) -> None:
        assert self._loop is not None
        held = self._jobs.get(lease_id)
        if held is not None:
            held.job.stop(reason)  # At once: a handler in a thread may see it before the event loop does.
        self._loop.call_soon_threadsafe(self._stop_job, lease_id, reason)

    # -- in the event loop of the handlers -----------------------------------------------------

    def _arrived(self, kept: Kept) -> None:
        if self._stop_by is None:
            self._waiting.append(kept)
            self._start_jobs()

    def _stop_job(self, lease_id: str, reason: str) -> None:
        held = self._jobs.get(lease_id)
        if held is None:
            for kept in [kept for kept in self._waiting if kept.lease_id == lease_id]:
                self._waiting.remove(kept)
                if reason == "cancelled":
                    self._hand_back(kept, reason)
            return
        held.stop(reason)

    def _start_jobs(self) -> None:
        keeper = self._keeper
        assert keeper is not None
        assert self._loop is not None
        while self._waiting and len(self._jobs) < self._concurrency and self._stop_by is None:
            kept = self._waiting.popleft()
            if kept.remaining_ms() <= self._guard_ms:
                # It waited too long. A renewal may be under way, so it must not be forgotten.
                self._hand_back(kept, delay_ms=self._too_short(kept.lease))
                continue
            job = Job(kept.lease, lambda progress, kept=kept: keeper.report(kept, progress), kept.remaining_ms)  # type: ignore[misc]
            keeper.begin(kept)
            task = self._loop.create_task(self._work(keeper, kept, job))
            self._jobs[kept.lease_id] = _Running(kept, job, task)
            task.add_done_callback(lambda task, kept=kept: self._ended(kept, task))  # type: ignore[misc]

    def _too_short(self, lease: Lease) -> int | None:
        """For how long an item should rest whose lease was never longer than the guard: at once it would come back to
        this worker, which can never begin it.
        """
        if lease.remaining_ms > self._guard_ms:
            return None
        _log.error(
            "lease_too_short",
            extra={"sequence_id": lease.sequence_id, "lease_ms": lease.remaining_ms, "guard_ms": self._guard_ms},
        )
        return REST_MS

    def _hand_back(self, kept: Kept, reason: str | None = None, *, delay_ms: int | None = None) -> None:
        """Release what nobody works on here."""
        assert self._keeper is not None
        ack = acknowledgement("release", kept.lease.ownership_token, self.peer_id, delay_ms=delay_ms)
        self._keeper.finish(kept, ack, lambda verb: self._ended_as(verb, reason))

    def _ended_as(self, verb: str | None, reason: str | None) -> None:
        """What the node took as a lease's end, if anything. `reason`: why it was stopped. In the keeper's thread, as
        the handlers' loop may be blocked or gone.
        """
        with self._counting:
            if verb is None:
                self.counts.lost += 1
            elif verb == DROPPED:
                self.counts.dropped += 1
            elif verb == "complete":
                self.counts.completed += 1
            elif verb == "fail":
                self.counts.failed += 1
            elif reason == "cancelled":
                self.counts.cancelled += 1
            else:
                self.counts.released += 1

    def _ended(self, kept: Kept, task: asyncio.Task[None]) -> None:
        running = self._jobs.pop(kept.lease_id, None)
        if running is not None and task.cancelled():
            # It was stopped before its first step, so it could not say so itself; the lease would be kept for ever.
            self._hand_back(kept, running.job.stop_reason)
        elif running is not None and task.exception() is not None:
            # Not the handler's doing: that is an outcome like any other. Whatever it was, the lease must not be kept.
            _log.error("job_failed_in_worker", extra={"sequence_id": kept.lease.sequence_id}, exc_info=task.exception())
            self._hand_back(kept, delay_ms=REST_MS)
        self._start_jobs()

    async def _work(self, keeper: Keeper, kept: Kept, job: Job) -> None:
        ack = await self._outcome(job)
        if ack is None:
            self._ended_as(None, job.stop_reason)
        else:
            keeper.finish(kept, ack, lambda verb: self._ended_as(verb, job.stop_reason))

    async def _outcome(self, job: Job) -> StreamAck | None:
        """Run the handler; what to tell the node, or None when the lease is lost and there is nothing to tell."""
        handler = self._handlers.find(job.resource_type)
        if handler is None:
            return self._ack(job, "release", delay_ms=1_000)
        try:
            result = await self._call(handler, job)
            ack = self._completion(job, result)
        except (asyncio.CancelledError, JobStopped) as error:
            if job.stop_reason is None:
                # Nobody stopped it: something in the handler was cancelled. Released, it would come back for ever.
                return self._fail(job, error, "retry", type(error).__name__, None)
            return self._stopped(job)
        except _LeftRunning:
            # Nobody else may have the item while its thread goes on: the lease has to run out.
            return None
        except Retry as error:
            return self._fail(job, error, "retry", error.error_code, error.delay_ms)
        except Release as error:
            return self._ack(job, "release", delay_ms=error.delay_ms)
        except GiveUp as error:
            return self._fail(job, error, "dead", error.error_code, None)
        except BaseException as error:
            if handler.is_async and isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise  # Not the handler's: somebody wants this process, or this coroutine, to end.
            # `sys.exit` in a handler, and what native libraries raise beside Exception, end the job and nothing else.
            if job.stop_reason == "lost":
                return self._stopped(job)
            mode = mode_of(handler, error)
            _log.warning(
                "handler_failed",
                extra={"sequence_id": job.sequence_id, "resource_type": job.resource_type, "mode": mode},
                exc_info=error,
            )
            return self._fail(job, error, mode, type(error).__name__, None)
        if job.stop_reason == "lost":
            return self._stopped(job)
        return ack

    async def _call(self, handler: Registered, job: Job) -> Any:
        if handler.is_async:
            return await handler.call(job)
        assert self._loop is not None
        running = self._loop.run_in_executor(self._threads, self._result_or_error, handler.call, job)
        try:
            result, error = await asyncio.shield(running)
        except asyncio.CancelledError:
            # The thread goes on until it looks at `job.stopped`. Only then is it known how the work ended, and only
            # then is there a thread for another job.
            try:
                result, error = await asyncio.shield(running)
            except asyncio.CancelledError:
                if running.done():
                    raise
                raise _LeftRunning from None
        if error is not None:
            raise error
        # A plain function around an async one: what it made is run where async handlers are.
        return await result if isawaitable(result) else result

    def _result_or_error(self, call: Callable[[Job], Any], job: Job) -> tuple[Any, BaseException | None]:
        """In the handler's thread. An error goes back as a value: a future that is given a StopIteration never ends."""
        self._in_threads.add(job)
        try:
            job.check()  # It may have been given back while it waited for a thread.
            return call(job), None
        except BaseException as error:
            return None, error
        finally:
            self._in_threads.discard(job)

    def _completion(self, job: Job, result: Any) -> StreamAck:
        data, encoding = encoded_result(result)
        follow_ups = [each.wire() for each in job.follow_ups] or None
        return self._ack(job, "complete", result=data, result_encoding=encoding, follow_ups=follow_ups)

    def _stopped(self, job: Job) -> StreamAck | None:
        """The handler was stopped. Giving the item back ends a cancelled one, and frees one that has to wait."""
        if job.stop_reason == "lost":
            return None
        return self._ack(job, "release")

    def _fail(
        self, job: Job, error: BaseException, mode: FailMode, error_code: str | None, delay_ms: int | None
    ) -> StreamAck:
        return self._ack(job, "fail", reason=reason_of(error), error_code=error_code, mode=mode, delay_ms=delay_ms)

    def _ack(self, job: Job, verb: str, **fields: Any) -> StreamAck:
        return acknowledgement(verb, job.token, self.peer_id, **fields)


def _check_number(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise InvalidArgument(f"{name} must be a whole number, at least {least}, not {value!r}", field=name)


def _own_name() -> str:
    """Of this process on this host, as a header can have it."""
    return f"{socket.gethostname().encode('ascii', 'replace').decode()}-{os.getpid()}"


def _check_peer(peer_id: str) -> None:
    """Refuse a name that no header holds or no node takes: the worker would try to connect with it for ever."""
    as_header("peer_id", peer_id)
    if len(peer_id) > CALLER_MAX or peer_id.isspace():
        raise InvalidArgument(f"peer_id must be a name of at most {CALLER_MAX} characters", field="peer_id")


async def _quietly(work: Any) -> None:
    try:
        await work
    except (asyncio.CancelledError, Exception):
        return
