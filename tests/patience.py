"""How long a test waits before it calls a thing hung.

Far longer than anything takes, also on a machine that is busy with other things for seconds at a time: the wait ends
with the condition, so that only a test that fails takes this long. It is less than what pytest allows a test, so that
the failure names what was waited for.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

PATIENCE_S = 120.0
PATIENCE_MS = 120_000


class Stillness:
    """The longest time that this process stood still in a block, because it was not let run.

    For tests of what has to happen within a moment: in one that the machine took away they show nothing.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.005):
            before = self._look(before)
        self._look(before)

    def _look(self, before: float) -> float:
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - before)
        return now

    def __enter__(self) -> Stillness:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
