"""Everything a shard can be asked for, at once and from a seed, until somebody ends the process.

Producers, workers and an operator run as tasks of one event loop. The numbers they draw depend on the seed
and the round alone; how their calls interleave depends on the disk, which is the point.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from omnirelay.core import commands as cmd
from omnirelay.core.answers import GrantedLease
from omnirelay.core.events import FailMode
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, OwnershipToken, Payload
from omnirelay.core.snapshot import digest
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import OmniRelayError
from tests.crash.plan import Plan
from tests.crash.recorder import Recorder

OPTIONS = QueueOptions(
    lease_duration_ms=2_000,
    heartbeat_interval_ms=60,
    max_delivery_attempts=3,
    max_undelivered=2,
    requeue_delay_ms=4,
    retry_delay_max_ms=50,
)

SETTINGS = (
    EngineSettings(),
    EngineSettings(stage_events_min=2),
    EngineSettings(stage_events_min=2, frame_events_max=4),
)
"""The seed chooses: plain, with a frame decided behind the one in flight, and with calls cut in two by frames."""

PRODUCERS = 2
WORKERS = 4
PENDING_MAX = 60
"""Producers pause above this, so that items are seen through and not only piled up."""

MODES: tuple[FailMode, ...] = ("retry", "release", "dead")

T = TypeVar("T")

RAN_OUT = "error.taskqueue.lease_expired"


class Workload:
    def __init__(self, shard: Shard, recorder: Recorder, plan: Plan) -> None:
        self.shard = shard
        self.recorder = recorder
        self.plan = plan
        self.opened_at = shard.last_sequence
        self.known: deque[int] = deque(maxlen=50)
        """Items that the operator may want to look at or cancel."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(PRODUCERS):
                tasks.create_task(Producer(self, f"p{number}").run())
            for number in range(WORKERS):
                tasks.create_task(Worker(self, f"w{number}").run())
            tasks.create_task(Operator(self, "operator").run())
            tasks.create_task(self.go_on_with_held_leases())

    @property
    def over(self) -> bool:
        return self.recorder.acknowledged >= self.plan.acknowledgements_max or self.shard.failure is not None

    def random(self, name: str) -> Random:
        return Random(f"{self.plan.seed}/{self.plan.round}/{name}")

    async def call(
        self,
        operation: str,
        arguments: dict[str, Any],
        answer: Awaitable[T],
        describe: Callable[[T], dict[str, Any]],
    ) -> T | None:
        """Record the intention, wait, record the acknowledgement. None when it was refused or given up."""
        call = self.recorder.intend(operation, **arguments)
        try:
            outcome = await answer
        except OmniRelayError as error:
            self.recorder.refused(call, error, self.shard.now_ms())
            return None
        except TimeoutError:
            self.recorder.abandoned(call)
            return None
        self.recorder.done(call, **describe(outcome))
        return outcome

    async def go_on_with_held_leases(self) -> None:
        """A worker that outlived the shard: its lease must still be good, or have ended in the log."""
        random = self.random("held")
        for held in self.plan.held:
            token = OwnershipToken(held.sequence_id, held.attempt, held.lease_id, held.fence)
            if random.random() < 0.5:
                await self.heartbeat(token)
            if random.random() < 0.7:
                await self.complete(token, result=b"after a restart")

    # -- acknowledgements, used by workers and by leases from before -----------------------------

    async def heartbeat(self, token: OwnershipToken, progress: cmd.Progress | None = None) -> None:
        await self.call(
            "heartbeat",
            {"token": token},
            self.shard.heartbeat(token, progress=progress),
            lambda answer: {"extended": answer.extended, "expiresAt": answer.expires_at},
        )

    async def complete(
        self, token: OwnershipToken, result: bytes | None = None, follow_ups: list[NewItem] | None = None
    ) -> None:
        await self.call(
            "complete",
            {"token": token, "result": result, "items": described(follow_ups or [])},
            self.shard.complete(token, result=result, follow_ups=follow_ups),
            lambda answer: {"followUpIds": answer.follow_up_ids or []},
        )


class Producer:
    def __init__(self, workload: Workload, name: str) -> None:
        self.workload = workload
        self.random = workload.random(name)
        self.name = name
        self.made = 0

    async def run(self) -> None:
        workload, random = self.workload, self.random
        while not workload.over:
            if workload.shard.state.pending_count > PENDING_MAX:
                await asyncio.sleep(0.002)
                continue
            items = [self.item() for _ in range(random.choice((1, 1, 1, 2, 5)))]
            answer = await workload.call(
                "enqueue",
                {"items": described(items)},
                workload.shard.enqueue(items, caller=Caller(peer_id=self.name)),
                lambda answer: {"results": [[each.sequence_id, each.duplicate] for each in answer.results]},
            )
            if answer is not None:
                workload.known.extend(each.sequence_id for each in answer.results)
            if random.random() < 0.3:
                await asyncio.sleep(random.random() * 0.003)

    def item(self) -> NewItem:
        random = self.random
        if random.random() < 0.3:
            return self.repeatable_item()
        self.made += 1
        marker = f"{self.workload.plan.round}.{self.name}.{self.made}"
        delay = random.randint(1, 40) if random.random() < 0.2 else None
        return new_item(marker, body=b"x" * random.choice((0, 10, 3_000)), delay_ms=delay)

    def repeatable_item(self) -> NewItem:
        """An item under a request id that other producers and other rounds use as well."""
        random = self.random
        number = random.randint(1, 40 * self.workload.plan.round)
        if random.random() < 0.05:
            self.made += 1
            # Another payload under the same id: refused, unless it is the first to come.
            other = f"{self.workload.plan.round}.{self.name}.{self.made}.other"
            return new_item(other, request_id=f"request-{number}")
        return new_item(f"request-{number}", request_id=f"request-{number}")


class Worker:
    def __init__(self, workload: Workload, name: str) -> None:
        self.workload = workload
        self.random = workload.random(name)
        self.name = name
        self.caller = Caller(peer_id=name)
        self.made = 0

    async def run(self) -> None:
        while not self.workload.over:
            grants = await self.lease()
            if self.random.random() < 0.15 and grants:
                await self.acknowledge_together(grants)
            else:
                for grant in grants:
                    await self.work_on(grant)

    async def lease(self) -> list[GrantedLease]:
        random, shard = self.random, self.workload.shard
        self.made += 1
        request_id = f"{self.workload.plan.round}.{self.name}.{self.made}" if random.random() < 0.3 else None
        items_max = random.choice((1, 1, 3, 8))
        duration_ms = random.choice((15, 40, 1_500, 3_000, None))

        def answer() -> Awaitable[list[GrantedLease]]:
            call = shard.lease(
                self.caller,
                max_items=items_max,
                wait_ms=random.choice((0, 10, 40)),
                lease_duration_ms=duration_ms,
                request_id=request_id,
            )
            # Some callers go away while they wait; what they were granted goes back.
            return asyncio.wait_for(call, random.random() * 0.02) if random.random() < 0.1 else call

        arguments = {"peer": self.name, "requestId": request_id}
        grants = await self.workload.call("lease", arguments, answer(), describe_grants) or []
        if grants and request_id is not None and random.random() < 0.3:
            await self.workload.call("lease", arguments, answer(), describe_grants)
        return grants

    async def work_on(self, grant: GrantedLease) -> None:
        random, workload, token = self.random, self.workload, grant.token
        while random.random() < 0.3:
            progress = cmd.Progress(fraction=random.random()) if random.random() < 0.3 else None
            await workload.heartbeat(token, progress)
            await asyncio.sleep(random.random() * 0.02)
        draw = random.random()
        if draw < 0.5:
            follow_ups = self.follow_ups() if random.random() < 0.2 else None
            result = b"result of %d" % token.sequence_id if random.random() < 0.5 else None
            await workload.complete(token, result, follow_ups)
            if random.random() < 0.1:
                await workload.complete(token, result, follow_ups)
        elif draw < 0.75:
            mode: FailMode = random.choice(MODES)
            await workload.call(
                "fail",
                {"token": token, "mode": mode},
                workload.shard.fail(token, mode=mode, reason="drawn", delay_ms=random.choice((None, 5))),
                lambda answer: {"state": answer.state},
            )
        elif draw < 0.85:
            await workload.call(
                "release",
                {"token": token},
                workload.shard.release(token, delay_ms=random.choice((None, 5))),
                lambda answer: {"state": answer.state},
            )
        # Otherwise it is forgotten and runs out.

    def follow_ups(self) -> list[NewItem]:
        self.made += 1
        prefix = f"{self.workload.plan.round}.{self.name}.{self.made}.then"
        return [new_item(f"{prefix}{n}") for n in range(self.random.randint(1, 3))]

    async def acknowledge_together(self, grants: list[GrantedLease]) -> None:
        """The batch form: one call, an outcome for each."""
        recorder = self.workload.recorder
        commands: list[cmd.CompleteItem | cmd.ReleaseItem] = []
        calls: list[str] = []
        for grant in grants:
            if self.random.random() < 0.7:
                commands.append(cmd.CompleteItem(grant.token, result=b"in a batch"))
                calls.append(recorder.intend("complete", token=grant.token, result=b"in a batch", items=[]))
            else:
                commands.append(cmd.ReleaseItem(grant.token))
                calls.append(recorder.intend("release", token=grant.token))
        outcomes = await self.workload.shard.acknowledge(commands)
        for call, command, outcome in zip(calls, commands, outcomes, strict=True):
            if isinstance(outcome, OmniRelayError):
                recorder.refused(call, outcome, self.workload.shard.now_ms())
            elif isinstance(command, cmd.CompleteItem):
                recorder.done(call, followUpIds=outcome.follow_up_ids or [])
            else:
                recorder.done(call, state=outcome.state)


class Operator:
    """Looks, cancels, drains and restores, redrives, makes snapshots, trims and backs up."""

    def __init__(self, workload: Workload, name: str) -> None:
        self.workload = workload
        self.shard = workload.shard
        self.random = workload.random(name)

    async def run(self) -> None:
        workload, random, plan = self.workload, self.random, self.workload.plan
        choices: list[Callable[[], Awaitable[None]]] = [self.look, self.look, self.cancel, self.drain]
        choices += [self.redrive, self.tell_digest, self.tell_digest, self.tell_digest]
        if plan.trim:
            await self.trim()
        if plan.snapshots or plan.helper_snapshots:
            await self.snapshot()
            choices.append(self.snapshot)
        if plan.backup is not None:
            await workload.call("backup", {}, self.shard.log.backup(Path(plan.backup)), no_outcome)
        while not workload.over:
            await random.choice(choices)()
            await asyncio.sleep(random.random() * 0.004)

    async def look(self) -> None:
        if self.workload.known and self.random.random() < 0.7:
            sequence_id = self.random.choice(self.workload.known)
            await self.workload.call(
                "get",
                {"sequenceId": sequence_id},
                self.shard.get(sequence_id, wait_ms=self.random.choice((0, 5))),
                lambda view: {"state": view.state},
            )
        else:
            await self.workload.call(
                "stats", {}, self.shard.stats(), lambda stats: {"lastSequence": stats.last_sequence}
            )

    async def cancel(self) -> None:
        if self.workload.known:
            sequence_id = self.random.choice(self.workload.known)
            await self.workload.call(
                "cancel",
                {"sequenceId": sequence_id},
                self.shard.cancel(sequence_id, reason="drawn", force=self.random.random() < 0.3),
                lambda answer: {"success": answer.success, "state": answer.state},
            )

    async def drain(self) -> None:
        page = await self.workload.call(
            "drain",
            {},
            self.shard.drain(max_items=self.random.randint(1, 4)),
            lambda answer: {"ids": [item.sequence_id for item in answer.items]},
        )
        if page is None or not page.items:
            return
        await self.workload.call(
            "restore",
            {"ids": [item.sequence_id for item in page.items]},
            self.shard.restore(page.items),
            lambda answer: {"restored": answer.restored_count, "duplicates": answer.duplicate_count},
        )

    async def redrive(self) -> None:
        await self.workload.call("redrive", {}, self.shard.redrive(everything=True), lambda count: {"count": count})

    async def tell_digest(self) -> None:
        """The digest of the live state, at a moment when all of it is durable."""
        state = self.shard.state
        if state.sequence == self.shard.last_sequence:
            ran_out = sum(
                item.trail is not None and item.trail.last_error is not None and item.trail.last_error.code == RAN_OUT
                for item in state.items.values()
            )
            self.workload.recorder.say("digest", sequence=state.sequence, digest=digest(state), ran_out=ran_out)

    async def snapshot(self) -> None:
        await self.workload.call("snapshot", {}, self.shard.snapshot(), no_outcome)

    async def trim(self) -> None:
        snapshots = await self.shard.log.snapshots()
        if len(snapshots) > 1 and snapshots[1].sequence < self.workload.opened_at:
            await self.workload.call("trim", {}, self.shard.trim(retention_ms=0), no_outcome)


def new_item(marker: str, *, body: bytes = b"", request_id: str | None = None, delay_ms: int | None = None) -> NewItem:
    """The marker tells in the log which call an item came from."""
    payload = Payload(resource_type="table", resource_id=marker, body=body, request_id=request_id)
    return NewItem(payload=payload, delay_ms=delay_ms)


def described(items: list[NewItem]) -> list[dict[str, str | None]]:
    return [{"marker": item.payload.resource_id, "requestId": item.payload.request_id} for item in items]


def describe_grants(grants: list[GrantedLease]) -> dict[str, Any]:
    return {"grants": [{"token": grant.token, "expiresAt": grant.expires_at} for grant in grants]}


def no_outcome(_: object) -> dict[str, Any]:
    return {}
