"""`Standing`: how far a sink has come, what moves it on, and what sets it elsewhere.

A delivery moves the checkpoint, a target that knows better when it is opened corrects it, an operator resets it, and a
log that was trimmed may force it on. A reset goes before everything that was under way when it came.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import cast

from omnirelay.errors import InvalidArgument, LogDamaged, LogTrimmed
from omnirelay.replication.checkpoints import Checkpoint, Checkpoints
from omnirelay.replication.cursor import LogCursor
from omnirelay.replication.distance import Distance
from omnirelay.replication.done import Done
from omnirelay.replication.owners import Newest
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.replication.sources import LogSource
from omnirelay.wire.instants import instant

_log = logging.getLogger("omnirelay.replication")


class Standing:
    """Of one sink behind one log. Calls must not overlap, except for `reset`, which may come at any time."""

    def __init__(
        self, name: str, sink: ReplicationSink, shard: LogSource, cursor: LogCursor, checkpoints: Checkpoints
    ) -> None:
        self.checkpoint = 0
        """The last event that the target has."""
        self.distance = Distance(shard, cursor)
        self.resets = 0
        """Counts resets: a delivery that was under way when one came must not move the checkpoint."""
        self._resets_seen = 0
        self._name = name
        self._sink = sink
        self._shard = shard
        self._cursor = cursor
        self._shard_name = shard.log.shard
        self._log_id = shard.log.log_id
        self._checkpoints = checkpoints

    @property
    def was_reset(self) -> bool:
        """Since the target was opened."""
        return self.resets != self._resets_seen

    async def load(self) -> bool:
        """Go on from what is kept; whether the sink is paused."""
        kept = await self._kept()
        if not self.resets:  # One that came before this answer goes before it.
            self.checkpoint = kept.sequence
        return kept.paused

    async def _kept(self) -> Checkpoint:
        return (await self._checkpoints.load(self._name, self._shard_name)).of(self._log_id)

    async def measure(self) -> bool:
        """Count what is behind the checkpoint; from here on every frame and every delivery is counted along.

        False when it has to be measured again, because of a reset that came meanwhile.
        """
        resets = self.resets
        return await self.distance.measure(self.checkpoint, lambda: resets == self.resets)

    async def agree(self, open_target: Callable[[], Awaitable[int | None]]) -> bool:
        """Open the target and go by what it knows of itself; whether what is behind has to be measured anew.

        Raises SinkUnusable when it has come further than the log, or what it has is not known.
        """
        resets, reset, before = self.resets, self.was_reset, self.checkpoint
        of_log: Callable[[str], None] | None = getattr(self._sink, "of_log", None)
        if of_log is not None:
            of_log(self._log_id)
        known = await open_target()
        found = await self._checkpoints.load(self._name, self._shard_name)
        kept = found.of(self._log_id)
        if found.sequence and kept is not found and known is None and not reset:
            raise self._of_another_log(found)
        # Whoever resets a sink has changed something about its target, perhaps emptied it or made holes in it.
        replaying = reset or before < kept.replay_to
        agreed = before
        if known is not None:
            agreed = max(min(known, before) if replaying else known, kept.skipped_to)
        # What an operator named need not be the number of an event.
        chosen = replaying or agreed == kept.skipped_to
        held = known if known is not None else 0 if chosen else agreed
        if max(held, agreed) > self._shard.last_sequence or (held and not await self._is_in_log(held)):
            # Waiting until the log gets there would silently leave out everything up to it, and where the log was
            # restored from before, the target would keep what never happened.
            raise SinkUnusable(
                f"{self._name} holds events up to {max(held, agreed)}, which the log of {self._shard_name}"
                f" (up to {self._shard.last_sequence}) does not have: one of them belongs to something else, or the log"
                " lost its end; empty the target or give it another place, then resume"
            )
        # Only now: what a target has of something else is no reason for the log to let go of what this sink lacks.
        if resets == self.resets:  # Else it is opened once more.
            self._resets_seen = resets
            self.checkpoint = agreed
        return reset or self.checkpoint != before

    def _of_another_log(self, found: Checkpoint) -> SinkUnusable:
        # To go on behind that number would leave out the beginning of this log, to begin with it may repeat things.
        return SinkUnusable(
            f"{self._name} has come to event {found.sequence} of another log, {found.log_id}, and keeps no account of"
            f" what it has of the one that {self._shard_name} has now; to deliver all of it:"
            f" omnirelay replication replay {self._name} --shard {self._shard_name}"
        )

    async def _is_in_log(self, sequence: int) -> bool:
        """Whether the log has an event of that number, or may have had it before it was trimmed.

        Raises SinkUnusable when it is another one than the target has.
        """
        try:
            found = await self._cursor.read(sequence - 1, 1, 1)
        except (LogTrimmed, LogDamaged):
            return True  # It is no longer there to be compared.
        if not found or found[0].sequence != sequence:
            return False
        event, newest = found[0], cast("Newest | None", getattr(self._sink, "newest", None))
        if newest is None or newest.sequence_number != sequence:
            return True
        if (newest.event_type, newest.timestamp) != (event.event_type, instant(event.timestamp)):
            raise SinkUnusable(
                f"{self._name} holds another event {sequence} than the log of {self._shard_name}: it belongs to"
                " something else; empty the target or give it another place, then resume"
            )
        return True

    async def confirm(self, done: Done, resets: int) -> None:
        """The target has these; `resets` as it was when they were read."""
        await self._checkpoints.save(self._name, self._shard_name, self._log_id, done.last, self._shard.now_ms())
        if resets == self.resets:  # One that came meanwhile is saved behind this one.
            self.checkpoint = done.last
            self.distance.take(done.count, done.last_ms)

    # -- operators -----------------------------------------------------------------------------

    async def reset(self, sequence: int) -> None:
        """Go on behind `sequence`. Raises InvalidArgument as `check_reset` does."""
        skipping = self.check_reset(sequence)
        self.resets += 1
        self.checkpoint = sequence
        self.distance.forget()
        now_ms, last = self._shard.now_ms(), self._shard.last_sequence
        replay_to = 0 if skipping else last
        await self._checkpoints.reset(
            self._name, self._shard_name, self._log_id, sequence, now_ms, skipping=skipping, replay_to=replay_to
        )

    def check_reset(self, sequence: int) -> bool:
        """Whether a reset would leave events out. Raises InvalidArgument when there cannot be one."""
        last = self._shard.last_sequence
        if not 0 <= sequence <= last:
            raise InvalidArgument(
                f"sequence must be between 0 and {last}, where the log of {self._shard_name} ends, got {sequence}",
                field="sequence",
                shard=self._shard_name,
                last=last,
            )
        skipping = sequence > self.checkpoint
        if skipping and not getattr(self._sink, "is_known", True):
            raise InvalidArgument(
                f"{self._name} was not opened yet, and whether it can leave out what is behind {self.checkpoint} is not"
                " known before: resume it first",
                field="sequence",
            )
        if skipping and self._sink.rebuilds_state:
            raise InvalidArgument(
                f"{self._name} rebuilds a state and cannot leave out what is behind {self.checkpoint}", field="sequence"
            )
        return skipping

    async def check_gap(self, sequence: int) -> None:
        """Raises InvalidArgument when the target takes nothing behind what a reset to `sequence` would leave out."""
        holds = self._holds()
        try:
            held = 0 if holds is None else await holds(self._shard_name)
        except SinkUnusable as error:
            raise InvalidArgument(
                f"whether {self._name} can leave out what is behind {self.checkpoint} cannot be found out:"
                f" {error.message}",
                field="sequence",
            ) from error
        if 0 < held < sequence:
            raise InvalidArgument(
                f"{self._name} holds the events of {self._shard_name} up to {held} and takes nothing behind a gap; to"
                f" go on without one: omnirelay replication reset {self._name} --shard {self._shard_name} --to {held};"
                f" to leave out what is between, pause it and move what it has of {self._shard_name} away, then reset"
                f" it to {sequence} and resume it",
                field="sequence",
            )

    def _holds(self) -> Callable[[str], Awaitable[int]] | None:
        return getattr(self._sink, "holds", None)

    # -- a log that was trimmed ------------------------------------------------------------------

    async def begin_later(self, error: LogTrimmed) -> bool:
        """Begin a new sink with the first event that is still there; false when it is not new, or needs them all."""
        kept, resets = await self._kept(), self.resets
        if self.checkpoint or not kept.untouched or self._sink.rebuilds_state:
            return False
        begins, now_ms = int(str(error.details["anchor"])), self._shard.now_ms()
        # What the target says of itself must not lead back to what is gone.
        await self._checkpoints.reset(self._name, self._shard_name, self._log_id, begins, now_ms, skipping=True)
        if resets == self.resets:
            self.checkpoint = begins
            # The follower counts what is behind it before it goes on.
            self.distance.forget()
            place = {"sink": self._name, "shard": self._shard_name}
            _log.warning("sink_begins_later", extra={**place, "sequence": begins + 1})
        return True

    def left_behind(self, error: LogTrimmed) -> SinkUnusable:
        """What to do about a log that no longer has what the sink has not got."""
        begins = error.details.get("anchor")
        lost = f"the log of {self._shard_name} begins after {begins}, {self._name} has come to {self.checkpoint}:"
        if self._sink.rebuilds_state:
            advice = (
                "it rebuilds a state and needs every event of it; restore its target from a backup that has come to"
                f" {begins} or further, then: omnirelay replication resume {self._name}"
            )
        elif self._holds() is not None:
            advice = (
                "what is between is gone from here, and it takes nothing behind a gap; restore its target from a backup"
                f" that has come to {begins} or further, then: omnirelay replication resume {self._name}; or move what"
                f" it has of {self._shard_name} away, then: omnirelay replication reset {self._name} --shard"
                f" {self._shard_name} --to {begins}"
            )
        else:
            advice = (
                "what is between is gone from here; restore the target from a backup, or leave it out:"
                # Without the shard it would skip events of every other one, too.
                f" omnirelay replication reset {self._name} --shard {self._shard_name} --to {begins}"
            )
        return SinkUnusable(f"{lost} {advice}")
