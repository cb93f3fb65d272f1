"""Frames a few at a time, for whoever does something with many of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from omnirelay.log.base import Frame


async def in_batches(frames: AsyncIterator[Frame], *, events_max: int, bytes_max: int) -> AsyncIterator[list[Frame]]:
    """Every frame once, in order. A batch ends with the frame that makes it as large as one of the two limits."""
    batch: list[Frame] = []
    events = size = 0
    async for frame in frames:
        batch.append(frame)
        events += frame.count
        size += len(frame.data)
        if events >= events_max or size >= bytes_max:
            yield batch
            batch, events, size = [], 0, 0
    if batch:
        yield batch
