"""How the process of a worker ends: in order within its budget, or under handlers that do not let it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from omnirelay.cli.exits import DONE, UNREACHABLE
from omnirelay.cli.printing import note
from omnirelay.cli.worker_signals import WorkerSignals

if TYPE_CHECKING:
    from omnirelay.worker.worker import Worker

TURN_SECONDS = 1.0
"""How long an event loop may be busy with one step of a handler after the budget is over."""


class WorkerStop:
    """Stops a worker at a signal, and watches that its process does end then."""

    def __init__(self, worker: Worker, budget_ms: int) -> None:
        self._worker = worker
        self._budget_s = budget_ms / 1000
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run_over = threading.Event()
        self._over = threading.Event()
        self._signals = WorkerSignals(self._stop)

    async def run(self) -> None:
        """Run the worker."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._worker.run()
        finally:
            self._run_over.set()

    def end(self) -> int:
        """Say what came of its leases; the exit code. Threads of handlers that are left end with the process."""
        self._over.set()
        if self._worker.left_running:
            self._cut_off()
        return self._say_counts()

    def _stop(self) -> None:
        """At the first signal, in the thread that hears it."""
        if running := self._worker.health().running:
            jobs = "1 job gets" if running == 1 else f"{running} jobs get"
            note(f"stopping; {jobs} {self._budget_s:g}s to finish, a second signal cuts off at once")
        self._worker.stop()
        threading.Thread(target=self._watch, name="omnirelay-stop", daemon=True).start()

    def _watch(self) -> None:
        """Wait for the end, but not for handlers that do not let the event loop go."""
        if self._over.wait(self._budget_s):
            return
        while not self._over.wait(TURN_SECONDS):
            if self._run_over.is_set():
                # Whoever is left has swallowed its cancellation; its lease is no more kept.
                if not self._over.wait(TURN_SECONDS):
                    self._signals.freeze()
                    self._cut_off()
            elif not self._turns():
                self._signals.freeze()
                self._worker.abandon()
                self._cut_off()

    def _turns(self) -> bool:
        """Whether the event loop gets around to anything."""
        turned = threading.Event()
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(turned.set)
        except RuntimeError:
            return True  # It is closed, so the end is near.
        return self._loop is None or turned.wait(TURN_SECONDS) or self._run_over.is_set()

    def _cut_off(self) -> None:
        """End the process under handlers that are left. Python would wait for them, and their leases are not kept."""
        code = self._say_counts()
        left = self._worker.left_running
        note(
            f"{left} handler{' does not stop and is' if left == 1 else 's do not stop and are'} cut off; leases run out"
        )
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _say_counts(self) -> int:
        counts = self._worker.counts
        note(
            f"completed {counts.completed}, failed {counts.failed}, released {counts.released}, "
            f"lost {counts.lost}, cancelled {counts.cancelled}"
        )
        if not counts.dropped:
            return DONE
        outcomes = "1 outcome was" if counts.dropped == 1 else f"{counts.dropped} outcomes were"
        note(f"{outcomes} not told to the node, which did not answer; the work is done again when the leases run out")
        return UNREACHABLE
