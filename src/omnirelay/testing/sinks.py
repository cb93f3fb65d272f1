"""What every sink has to hold to, as checks for the tests of whoever writes one.

    class TestMySink(SinkConformance):
        def make_sink(self, directory: Path) -> ReplicationSink:
            return MySink(directory / "target")

        async def read_back(self, directory: Path) -> list[int]:
            return [row.sequence for row in MySink.rows(directory / "target")]

The tests run with pytest and pytest-asyncio in auto mode.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from omnirelay.log.base import Frame
from omnirelay.log.frame import chain_of, genesis_chain, header_prefix
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.sinks import ReplicationSink

SHARD = "jobs"
LOG_ID = "made-by-the-conformance-suite"
GENERATION_JUMP = 1 << 32


def made_event(sequence: int, *, previous: int | None = None, event_type: str = "Enqueue") -> ReplicatedEvent:
    """An event as a log would give it; every seventh is of a type and with fields that nobody knows yet."""
    if sequence % 7 == 0 and event_type == "Enqueue":
        event_type = "FromTheFuture"
    stored = {
        "eventType": event_type,
        "sequenceNumber": sequence,
        "timestamp": 1_700_000_000_000 + sequence % GENERATION_JUMP,
        "sequenceId": sequence,
        "payload": {"resourceType": "table", "resourceId": f"orders-{sequence}", "body": ""},
        "peerId": "worker-1",
        "addedLater": {"nested": [1, 2.5, None, "ü"]},
    }
    return ReplicatedEvent(
        SHARD,
        sequence,
        sequence - 1 if previous is None else previous,
        event_type,
        1_700_000_000_000 + sequence % GENERATION_JUMP,
        msgspec.json.encode(stored),
        "local",
        pending=3,
        active=1,
    )


def made_events(count: int) -> list[ReplicatedEvent]:
    """The events 1 to `count`, and two more behind the jump of a new generation."""
    first = count + GENERATION_JUMP
    events = [
        *(made_event(sequence) for sequence in range(1, count + 1)),
        made_event(first, previous=count, event_type="GenerationStarted"),
        made_event(first + 1),
    ]
    chain = genesis_chain(SHARD, LOG_ID)
    framed = []
    for event in events:
        frame = _frame_of(event, chain)
        chain = frame.chain
        framed.append(msgspec.structs.replace(event, frame=frame))
    return framed


def _frame_of(event: ReplicatedEvent, chain: bytes) -> Frame:
    """The event as a commit of its own, linked to the one before it."""
    sequence, generation = event.sequence, 1 + event.sequence // GENERATION_JUMP
    frame = Frame(sequence, sequence, 1, 1, generation, event.timestamp, b"")
    data = b'%b%b],"pending":%d,"active":%d}' % (
        header_prefix(frame, SHARD, LOG_ID),
        event.data,
        event.pending or 0,
        event.active or 0,
    )
    return msgspec.structs.replace(frame, data=data, chain=chain_of(chain, data))


class SinkConformance:
    """Derive, and say how a sink is made and how its target is read."""

    __test__ = False

    def __init_subclass__(cls) -> None:
        cls.__test__ = True

    def make_sink(self, directory: Path) -> ReplicationSink:
        """A sink on the target that lies in `directory`; called again after every restart."""
        raise NotImplementedError

    async def read_back(self, directory: Path) -> Sequence[int]:
        """The sequences that the target holds, in its own order; repeated where it cannot tell repetitions."""
        raise NotImplementedError

    def expected(self, events: Sequence[ReplicatedEvent]) -> list[int]:
        """The sequences that the target holds after these; override when it leaves some out on purpose."""
        return [event.sequence for event in events]

    async def deliver(self, directory: Path, *batches: Sequence[ReplicatedEvent]) -> int | None:
        """Open, deliver, close; what the sink said when it opened."""
        sink = self.make_sink(directory)
        known = await sink.open(SHARD)
        try:
            for batch in batches:
                await sink.apply(batch)
        finally:
            await sink.close()
        return known

    async def held(self, directory: Path) -> list[int]:
        """What the target holds, each sequence once, where it first stands."""
        return list(dict.fromkeys(await self.read_back(directory)))

    async def test_it_takes_every_event_in_order(self, tmp_path: Path) -> None:
        events = made_events(20)
        await self.deliver(tmp_path, events[:7], events[7:8], events[8:])
        assert await self.held(tmp_path) == self.expected(events)

    async def test_what_comes_again_changes_nothing(self, tmp_path: Path) -> None:
        events = made_events(20)
        await self.deliver(tmp_path, events[:9], events[4:15], events[:3], events[:15], events[10:])
        assert await self.held(tmp_path) == self.expected(events)

    async def test_it_goes_on_where_it_was_after_a_restart(self, tmp_path: Path) -> None:
        events = made_events(20)
        last = 0
        for end in (5, 5, 12, len(events)):
            known = await self.deliver(tmp_path / "target", [])
            if known is not None:
                # A target that keeps no account is told by the checkpoint that is kept for it.
                last = known
            behind = [event for event in events[:end] if event.sequence > last]
            await self.deliver(tmp_path / "target", behind)
            last = events[end - 1].sequence
        assert await self.held(tmp_path / "target") == self.expected(events)

    async def test_an_account_of_its_own_never_says_too_much(self, tmp_path: Path) -> None:
        events = made_events(20)
        await self.deliver(tmp_path, events[:6])
        known = await self.deliver(tmp_path, [])
        assert known is None or known == events[5].sequence

    async def test_any_repetition_in_order_ends_the_same(self, tmp_path: Path) -> None:
        events = made_events(40)
        choice = random.Random(7)
        sink = self.make_sink(tmp_path)
        await sink.open(SHARD)
        done = 0
        while done < len(events):
            start = choice.randint(max(0, done - 10), done)
            end = min(len(events), start + choice.randint(1, 9))
            await sink.apply(events[start:end])
            done = max(done, end)
        await sink.close()
        assert await self.held(tmp_path) == self.expected(events)

    async def test_it_can_be_closed_twice_and_unopened(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        await sink.close()
        await sink.open(SHARD)
        await sink.close()
        await sink.close()

    async def test_it_can_be_opened_again(self, tmp_path: Path) -> None:
        events = made_events(20)
        sink = self.make_sink(tmp_path)
        for end in (8, len(events)):
            await sink.open(SHARD)
            await sink.apply(events[:end])
            await sink.close()
        assert await self.held(tmp_path) == self.expected(events)

    async def test_a_delivery_of_nothing_is_none(self, tmp_path: Path) -> None:
        await self.deliver(tmp_path, [])
        assert list(await self.read_back(tmp_path)) == []
