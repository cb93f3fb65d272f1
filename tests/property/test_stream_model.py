"""Streams against a model: pushes, begins, acknowledgements, drops and reconnects in any order, on a real node.

After every step the node must come to exactly what the model says: which items are ready, which are leased, at which
attempt and under which lease. So a drop releases what was not begun, all of it, nothing else, and burns no attempt; no
lease is lost; and in the end no item was completed twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from omnirelay.client.client import Client
from omnirelay.core.options import QueueOptions
from tests.integration.nodes import Http, running_node
from tests.integration.stream_peers import ITEM, Message, Peer, ack, connected, token_of
from tests.property.strategies import profile

OPTIONS = QueueOptions(max_delivery_attempts=1_000, max_undelivered=1_000)
STREAMS_MAX = 3
SETTLE_S = 10.0

Step = tuple[str, int, int]
OPERATIONS = (
    "enqueue",
    "connect",
    "credit",
    "withdraw",
    "begin",
    "heartbeat",
    "complete",
    "fail",
    "release",
    "elsewhere",
    "stale",
    "drop",
    "adopt",
    "cancel",
)
STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7), st.integers(0, 3)), max_size=40)


@dataclass
class Stream:
    peer: Peer
    credit: int
    pushed: int = 0


@dataclass
class Held:
    """A lease as the model knows it; `stream` is None for one whose connection is gone."""

    lease: Message
    stream: Stream | None
    begun: bool = False


@dataclass
class Model:
    http: Http
    url: str
    streams: list[Stream] = field(default_factory=list)
    ready: dict[int, int] = field(default_factory=dict)
    """Attempts by item."""
    held: dict[int, Held] = field(default_factory=dict)
    ended: list[Message] = field(default_factory=list)
    """Leases that are over."""
    until: float = 0.0
    """When the node must have come to where the model is."""

    # -- steps ---------------------------------------------------------------------------------

    async def step(self, name: str, which: int, much: int) -> None:
        do: Callable[[int, int], Coroutine[Any, Any, None]] = getattr(self, name)
        await do(which, much)
        await self.settle()

    async def enqueue(self, which: int, much: int) -> None:
        answer = await self.http.call("enqueue", {"items": [ITEM] * (much + 1)})
        for each in answer["results"]:
            self.ready[each["sequenceId"]] = 1

    async def connect(self, which: int, much: int) -> None:
        if len(self.streams) < STREAMS_MAX:
            peer = await connected(self.url, form=("json", "msgpack")[which % 2])
            await peer.open(credit=much, peer_id="peer")
            self.streams.append(Stream(peer, much))

    async def credit(self, which: int, much: int) -> None:
        if self.streams:
            stream = self.streams[which % len(self.streams)]
            stream.credit += much
            await stream.peer.send({"credit": much})

    async def withdraw(self, which: int, much: int) -> None:
        """And more credit with it, or none."""
        if self.streams:
            stream = self.streams[which % len(self.streams)]
            stream.credit = stream.pushed + much
            await stream.peer.send({"withdraw": True, "credit": much})

    async def begin(self, which: int, much: int) -> None:
        held = self._pick(which, lambda each: each.stream is not None and not each.begun)
        if held is not None and held.stream is not None:
            held.begun = True
            await held.stream.peer.send({"begin": [token_of(held.lease)]})

    async def heartbeat(self, which: int, much: int) -> None:
        held = self._pick(which, lambda each: each.stream is not None)
        if held is not None and held.stream is not None:
            [result] = await held.stream.peer.acknowledge(ack("heartbeat", held.lease))
            assert result["success"], result

    async def complete(self, which: int, much: int) -> None:
        await self._end(which, "complete")

    async def fail(self, which: int, much: int) -> None:
        await self._end(which, "fail")

    async def release(self, which: int, much: int) -> None:
        await self._end(which, "release")

    async def _end(self, which: int, verb: str) -> None:
        held = self._pick(which, lambda each: each.stream is not None)
        if held is not None and held.stream is not None:
            self._over(held, verb)
            [result] = await held.stream.peer.acknowledge(ack(verb, held.lease))
            assert result["success"], result

    async def elsewhere(self, which: int, much: int) -> None:
        """Acknowledged by another connection than the one that holds it."""
        held = self._pick(which, lambda each: True)
        if held is not None:
            verb = ("complete", "fail", "release", "complete")[much]
            self._over(held, verb)
            request = {"ownershipToken": token_of(held.lease), "peerId": "peer"}
            assert (await self.http.call(verb, request))["success"]

    async def stale(self, which: int, much: int) -> None:
        """A token whose lease is over changes nothing, whatever the answer."""
        if self.ended and self.streams:
            lease = self.ended[which % len(self.ended)]
            stream = self.streams[much % len(self.streams)]
            await stream.peer.send({"begin": [token_of(lease)]})
            assert await stream.peer.told("lost") == [token_of(lease)]
            await stream.peer.acknowledge(ack("complete", lease), ack("release", lease))

    async def drop(self, which: int, much: int) -> None:
        if not self.streams:
            return
        stream = self.streams.pop(which % len(self.streams))
        if much % 2:
            stream.peer.drop()
        else:
            await stream.peer.close()
        # What was on its way to the peer counts as not begun, like everything else that it did not begin.
        for held in [each for each in self.held.values() if each.stream is stream]:
            held.stream = None
            if not held.begun:
                self._over(held, "release")

    async def adopt(self, which: int, much: int) -> None:
        """After a reconnect: a lease of a stream that is gone, or that is dead and the node does not know yet."""
        held = self._pick(which, lambda each: True)
        if held is not None and self.streams:
            held.begun = True
            held.stream = self.streams[much % len(self.streams)]
            await held.stream.peer.send({"begin": [token_of(held.lease)]})

    async def cancel(self, which: int, much: int) -> None:
        held = self._pick(which, lambda each: each.stream is not None)
        if held is not None and held.stream is not None:
            self._over(held, "complete")
            await self.http.call("cancel", {"sequenceId": held.lease["sequenceId"], "force": True})
            assert await held.stream.peer.told("lost") == [token_of(held.lease)]

    # -- what it knows -------------------------------------------------------------------------

    def _pick(self, which: int, fits: Callable[[Held], bool]) -> Held | None:
        fitting = [each for _, each in sorted(self.held.items()) if fits(each)]
        return fitting[which % len(fitting)] if fitting else None

    def _over(self, held: Held, verb: str) -> None:
        sequence_id: int = held.lease["sequenceId"]
        del self.held[sequence_id]
        self.ended.append(held.lease)
        if verb != "complete":
            self.ready[sequence_id] = held.lease["attempt"] + (verb == "fail")

    def take_pushed(self) -> None:
        for stream in self.streams:
            inbox, stream.peer.inbox = stream.peer.inbox, []
            for message in inbox:
                assert set(message) <= {"leases", "clock"}, message
                for lease in message["leases"]:
                    sequence_id = lease["sequenceId"]
                    assert self.ready.pop(sequence_id, None) == lease["attempt"], (lease, self.held.get(sequence_id))
                    self.held[sequence_id] = Held(lease, stream)
                    stream.pushed += 1
            assert stream.pushed <= stream.credit, "more was pushed than there was credit for"

    # -- what the node knows -------------------------------------------------------------------

    async def settle(self) -> None:
        """Until the node is where the model is."""
        difference: Any = None
        for _ in range(10_000):
            for stream in self.streams:
                await stream.peer.round_trip()
            self.take_pushed()
            difference = await self._difference()
            if difference is None:
                return
            if asyncio.get_running_loop().time() > self.until:
                break
        raise AssertionError(difference)

    async def _difference(self) -> Any:
        ready = {item["sequenceId"]: item["attempt"] for item in (await self.http.call("peek"))["items"]}
        leased = {
            item["sequenceId"]: item["ownershipToken"]["leaseId"]
            for item in (await self.http.call("peek", {"state": "leased"}))["items"]
        }
        held = {sequence_id: token_of(each.lease)["leaseId"] for sequence_id, each in self.held.items()}
        if (ready, leased) != (self.ready, held):
            return {"ready": (ready, self.ready), "leased": (leased, held)}
        if ready and any(stream.pushed < stream.credit for stream in self.streams):
            return "items are ready and there is credit, but nothing is pushed"
        return None


async def follow(steps: list[Step]) -> None:
    async with running_node(options=OPTIONS) as node, Http(node) as http, Client(node.url) as client:
        model = Model(http, node.url)
        for name, which, much in steps:
            model.until = asyncio.get_running_loop().time() + SETTLE_S
            await model.step(name, which, much)
        while model.streams:
            model.until = asyncio.get_running_loop().time() + SETTLE_S
            await model.step("drop", 0, 0)
        events = [event async for event in client.watch(1, until_caught_up=True)]
        completed = Counter(event["ownership"]["sequenceId"] for event in events if event["eventType"] == "Completed")
        assert set(completed.values()) <= {1}


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_streams_do_what_the_model_says(run: Any) -> None:
    @profile(20)
    @example(
        [("enqueue", 0, 3), ("connect", 0, 3), ("begin", 0, 0), ("drop", 0, 1), ("connect", 0, 2), ("adopt", 0, 0)]
    )
    @example([("connect", 0, 3), ("enqueue", 0, 3), ("heartbeat", 0, 0), ("elsewhere", 0, 2), ("drop", 0, 0)])
    @example([("connect", 0, 3), ("enqueue", 0, 1), ("connect", 0, 0), ("adopt", 0, 1), ("drop", 0, 0)])
    @example([("connect", 0, 3), ("withdraw", 0, 0), ("enqueue", 0, 3), ("withdraw", 0, 2), ("drop", 0, 0)])
    @example([("enqueue", 0, 2), ("connect", 0, 3), ("withdraw", 0, 0), ("release", 0, 0), ("credit", 0, 1)])
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        run(follow(steps))

    check()
