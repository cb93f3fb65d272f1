"""`Workshop`: other processes make what sinks write, while the node has other things to do.

    commits ──▶ parcel ──▶ process makes text, rows or a segment ──▶ parcel ──▶ the sink writes it, here

A sink that catches up with a long log would take the interpreter from the node's callers for most of the time. What it
needs is a function of the frames alone, so it can be made anywhere; everything that counts stays here: reading the log,
writing the target, checkpoints. A process that is lost is no more than a piece of work to be done again.

There is none until there is much to do, and none any more when there was nothing to do for a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

from omnirelay._version import __version__
from omnirelay.replication.commits import Commits
from omnirelay.replication.health import reason_of
from omnirelay.replication.made import Form, Made
from omnirelay.replication.making import make, takes_long_to_begin
from omnirelay.replication.parcels import TICKET, Parcels, new_parcels
from omnirelay.replication.threads import OneThread
from omnirelay.replication.workshop_process import READY, Order, SentFrame, encode, read_answer

_log = logging.getLogger("omnirelay.replication")

T = TypeVar("T")

WORTH_BYTES: Final = 256 * 1024
"""Of the log. Less is made here, in about a millisecond."""

WORKERS_MAX: Final = max(1, min(2, os.cpu_count() or 1))

_LITTLE_WORK: Final = frozenset({"rows"})
"""What takes less time to be made than to be written. One process is enough for all of it: the start of another would
cost more than it helps.
"""

_IDLE_S: Final = 30.0
"""A process that had nothing to do for so long is ended."""

_ANSWER_S: Final = 60.0
"""One that takes longer is given up."""

_PAUSE_S: Final = 30.0
"""After one was lost, or could not be started, everything is made here for so long."""

_NICENESS: Final = 10
"""Callers of the node go first."""

_IS_READY = attrgetter("is_ready")

_PROCESS: Final = "omnirelay.replication.workshop_process"


class Maker(Protocol):
    """Who makes what sinks write."""

    async def make(self, form: Form, commits: Commits) -> Made: ...


class InThread:
    """In this process."""

    async def make(self, form: Form, commits: Commits) -> Made:
        return await asyncio.to_thread(make, form, commits)


IN_THREAD: Final = InThread()


def _started(parcels: Parcels, form: Form) -> subprocess.Popen[bytes]:
    """Raises OSError."""
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("there is no interpreter to start")  # What is called so would be the whole program once more.
    # What else may stand in the path means nothing to Python either.
    path = [each or os.getcwd() for each in sys.path if isinstance(each, str)]
    process = subprocess.Popen(
        # Without the directory that the node happens to be started in: something there may be called like a module.
        [sys.executable, "-P", "-m", _PROCESS, str(parcels.file), form, __version__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        pass_fds=(parcels.file,),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        process_group=0,  # An interrupt from the keyboard is for the node, which has an order to its end.
    )
    # From here and not by itself: until it could, it would import for a fifth of a second at the callers' cost.
    with suppress(OSError):  # It has ended already, which whoever asks it will notice.
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
    return process


class _Worker:
    """One process. Calls must not overlap."""

    def __init__(self) -> None:
        self._thread = OneThread("omnirelay-workshop")
        self._parcels: Parcels | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self.is_ready = False
        """It has imported what it needs."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def make(self, form: Form, commits: Commits) -> Made:
        """Raises OSError, TimeoutError or what else its answer leads to when the process is of no use any more."""
        async with asyncio.timeout(_ANSWER_S):
            return await self._run(lambda: self._make(form, commits))

    async def start(self, form: Form) -> None:
        """The process, unless it was started; it will be asked for this first. Raises OSError. Returns when it is
        ready.
        """
        await self._run(lambda: self._start(form))

    def _start(self, form: Form) -> None:
        if self._ended:
            raise OSError("the node has ended it")
        if self._process is None:
            self._parcels = self._parcels or new_parcels()
            self._process = _started(self._parcels, form)
        if not self.is_ready:
            assert self._process.stdout is not None
            if self._process.stdout.read(len(READY)) != READY:
                raise OSError("the process has ended")
            self.is_ready = True

    def _make(self, form: Form, commits: Commits) -> Made:
        assert self._process is not None
        assert self._parcels is not None
        orders, answers, parcels = self._process.stdin, self._process.stdout, self._parcels
        assert orders is not None
        assert answers is not None
        order = Order(form, commits.region, commits.after, [SentFrame.of(frame) for frame in commits.frames])
        orders.write(parcels.put([frame.data for frame in commits.frames], encode(order)))
        ticket = answers.read(TICKET.size)
        if not ticket or len(ticket) != TICKET.size:
            raise OSError("the process has ended")
        answer = read_answer(parcels.note(ticket))
        if answer.failure is not None:
            raise OSError(answer.failure)
        return answer.made(form, list(parcels.pieces(answer.sizes)))

    async def close(self) -> None:
        """End it, whatever it does."""
        self._ended = True
        if self._process is not None:
            self._process.kill()
        await self._run(self._let_go)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._thread.run(work)
        finally:
            if self._ended:  # Also for who comes behind its end, and was given a thread again.
                self._thread.close()

    def _let_go(self) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:  # Which closes the pipes, and waits.
                pass
        if self._parcels is not None:
            self._parcels.close()


class Workshop:
    """Of one node. Nothing it does can fail because of a process: what is not made there is made here. Close it."""

    def __init__(
        self,
        *,
        workers_max: int = WORKERS_MAX,
        worth_bytes: int = WORTH_BYTES,
        is_called: Callable[[], bool] = lambda: True,
    ) -> None:
        """While the node `is_called`, work waits for a process that gets ready; else it is done here meanwhile, unless
        that would take even longer.
        """
        self._is_called = is_called
        self._worth_bytes = worth_bytes
        self._workers_max = workers_max
        self._room = asyncio.Semaphore(workers_max)
        self._little_room = asyncio.Semaphore(1)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._ending: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused_until = 0.0
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Of the processes that there are."""
        return [worker.pid for worker in (*self._idle, *self._busy) if worker.pid is not None]

    async def make(self, form: Form, commits: Commits) -> Made:
        made = None
        if commits.size >= self._worth_bytes:
            async with self._little_room if form in _LITTLE_WORK else nullcontext(), self._room:
                made = await self._sent_out(form, commits)
        return await asyncio.to_thread(make, form, commits) if made is None else made

    async def _sent_out(self, form: Form, commits: Commits) -> Made | None:
        now = asyncio.get_running_loop().time
        if self._closed or now() < self._paused_until:
            return None
        if not self._idle and not self._busy:
            # All at once: who has much to do will want them all, and they take a moment to get ready.
            wanted = 1 if form in _LITTLE_WORK else self._workers_max
            self._idle = [_Worker() for _ in range(wanted)]
            for each in self._idle:
                self._beside(each.start(form))
            self._end_when_idle()  # Perhaps there is no work for all of them.
        waits = self._is_called() or takes_long_to_begin(form)
        if self._idle and not any(worker.is_ready for worker in self._idle) and not waits:
            return None
        self._idle.sort(key=_IS_READY)
        worker = self._idle.pop() if self._idle else _Worker()
        self._busy.add(worker)
        try:
            await worker.start(form)
            made = await worker.make(form, commits)
        except Exception as error:  # Whatever it was: what it answers may be anything, and is not needed.
            _log.warning("workshop_lost", extra={"reason": reason_of(error)})
            self._paused_until = now() + _PAUSE_S
            await self._end(worker)
            return None
        except BaseException:
            # Nobody waits for its answer any more, and the next one must not get it.
            self._end_later(worker)
            raise
        self._busy.discard(worker)
        if self._closed:
            await self._end(worker)
        else:
            self._idle.append(worker)
            self._end_when_idle()
        return made

    def _end_when_idle(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(_IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        self._ending = None
        while self._idle:
            self._end_later(self._idle.pop())

    def _end_later(self, worker: _Worker) -> None:
        self._beside(self._end(worker))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        async def done() -> None:
            with suppress(Exception):  # It is there for whoever is to use that process.
                await work

        task = asyncio.create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, worker: _Worker) -> None:
        self._busy.discard(worker)
        await worker.close()

    async def close(self) -> None:
        """End every process; what is under way is made here instead. Safe to call twice."""
        self._closed = True
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        self._end_idle()
        for worker in tuple(self._busy):
            self._end_later(worker)
        if self._tasks:
            await asyncio.wait(self._tasks)
