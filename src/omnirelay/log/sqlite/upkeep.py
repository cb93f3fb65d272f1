"""What appends leave to be done, by a thread of its own: the redo file is made and settled, the WAL copied.

Nobody waits for it but who reads: whatever is read through the log has what the redo file has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from omnirelay.errors import OmniRelayError
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.redo_file import RedoPlan, make_redo_file
from omnirelay.log.sqlite.writer import Writer

DEFAULT_REDO: Final = RedoPlan()

T = TypeVar("T")


class Upkeep:
    """Of one writer. `after_append` and `stop` are for the event loop's thread."""

    def __init__(self, writer: Writer, paths: LogPaths, shard: str, vfs: str | None, redo: RedoPlan | None) -> None:
        """`redo`: when frames go through a redo file; never with None."""
        self._writer = writer
        self._paths = paths
        self._vfs = vfs
        self._redo = redo
        self._appends = 0
        # One thread: whatever touches the database does so in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"log-keep-{shard}")
        self._tending = False
        """A settling or a checkpoint waits for its thread."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    async def run(self, call: Callable[..., T], *arguments: object) -> T:
        """Do something to the database."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def settled(self) -> None:
        """Wait until what is read next has everything that was acknowledged."""
        if self._writer.unsettled_bytes:
            await self.run(self._writer.settle)

    def after_append(self) -> None:
        """See what is due. Costs nothing when nothing is."""
        if self._stopped:
            return
        writer, plan = self._writer, self._redo
        if plan is not None:
            self._appends += 1
            if self._appends == plan.after_frames and writer.wants_redo:
                self._thread.submit(self._begin_redo, plan)
            unsettled = writer.unsettled_bytes
            if unsettled >= plan.settle_bytes:
                self._tend()
            elif unsettled and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(plan.settle_s, self._settle_due)
        self.after_write()

    def after_write(self) -> None:
        """The same, behind anything else that was written."""
        if self._writer.wants_checkpoint:
            self._tend()

    def _begin_redo(self, plan: RedoPlan) -> None:
        """Without a redo file, as on a full disk, the log goes on as it did."""
        with suppress(OSError, OmniRelayError):
            file = make_redo_file(self._paths.redo, 2 * plan.half_bytes, self._vfs)
            self._writer.begin_redo(file, plan)

    def _settle_due(self) -> None:
        self._timer = None
        self._tend()

    def _tend(self) -> None:
        if not self._tending and not self._stopped:
            self._tending = True
            self._thread.submit(self._settle_and_checkpoint)

    def _settle_and_checkpoint(self) -> None:
        self._tending = False
        try:
            self._writer.settle()
        except OmniRelayError:
            return  # The next append comes upon the same, and tells its caller.
        self._writer.checkpoint()

    def stop(self) -> None:
        """Nothing is due any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shut_down(self, *, cancel: bool = False) -> None:
        """Wait for what has begun, and for the rest unless that is cancelled."""
        self._thread.shutdown(cancel_futures=cancel)
