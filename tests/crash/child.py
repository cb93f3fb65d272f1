"""The process that is killed: a shard on a real log, under load, telling its parent what was acknowledged.

python -m tests.crash.child '{"directory": "/tmp/x", "seed": 1}'
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec

from omnirelay.core.snapshot import digest
from omnirelay.engine import shard as engine
from omnirelay.engine.shard import Shard
from omnirelay.engine.snapshotter import make_snapshot
from omnirelay.errors import OmniRelayError
from omnirelay.log import failpoints
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.redo_file import RedoPlan
from tests.crash import variants, volatile
from tests.crash.plan import NAMESPACE, Plan
from tests.crash.recorder import Recorder
from tests.crash.workload import OPTIONS, SETTINGS, Workload

REDO = RedoPlan(after_frames=10, half_bytes=256 * 1024, settle_bytes=64 * 1024, settle_s=0.005)
"""A redo file early, and settled often: most runs end in one."""


def die_at(name: str, hit: int) -> None:
    """Have the kernel end this process at the n-th hit of a failpoint, without any chance to clean up."""
    passed = 0

    def count() -> None:
        nonlocal passed
        passed += 1
        if passed == hit:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.arm(name, count)


def open_log(plan: Plan) -> SqliteLog:
    return SqliteLog.open(plan.path, NAMESPACE, vfs=plan.vfs, synchronous=cast(Any, plan.synchronous), redo=REDO)


async def main(plan: Plan) -> None:
    recorder = Recorder(plan.round)
    try:
        log = open_log(plan)
        settings = SETTINGS[plan.seed % len(SETTINGS)]
        shard = await Shard.open(log, options=OPTIONS, settings=settings, owner=f"child-{plan.round}")
    except OmniRelayError as error:
        recorder.say("refused_to_open", code=error.code)
        return
    state = shard.state
    leases: dict[str, Any] = {
        str(item.sequence_id): [item.lease.token.lease_id, item.lease.token.fence, item.lease.deadline]
        for item in state.items.values()
        if item.lease is not None
    }
    recorder.say("opened", sequence=state.sequence, digest=digest(state), leases=leases)
    if plan.failpoint != "log.witness.written":
        failpoints.arm("log.witness.written", lambda: recorder.say("witness"))
    await Workload(shard, recorder, plan).run()
    if shard.failure is not None:
        raise shard.failure
    await shard.close()
    recorder.say("closed")


if __name__ == "__main__":
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    if plan.vfs is not None:
        disk = volatile.VolatileVFS(plan.vfs)  # Registered for as long as this name stands.
    if plan.variant is not None:
        cast(Callable[[], None], getattr(variants, plan.variant))()
    if not plan.helper_snapshots:
        variants.replace(engine, "make_snapshot_in_helper", lambda log, created_ms, **_: make_snapshot(log, created_ms))
    if plan.failpoint is not None:
        die_at(plan.failpoint, plan.failpoint_hit)
    asyncio.run(main(plan))
