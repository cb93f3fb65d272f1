"""Runs one after the other until somebody asks to stop.

What passes by itself does not end them: another pipeline that was quicker, a store that does not answer for a while.
It is told, and the next run goes on from the tables as they are then, a little later each time it happens again.
Segments that were there and are away count as that, too, whoever saw them: a run before, or a process before this one,
as the tables tell. Where none ever were, nobody waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from omnirelay.errors import OmniRelayError, Status
from omnirelay.lakehouse.pipeline import Summary
from omnirelay.lakehouse.shards import NO_SEGMENTS

_PASSING: Final = frozenset({Status.ABORTED, Status.UNAVAILABLE})
"""Errors that say nothing about the tables or the segments, only about this moment."""
BACKOFF_MAX_S: Final = 60.0
"""However often a run is hindered, it is tried again at least this often; unless runs are further apart anyway."""


def wait_after(hindrances: int, every_s: float) -> float:
    """Seconds to wait after so many hindrances in a row: from one run to the next, doubled with each."""
    doublings = min(hindrances - 1, 16)  # A larger number changes nothing but the size of a product.
    return max(every_s, min(every_s * float(1 << doublings), BACKOFF_MAX_S))


def run_until_asked(
    run: Callable[[], Summary],
    asked: threading.Event,
    every_s: float,
    *,
    seen: Callable[[Summary], None],
    hindered: Callable[[OmniRelayError, float], None],
    known: Callable[[], bool] = lambda: False,
) -> Summary | None:
    """Run again and again. What the last run found; None when none came to its end before somebody asked.

    `seen` is given what each run found, `hindered` why one could not go on and in how many seconds the next one is.
    `known` is asked whether there ever were segments, as long as no run has found any.
    Errors that do not pass are raised.
    """
    last: Summary | None = None
    hindrances = 0
    while True:
        wait_s = every_s
        try:
            last = run()
        except OmniRelayError as error:
            away = error.code == NO_SEGMENTS and (last is not None or known())
            if not away and error.status not in _PASSING:
                raise
            hindrances += 1
            wait_s = wait_after(hindrances, every_s)
            hindered(error, wait_s)
        else:
            hindrances = 0
            seen(last)
        if asked.wait(wait_s):
            return last
