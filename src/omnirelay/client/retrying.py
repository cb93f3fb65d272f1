"""How often to try again: within the time of a call, with growing pauses, and within a budget of the whole client.

Without a budget a fleet of clients doubles its load exactly when a node has least to spare.
"""

from __future__ import annotations

import random

PAUSE_FIRST_MS = 50.0
PAUSE_MAX_MS = 2_000.0
BUDGET_MAX = 100.0
EARNED_PER_CALL = 0.2


class RetryBudget:
    """Every call that works earns a part of a retry; every retry costs one."""

    def __init__(self) -> None:
        self._left = BUDGET_MAX

    def earn(self) -> None:
        self._left = min(BUDGET_MAX, self._left + EARNED_PER_CALL)

    def spend(self) -> bool:
        """Whether there may be one more retry."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


def pause_ms(attempt: int, asked_ms: int | None) -> float:
    """How long to wait before the next try: at least what the node asked for, and never all clients at once."""
    grown: float = min(PAUSE_MAX_MS, PAUSE_FIRST_MS * 2**attempt)
    return max(float(asked_ms or 0), grown) * random.uniform(0.7, 1.3)
