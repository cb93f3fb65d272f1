"""A seeded script of commands through a real shard, and what it was told.

The script only knows what answers said. At rest (nothing undecided, nothing undurable) it notes the digest of
the live state: a recovery must come to the same one from the log alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeAlias

from omnirelay.core.answers import DrainAnswer, EnqueueAnswer, FailAnswer
from omnirelay.core.commands import Progress
from omnirelay.core.events import RestoredItem
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, OwnershipToken, Payload
from omnirelay.core.snapshot import digest
from omnirelay.engine.shard import Shard
from omnirelay.errors import OmniRelayError, Unavailable
from omnirelay.testing.clock import FakeClock, settle

OPTIONS = QueueOptions(
    lease_duration_ms=20_000,
    heartbeat_interval_ms=1_000,
    max_delivery_attempts=3,
    requeue_delay_ms=200,
    dead_letter_max=6,
    result_max=12,
)

Command: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Script:
    """Draws command after command. One object goes on over restarts of the shard."""

    def __init__(self, seed: int, *, company: float = 0.4) -> None:
        """`company` is how often several commands come at once."""
        self.random = Random(seed)
        self._company = company
        self.clock = FakeClock()
        self.commands = 0
        """How many were answered, refusals included."""
        self.acknowledged = 0
        """The last sequence the shard called durable when it answered."""
        self.digests: dict[int, str] = {}
        """Of the live state, by its sequence."""
        self.shard: Shard | None = None
        self.on_answer: Callable[[], None] = lambda: None
        self._tokens: list[OwnershipToken] = []
        self._drained: list[RestoredItem] = []
        self._dead: list[int] = []
        self._ids: list[int] = []
        self._lease_ids = 0

    def next_lease_id(self) -> str:
        self._lease_ids += 1
        return f"{self._lease_ids:08x}-0000-4000-8000-abcdefabcdef"

    @property
    def live(self) -> Shard:
        assert self.shard is not None, "no shard is open"
        return self.shard

    # -- running -------------------------------------------------------------------------------

    async def run(self, count: int) -> None:
        """Have `count` more commands answered, one at a time or several at once, with time going by."""
        end = self.commands + count
        while self.commands < end:
            await self.step(end - self.commands)

    async def step(self, commands_max: int) -> None:
        at_once = self.random.randint(2, 7) if self.random.random() < self._company else 1
        commands = [self.draw() for _ in range(min(at_once, commands_max))]
        outcomes = await asyncio.gather(*(self.answered(command) for command in commands), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        await self.rest()
        chance = self.random.random()
        if chance < 0.25:
            await self.clock.advance(self.random.randint(50, 3_000))
        elif chance < 0.29:
            await self.clock.advance(30_000)
        await self.rest()

    async def answered(self, command: Command) -> None:
        """Wait for the answer; raises Unavailable when there is none. A refusal is an answer too."""
        try:
            await command()
        except Unavailable:
            raise
        except OmniRelayError:
            pass
        self.commands += 1
        self.note()

    def note(self) -> None:
        self.acknowledged = max(self.acknowledged, self.live.last_sequence)
        self.on_answer()

    async def rest(self) -> None:
        """Wait until all that was decided is durable, and take down the state."""
        shard = self.live
        await settle(5)
        await shard.stats()
        while shard.state.sequence != shard.last_sequence:
            await settle(5)
            await shard.stats()
        self.note()
        self.digests[shard.last_sequence] = digest(shard.state)

    # -- commands ------------------------------------------------------------------------------

    def draw(self) -> Command:
        choices: list[tuple[float, Command]] = [
            (6, self._enqueue),
            (5, self._lease),
            (3, self._complete),
            (3, self._fail),
            (2, self._heartbeat),
            (1, self._release),
            (1, self._drain),
            (1, self._restore),
            (0.5, self._cancel),
            (0.5, self._redrive),
            (0.3, self._purge),
        ]
        (chosen,) = self.random.choices([call for _, call in choices], [weight for weight, _ in choices])
        return chosen

    def _item(self) -> NewItem:
        random = self.random
        return NewItem(
            payload=Payload(
                resource_type=random.choice(("table", "file", "topic")),
                resource_id=f"r{random.randint(1, 40)}",
                body=random.randbytes(random.choice((0, 20, 300, 3_000))),
            ),
            delay_ms=random.choice((None, None, 500, 5_000)),
        )

    async def _enqueue(self) -> None:
        count = self.random.choice((1, 1, 2, 5))
        items = [self._item() for _ in range(count)]
        answer: EnqueueAnswer = await self.live.enqueue(items if count > 1 else items[0], caller=self._caller())
        self._ids += [result.sequence_id for result in answer.results]

    async def _lease(self) -> None:
        leases = await self.live.lease(self._caller(), max_items=self.random.randint(1, 4))
        self._tokens += [lease.token for lease in leases]

    async def _complete(self) -> None:
        token = self._take_token()
        if token is None:
            await self._lease()
            return
        result = self.random.choice((None, b"done", self.random.randbytes(800)))
        follow_ups = [self._item()] if self.random.random() < 0.2 else None
        await self.live.complete(token, result=result, follow_ups=follow_ups)

    async def _fail(self) -> None:
        token = self._take_token()
        if token is None:
            await self._lease()
            return
        answer: FailAnswer = await self.live.fail(
            token, mode=self.random.choice(("retry", "retry", "release", "dead")), reason="broken", error_code="app"
        )
        if answer.state == "dead":
            self._dead.append(token.sequence_id)

    async def _heartbeat(self) -> None:
        if not self._tokens:
            await self._enqueue()
            return
        progress = Progress(fraction=self.random.randint(0, 10) / 10, message="going on")
        await self.live.heartbeat(self.random.choice(self._tokens), progress=progress)

    async def _release(self) -> None:
        token = self._take_token()
        if token is None:
            await self._enqueue()
            return
        await self.live.release(token, delay_ms=self.random.choice((None, 1_000)))

    async def _drain(self) -> None:
        answer: DrainAnswer = await self.live.drain(max_items=self.random.randint(1, 3))
        self._drained += answer.items

    async def _restore(self) -> None:
        if not self._drained:
            await self._drain()
            return
        items, self._drained = self._drained, []
        await self.live.restore(items)

    async def _cancel(self) -> None:
        if not self._ids:
            await self._enqueue()
            return
        await self.live.cancel(self.random.choice(self._ids[-20:]), reason="not needed")

    async def _redrive(self) -> None:
        if not self._dead:
            await self._fail()
            return
        await self.live.redrive(sequence_ids=[self._dead.pop()])

    async def _purge(self) -> None:
        await self.live.purge(everything=True)
        self._dead.clear()

    def _caller(self) -> Caller:
        return Caller(peer_id=f"worker-{self.random.randint(1, 3)}")

    def _take_token(self) -> OwnershipToken | None:
        if not self._tokens:
            return None
        return self._tokens.pop(self.random.randrange(len(self._tokens)))
