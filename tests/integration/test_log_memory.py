"""The log in memory keeps the promise of a log, and its ordered faults are the ones a disk has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from omnirelay.errors import LogOutcomeUnknown, LogUnavailable
from omnirelay.log import EventLog, Frame, MemoryLog, MemoryStorage, Position, chain_of
from omnirelay.testing.conformance import EventLogConformance, Leader, LogStore, Region


class MemoryStore(LogStore):
    def __init__(self) -> None:
        self.storage = MemoryStorage.empty(self.shard)
        self.logs: list[MemoryLog] = []

    def open(self) -> MemoryLog:
        self.logs.append(MemoryLog(self.shard, storage=self.storage))
        return self.logs[-1]

    def rival(self) -> EventLog:
        return self.open()

    def crash(self, log: EventLog) -> None:
        """Nothing to do: a MemoryLog keeps nothing that its storage does not hold."""

    def damage(self, last: int, region: Region) -> None:
        frames = self.storage.frames
        index = next(index for index, frame in enumerate(frames) if frame.last == last)
        if region == "row":
            del frames[index]
        else:
            frames[index] = damaged(frames[index], region)

    @contextmanager
    def out_of_room(self) -> Iterator[None]:
        self.logs[-1].fail_next_append("definite")
        self.logs[-1].fail_next_append("definite")
        yield

    @contextmanager
    def failing_flush(self) -> Iterator[None]:
        self.logs[-1].fail_next_append("unknown-lost")
        yield

    def open_backup(self, path: Path) -> EventLog:
        return MemoryLog.from_backup(path)


def damaged(frame: Frame, region: Region) -> Frame:
    """The frame with one region altered."""
    match region:
        case "header":
            return msgspec.structs.replace(frame, data=frame.data.replace(b'"epoch":1', b'"epoch":2', 1))
        case "events":
            return msgspec.structs.replace(frame, data=frame.data.replace(b"orders", b"0rders", 1))
        case "chain":
            return msgspec.structs.replace(frame, chain=bytes([frame.chain[0] ^ 1]) + frame.chain[1:])
        case "first":
            return msgspec.structs.replace(frame, first=frame.first + 1)
        case "count":
            return msgspec.structs.replace(frame, count=frame.count - 1)
        case "epoch":
            return msgspec.structs.replace(frame, epoch=frame.epoch + 1)
        case "generation":
            return msgspec.structs.replace(frame, generation=frame.generation + 1)
        case "time":
            return msgspec.structs.replace(frame, time_ms=frame.time_ms + 1)
        case "row":
            raise AssertionError("a row is removed, not altered")


class TestMemoryLog(EventLogConformance):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


@pytest.mark.parametrize("kept", [True, False])
async def test_an_unknown_outcome_is_resolved_by_reopening(kept: bool) -> None:
    leader = await Leader.of(MemoryLog("shard"))
    log = leader.log
    assert isinstance(log, MemoryLog)
    frame = leader.frame()
    log.fail_next_append("unknown-kept" if kept else "unknown-lost")
    with pytest.raises(LogOutcomeUnknown):
        await leader.append(frame)
    with pytest.raises(LogOutcomeUnknown):
        await leader.append(frame)
    successor = await Leader.of(log.reopen())
    written = Position(frame.last, chain_of(leader.position.chain, frame.data))
    assert successor.position == (written if kept else leader.position)


async def test_a_definite_failure_lets_the_same_frame_through_next_time() -> None:
    leader = await Leader.of(MemoryLog("shard"))
    log = leader.log
    assert isinstance(log, MemoryLog)
    frame = leader.frame()
    log.fail_next_append("definite")
    with pytest.raises(LogUnavailable):
        await leader.append(frame)
    await leader.append(frame)
    assert leader.position.sequence == 3
