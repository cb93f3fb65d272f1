"""What events of one command owe each other: a last attempt its dead letter, a completion its follow-ups.

All events of a command are in one commit, one behind the other. So a debt is paid by the events right behind the one
that made it, or never: nothing has to be remembered beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from omnirelay.core import events as ev
from omnirelay.core.state import State

RULE: Final = "together"

Name: TypeAlias = Callable[[str, ev.Event, int | None, str], None]
"""Takes the rule, the event, the item and what is wrong."""


class _Debt(msgspec.Struct):
    event: ev.Event
    item: int
    kind: type[Any]
    """What has to follow."""
    left: int
    """How many of them."""
    at: int
    """The number that the next of them has."""


class Debts:
    """At most one is open at a time."""

    def __init__(self, name: Name) -> None:
        self._name = name
        self._open: _Debt | None = None

    def owe(self, event: ev.Event, item: int, kind: type[Any], count: int = 1) -> None:
        """So many events of this kind about the item have to follow the event."""
        self.settle()
        self._open = _Debt(event, item, kind, count, event.sequence_number + 1)

    def is_paid_by(self, event: ev.Event, item: int | None) -> bool:
        """Whether this event is one that was owed."""
        debt = self._open
        if debt is None or (debt.kind, debt.item, debt.at) != (type(event), item, event.sequence_number):
            return False
        debt.left -= 1
        debt.at += 1
        if not debt.left:
            self._open = None
        return True

    def settle(self) -> None:
        """Nothing more can pay, because the commit is over."""
        debt, self._open = self._open, None
        if debt is not None:
            missing = "no" if debt.left == 1 else f"{debt.left} times no"
            self._name(RULE, debt.event, debt.item, f"{missing} {debt.kind.__name__} follows it in the same commit")

    def forget(self) -> None:
        """The rest of the commit is not looked at."""
        self._open = None

    def owe_follow_ups(self, event: ev.Completed, ids: Sequence[int], state: State) -> None:
        """New items come right behind the completion that names them. Others it may name are those that its requests
        brought in before: they may be over and forgotten, but have a number that was given out.
        """
        item = event.ownership.sequence_id
        first = upto = state.next_sequence_id
        for number in ids:
            if number == upto:
                upto += 1
            elif number > upto or number < 1:
                self._name(RULE, event, item, f"its follow-up {number} does not exist, the next item is {upto}")
            elif number < first and number not in state.items and not state.requests:
                self._name(RULE, event, item, f"its follow-up {number} does not exist, and no request brought it in")
        if upto > first:
            self.owe(event, item, ev.Enqueue, upto - first)
