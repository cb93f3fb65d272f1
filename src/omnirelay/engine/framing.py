"""Making frames of what was decided: one, or several when one would be too large."""

from __future__ import annotations

from typing import Final

from msgspec.json import encode as encode_json

from omnirelay.core.events import Event, GenerationStarted
from omnirelay.core.state import State
from omnirelay.engine.requests import Batch
from omnirelay.log.base import FRAME_BYTES_MAX, EventLog, Frame
from omnirelay.log.frame import encode_frame

FRAME_HEADER_BYTES_MAX: Final = 8 * 1024
"""No header of a frame takes more; shard and log id are short."""

SCRATCH_EVENTS_MIN: Final = 64
"""Frames of fewer events are encoded as quickly without."""

SCRATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""What is kept between frames."""


class Framing:
    """Of one leader of one log."""

    def __init__(self, log: EventLog, epoch: int, state: State) -> None:
        self._log = log
        self._epoch = epoch
        self._state = state
        self._scratch = bytearray()

    def frames_of(self, batch: Batch, generation: int, now_ms: int) -> list[Frame]:
        """`generation` is the one before the batch; a frame bears the one after its last event."""
        frame = self._frame(batch.events, self._state.generation, now_ms)
        if len(frame.data) <= FRAME_BYTES_MAX:
            return [frame]
        return self._in_parts(batch, generation, now_ms)

    def _in_parts(self, batch: Batch, generation: int, now_ms: int) -> list[Frame]:
        """Split at the end of a command; every single command fits a frame by the limits on intake."""
        frames: list[Frame] = []
        start = part_end = 0
        part_bytes = FRAME_HEADER_BYTES_MAX
        for end in dict.fromkeys(batch.commands):
            command_bytes = len(encode_json(batch.events[part_end:end]))
            if part_bytes + command_bytes > FRAME_BYTES_MAX and part_end > start:
                frames.append(self._part(batch.events[start:part_end], generation, now_ms))
                generation = frames[-1].generation
                start, part_bytes = part_end, FRAME_HEADER_BYTES_MAX
            part_end = end
            part_bytes += command_bytes
        frames.append(self._part(batch.events[start:], generation, now_ms))
        return frames

    def _part(self, events: list[Event], generation: int, now_ms: int) -> Frame:
        started = [event.generation for event in events if type(event) is GenerationStarted]
        return self._frame(events, max(started, default=generation), now_ms)

    def _frame(self, events: list[Event], generation: int, now_ms: int) -> Frame:
        depth = (self._state.pending_count, self._state.leased.live)
        scratch = self._scratch if len(events) >= SCRATCH_EVENTS_MIN else None
        frame = encode_frame(self._log.shard, self._log.log_id, generation, self._epoch, now_ms, events, depth, scratch)
        if len(self._scratch) > SCRATCH_BYTES_MAX:
            self._scratch = bytearray()
        return frame
