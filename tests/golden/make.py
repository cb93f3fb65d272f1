"""Makes the golden log of this schema version, once, and never again for a version that was released:

    PYTHONPATH=src python -m tests.golden.make

The files in `v1` are what that run left: a closed log with its witness and a snapshot, and what a replay must
give (`expected.json`). A later version must read them as they are.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from omnirelay.core.answers import GrantedLease
from omnirelay.core.commands import Progress
from omnirelay.core.items import STATE_NAMES
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import Caller, NewItem, OwnershipToken, Payload
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.engine.recovery import rebuild
from omnirelay.engine.shard import Shard
from omnirelay.engine.snapshotter import make_snapshot
from omnirelay.log.frame import decode_frame
from omnirelay.log.sqlite import SqliteLog
from omnirelay.testing.clock import FakeClock, settle

NAMESPACE: Final = "golden"
DIRECTORY: Final = Path(__file__).parent / "v1"
KEPT: Final = ("leases.db", "leases.witness", "snapshots")

WORKER: Final = Caller(peer_id="worker-1")
TRUSTED: Final = Caller(principal="spiffe://example/loader", peer_id="worker-2")

OPTIONS: Final = QueueOptions(
    lease_duration_ms=20_000,
    heartbeat_interval_ms=1_000,
    max_delivery_attempts=2,
    max_undelivered=1,
    requeue_delay_ms=400,
    result_max=6,
)

GATED: Final = QueueOptions(
    lease_duration_ms=15_000,
    result_max=6,
    ordering="exclusive",
    tenant_weights={"a": 3},
    limits=[Limit(by="type", match="view*", max=2), Limit(by="tenant", match="b", max=1)],
    starvation_every=4,
    starvation_after_ms=100,
    high_watermark=40,
    low_watermark=30,
    backpressure_cooldown_ms=500,
)


class Maker:
    """One shard after another on one log, each leaving events of several kinds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / NAMESPACE
        self.clock = FakeClock()
        self._lease_ids = 0

    def next_lease_id(self) -> str:
        self._lease_ids += 1
        return f"{self._lease_ids:08x}-0000-4000-8000-abcdefabcdef"

    async def make(self) -> None:
        shard = await self._open(OPTIONS)
        await self._work(shard)
        await self._let_leases_end(shard)
        await self._move_items(shard)
        await shard.close()

        # A log whose witness is gone is not proven complete: the next leader starts a generation.
        (self.home / "leases.witness").unlink()
        await self.clock.advance(5_000)
        shard = await self._open(OPTIONS)
        await self._handle_dead_letters(shard)
        await self._cancel(shard)
        await self._snapshot(shard)
        await shard.change_options(GATED, caller=TRUSTED)
        await self._close_gates(shard)
        await self._leave_one_of_each(shard)
        await shard.close()

    async def _open(self, options: QueueOptions) -> Shard:
        log = SqliteLog.open(self.directory, NAMESPACE)
        return await Shard.open(log, options=options, owner="maker", clock=self.clock, ids=self.next_lease_id)

    # -- kinds of events -----------------------------------------------------------------------

    async def _work(self, shard: Shard) -> None:
        await shard.enqueue(
            [_item(f"orders-{number}", body=bytes(range(number * 10))) for number in range(6)], caller=WORKER
        )
        await shard.enqueue(
            _item("größe", request_id="once", attributes={"tenant": "a", "trace": "b3"}, partition_key="p"),
            caller=TRUSTED,
        )
        first, second, third = await self._leases(shard, 3)
        progress = Progress(fraction=0.5, message="half", data={"rows": [1, 2]})
        await self.clock.advance(2_000)
        await shard.heartbeat(first.token, caller=WORKER, progress=progress)
        await shard.complete(
            first.token, caller=WORKER, result=b'{"rows":3}', result_encoding="application/json",
            follow_ups=[_item("orders-follow-up"), _item("later", delay_ms=5_000)],
        )  # fmt: skip
        await shard.fail(
            second.token, caller=WORKER, reason="no such file", error_code="io.missing", metadata={"try": "1"}
        )
        await shard.release(third.token, caller=WORKER)
        await asyncio.gather(*(shard.enqueue(_item(f"at-once-{number}")) for number in range(5)))

    async def _let_leases_end(self, shard: Shard) -> None:
        seen, unseen = await self._leases(shard, 2)
        await self.clock.advance(1_500)
        await shard.heartbeat(seen.token, caller=WORKER)
        await self._pass(shard, 60_000)
        await shard.cancel(unseen.sequence_id, force=True)

    async def _move_items(self, shard: Shard) -> None:
        drained = await shard.drain(max_items=4, caller=TRUSTED)
        await shard.restore(drained.items[:3], caller=TRUSTED)
        # From another log whose fences were higher: the numbering jumps past them.
        token = OwnershipToken(drained.items[3].sequence_id, 1, "f" * 32, 50_000_000_000)
        drained.items[3].last_ownership_token = token
        await shard.restore(drained.items[3:])

    async def _handle_dead_letters(self, shard: Shard) -> None:
        dead = await self._leases(shard, 4)
        for lease in dead:
            await shard.fail(lease.token, mode="dead", reason="cannot be read", error_code="app.bad")
        await shard.edit(dead[0].sequence_id, Payload(resource_type="table", resource_id="mended", body=b"\0\xff"))
        await shard.redrive(sequence_ids=[dead[0].sequence_id])
        await shard.redrive(sequence_ids=[dead[1].sequence_id], rate_per_second=0.5)
        await shard.purge(sequence_ids=[dead[2].sequence_id], caller=TRUSTED)

    async def _cancel(self, shard: Shard) -> None:
        (lease,) = await self._leases(shard, 1)
        await shard.cancel(lease.sequence_id, reason="not needed", caller=TRUSTED)
        await shard.heartbeat(lease.token)
        await shard.fail(lease.token, reason="stopped")
        pending = await shard.enqueue(_item("not-needed"))
        await shard.cancel(pending.results[0].sequence_id)

    async def _snapshot(self, shard: Shard) -> None:
        assert isinstance(shard.log, SqliteLog)
        record = await make_snapshot(shard.log, self.clock.wall_ms())
        await shard.log.add_snapshot(record, shard.epoch)

    async def _close_gates(self, shard: Shard) -> None:
        """Turns taken, limits and keys held, pauses of every kind, and intake closed and open again."""
        fresh = [
            NewItem(
                payload=Payload(
                    resource_type=kind, resource_id=f"{kind}-{number % 5}", attributes={"tenant": "abc"[number % 3]}
                ),
                priority=number % 4 + 3,
            )
            for kind in ("view-daily", "shard")
            for number in range(20)
        ]
        await shard.enqueue(fresh)
        await shard.pause(resource_type="shard", reason="moving", until_ms=shard.now_ms() + 90_000, caller=TRUSTED)
        await shard.pause(tenant="c", intake=True)
        await self._pass(shard, 1_000)
        for _ in range(3):
            for lease in await shard.lease(WORKER, max_items=3):
                await shard.complete(lease.token)
        await shard.pause()
        await shard.resume()
        for item in (await shard.peek(state="ready", resource_type="shard", max_items=100)).items:
            if item.sequence_id % 5:
                await shard.cancel(item.sequence_id)
        await self._pass(shard, 1_000)

    async def _leave_one_of_each(self, shard: Shard) -> None:
        """Items in every state are in the digest."""
        await shard.enqueue([_item(f"last-{number}", priority=number) for number in range(8)])
        await shard.enqueue(_item("much-later", delay_ms=86_400_000, max_attempts=9, weight=3))
        for lease in (await self._leases(shard, 7))[2:]:
            await shard.complete(lease.token, result=b"done")
        await self._pass(shard, 1_000)

    # -- driving -------------------------------------------------------------------------------

    async def _leases(self, shard: Shard, count: int) -> list[GrantedLease]:
        leases = await shard.lease(WORKER, max_items=count, request_id=f"call-{self._lease_ids}")
        assert len(leases) == count, "not enough is ready"
        return leases

    async def _pass(self, shard: Shard, ms: int) -> None:
        await self.clock.advance(ms)
        await shard.stats()
        await settle()


def _item(resource_id: str, *, delay_ms: int | None = None, **fields: Any) -> NewItem:
    beside = {name: fields.pop(name) for name in ("priority", "weight", "max_attempts") if name in fields}
    return NewItem(
        payload=Payload(resource_type="table", resource_id=resource_id, **fields), delay_ms=delay_ms, **beside
    )


async def describe(directory: Path) -> dict[str, Any]:
    """What a log holds, in the form of `expected.json`."""
    log = SqliteLog.open(directory, NAMESPACE, read_only=True)
    report = await log.verify()
    state: State = (await rebuild(log)).state
    events: Counter[str] = Counter()
    async for frame in log.read():
        events.update(type(event).__name__ for event in decode_frame(frame, shard=log.shard, log_id=log.log_id))
    await log.close()
    return {
        "shard": log.shard,
        "logId": log.log_id,
        "lastSequence": report.position.sequence,
        "chain": report.position.chain.hex(),
        "generation": report.generation,
        "frames": report.frames,
        "snapshots": report.snapshots,
        "digest": digest(state),
        "items": dict(sorted(Counter(STATE_NAMES[item.state] for item in state.items.values()).items())),
        "events": dict(sorted(events.items())),
    }


def main(destination: Path = DIRECTORY) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        maker = Maker(Path(temporary))
        asyncio.run(maker.make())
        expected = asyncio.run(describe(maker.directory))
        shutil.rmtree(destination, ignore_errors=True)
        destination.mkdir(parents=True)
        for name in KEPT:
            source = maker.home / name
            if source.is_dir():
                shutil.copytree(source, destination / name)
            else:
                shutil.copy(source, destination / name)
        (destination / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    main()
