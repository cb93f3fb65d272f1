"""Whether a worker gets anywhere: what it asked of the node, and what came of it.

A pong proves that a connection lives, and nothing else. So it counts for a worker that has nothing to ask for; one
whose heartbeats and acknowledgements get no answer, or are refused one after another, gets nowhere although pongs come.
Everything is told the time, in `time.monotonic` seconds: nobody is silent to a machine that sleeps.
"""

from __future__ import annotations


class Spell:
    """A time in which one bad thing came after another, with nothing good in between."""

    def __init__(self) -> None:
        self._since = 0.0
        self._last = 0.0
        self._lasts = False

    def add(self, began: float, now: float, pause_s: float) -> None:
        """One more: it began then, and is known now. After a pause of `pause_s` without any it is a new spell."""
        if not self._lasts or began - self._last > pause_s:
            self._since, self._lasts = began, True
        self._last = now

    def end(self) -> None:
        self._lasts = False

    def length_s(self, now: float, pause_s: float) -> float:
        """From its first to its last, as long as that is not `pause_s` ago."""
        return self._last - self._since if self._lasts and now - self._last <= pause_s else 0.0


class Standing:
    """Kept by the thread that talks to the node; any thread may look at it."""

    def __init__(self, now: float, silent_s_max: float) -> None:
        self._silent_s_max = silent_s_max
        self._heard_at = now
        self._asked: dict[int, float] = {}
        """What has no answer yet, and when it was asked."""
        self._asked_last = 0
        self._answered_at = now
        self._unanswered = Spell()
        self._refused = Spell()
        self._refusal = ""
        self.last_error: str | None = None

    def heard(self, at: float) -> None:
        """The node lives, as far as that can be told from a pong or from what it pushes."""
        self._heard_at = max(self._heard_at, at)

    def asked(self, now: float) -> int:
        """Something is to be answered, by `answered`, `refused`, `unanswered` or `withdrawn` with what this returns."""
        self._asked_last += 1
        self._asked[self._asked_last] = now
        return self._asked_last

    def answered(self, asked: int, now: float) -> None:
        self._got(asked, now)
        self._refused.end()

    def refused(self, asked: int, now: float, why: str) -> None:
        """That is an answer, and once in a while one that has to be; if there is no other, nothing is achieved."""
        began = self._got(asked, now)
        self._refused.add(began, now, self._silent_s_max)
        self._refusal = why

    def _got(self, asked: int, now: float) -> float:
        self._heard_at = self._answered_at = now
        self._unanswered.end()
        return self._asked.pop(asked)

    def unanswered(self, asked: int, now: float, why: str) -> None:
        """Nobody waits for that answer any more, or the connection ended before it."""
        self._unanswered.add(self._asked.pop(asked), now, self._silent_s_max)
        self.last_error = why

    def withdrawn(self, asked: int) -> None:
        """Nothing follows from what came of it."""
        self._asked.pop(asked, None)

    def silent_s(self, now: float) -> float:
        """For how long the node has said nothing, or nothing to what it was asked."""
        waited_s = now - max(self._answered_at, min(self._asked.copy().values(), default=now))
        return max(now - self._heard_at, waited_s, self._unanswered.length_s(now, self._silent_s_max))

    def refused_s(self, now: float) -> float:
        """For how long it has taken nothing that it was told."""
        return self._refused.length_s(now, self._silent_s_max)

    def trouble(self, now: float) -> str:
        """Why the worker gets nowhere; empty while it does."""
        if (silent_s := self.silent_s(now)) > self._silent_s_max:
            return f"the node has not answered for {silent_s * 1000:.0f} ms: {self.last_error or 'silence'}"
        if (refused_s := self.refused_s(now)) > self._silent_s_max:
            return f"the node has refused everything for {refused_s * 1000:.0f} ms: {self._refusal}"
        return ""
