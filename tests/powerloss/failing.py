"""A script run on a disk that fails on the way, by an operator who mends it and starts the shard again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import msgspec
import pytest

from omnirelay.core.payload import NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.errors import LogOutcomeUnknown, LogUnavailable, NotFound, Unavailable
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.redo_file import RedoPlan
from omnirelay.testing.disk import Disk, Outcome, Rearranged, RecordingVFS
from tests.powerloss.conftest import REDO
from tests.powerloss.recording import NAMESPACE, Known, Recording, check, noting_witnesses, replayed
from tests.powerloss.script import OPTIONS, Script

RETRY_MS: Final = 100
"""How often a shard tries a refused frame again; the default of the engine's settings."""

STARTS_MAX: Final = 12

SPIN_S: Final = 120
"""Far more than a try takes; a shard that wakes itself up again and again lets no time go by at all."""

T = TypeVar("T")


class Story(msgspec.Struct):
    """What happened to a shard on a failing disk."""

    stalls: int = 0
    """How often intake was found closed because a frame was refused for now."""
    given_up: int = 0
    """How often the shard was given up."""
    copies: int = 0
    """How often a start went through a copy of the log."""
    refused_starts: int = 0


class FailingDisk:
    """Runs a script to its end whatever the disk does, and then holds the log to what was acknowledged.

    A disk that keeps failing is mended before a log is closed: SQLite keeps a failure to itself while it
    closes, but apsw hands on an exception that a VFS in Python raised.
    """

    def __init__(
        self,
        directory: Path,
        vfs: RecordingVFS,
        seed: int,
        *,
        patience: int = 0,
        redo: RedoPlan | None = REDO,
        mend: Callable[[RecordingVFS], None] = RecordingVFS.heal,
    ) -> None:
        """`patience`: how many more tries in vain the operator waits for before mending the disk."""
        self.story = Story()
        self.script = Script(seed, company=0.6)
        self.vfs = vfs
        self._directory = directory
        self._home = directory / NAMESPACE
        self._patience = patience
        self._redo = redo
        self._mend = mend
        self._log_id = ""
        self._witnesses: list[tuple[int, int, bytes]] = []
        self._known: dict[int, Known] = {}
        self._grave = (0, 0)
        """Where the shard was last given up, and what it had acknowledged."""

    async def run(self, commands: int) -> Story:
        with noting_witnesses(self.vfs, self._home / "leases.witness", self._witnesses):
            while self.script.commands < commands:
                shard = await self._start()
                waiter = await self._waiter(shard)
                while self.script.commands < commands and shard.failure is None:
                    await self._step(shard, commands - self.script.commands)
                if isinstance(shard.failure, LogOutcomeUnknown):
                    await self._bury(shard, waiter)
                waiter.cancel()
            position = self.vfs.position
            if self.vfs.lasting:
                self.vfs.heal()
            await self.script.live.close()
            await self._visit()
        await self._settle_accounts(position)
        return self.story

    # -- starting ------------------------------------------------------------------------------

    async def _start(self) -> Shard:
        for _ in range(STARTS_MAX):
            suspect = (self._home / "leases.suspect").exists()
            copies = len(list(self._home.glob("leases.db.suspect-?")))
            try:
                shard = await self._open()
            except (LogUnavailable, LogOutcomeUnknown):
                self.story.refused_starts += 1
                self._mend(self.vfs)
                continue
            assert not (self._home / "leases.suspect").exists()
            assert len(list(self._home.glob("leases.db.suspect-?"))) == copies + suspect
            self.story.copies += suspect
            self.script.shard = shard
            return shard
        raise AssertionError("the shard does not start on a disk that works again")

    async def _open(self) -> Shard:
        log = SqliteLog.open(self._directory, NAMESPACE, vfs=self.vfs.name, redo=self._redo)
        assert self._log_id in ("", log.log_id) or self.script.acknowledged == 0
        self._log_id = log.log_id
        try:
            script = self.script
            return await Shard.open(log, options=OPTIONS, clock=script.clock, ids=script.next_lease_id)
        except BaseException:
            room_bytes = self.vfs.room_bytes
            self.vfs.heal()
            await log.close()
            self.vfs.room_bytes = room_bytes
            raise

    # -- running -------------------------------------------------------------------------------

    async def _step(self, shard: Shard, commands_max: int) -> None:
        try:
            await self._through(shard, self.script.step(commands_max))
        except Unavailable:
            # It came while intake was closed, or the shard was given up. After a stall the shard goes on.
            while shard.failure is not None and not isinstance(shard.failure, LogOutcomeUnknown):
                await self._wait_out(shard)

    async def _through(self, shard: Shard, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a call while the shard may stall."""
        task = asyncio.ensure_future(call)
        while not task.done():
            if shard.failure is not None:
                await self._wait_out(shard)
            await asyncio.sleep(0)
        return task.result()

    async def _wait_out(self, shard: Shard) -> None:
        """The shard cannot write: find intake closed, then let it try again, on a mended disk or not yet."""
        if isinstance(shard.failure, LogOutcomeUnknown):
            return
        self.story.stalls += 1
        with pytest.raises(LogUnavailable) as refused:
            await shard.enqueue(NewItem(payload=Payload(resource_type="table", resource_id="probe")))
        assert refused.value.code == "error.resourcelease.log_unavailable"
        assert refused.value.retry_after_ms is not None
        if self._patience > 0:
            self._patience -= 1
        else:
            self._mend(self.vfs)
        async with asyncio.timeout(SPIN_S):
            await self.script.clock.advance(RETRY_MS)

    async def _waiter(self, shard: Shard) -> asyncio.Task[object]:
        """A call that waits for an item which does not end (but may be drained): to be answered in the end."""
        item = NewItem(payload=Payload(resource_type="rock", resource_id="rock"), delay_ms=3_000_000)
        try:
            answer = await self._through(shard, shard.enqueue(item))
        except Unavailable:
            return asyncio.ensure_future(asyncio.sleep(0))
        self.script.note()
        return asyncio.ensure_future(shard.get(answer.results[0].sequence_id, wait_ms=3_600_000))

    async def _bury(self, shard: Shard, waiter: asyncio.Task[object]) -> None:
        """The shard was given up: nobody is served any more, nobody waits, and the log is marked."""
        self.story.given_up += 1
        async with asyncio.timeout(SPIN_S):
            (outcome,) = await asyncio.gather(waiter, return_exceptions=True)
        assert outcome is None or isinstance(outcome, LogOutcomeUnknown | NotFound)
        with pytest.raises(LogOutcomeUnknown):
            await shard.stats()
        with pytest.raises(LogOutcomeUnknown):
            await shard.lease(wait_ms=1_000)
        await shard.close()
        assert (self._home / "leases.suspect").exists()
        self._grave = self.vfs.position, self.script.acknowledged
        self.vfs.heal()

    # -- the end -------------------------------------------------------------------------------

    async def _visit(self) -> None:
        """Open the closed log once more. A flush that failed while closing has left its mark too."""
        if (self._home / "leases.suspect").exists():
            self.story.given_up += 1
        self.vfs.heal()
        await (await self._start()).close()

    async def _settle_accounts(self, position: int) -> None:
        """On a healthy disk, and after a power cut right at the end, all that was acknowledged is there."""
        self._known = await replayed(self._directory)
        self._compare(self._known)
        recording = self._recording(position, self.script.acknowledged)
        disk = self._disk_at(position)
        outcomes: tuple[Outcome, ...] = ("dropped", "subset")
        for outcome in outcomes:
            image = disk.image(outcome, Random(position))
            assert image is not None
            witness = recording.witness_at(position)
            await check(recording, position, image, witness, self._directory.with_name("cut"))

    async def check_cuts_while_copying(self) -> int:
        """After `run`: the power fails at every moment between the failed flush and the log's return."""
        start, due = self._grave
        recording = self._recording(start, due)
        disk = self._disk_at(start)
        for position in range(start, self.vfs.position):
            image = disk.image("subset", Random(position))
            assert image is not None
            image["leases.suspect"] = b"made by a test\n"
            await check(recording, position, image, recording.witness_at(start), self._directory.with_name("cut"))
            operation = self.vfs.operations[position]
            if isinstance(operation, Rearranged):  # The copy was seen in the log's place.
                return position - start + 1
            disk.apply(operation)
        raise AssertionError("the log was never copied")

    def _recording(self, position: int, due: int) -> Recording:
        return Recording(
            self._log_id,
            self.vfs.operations,
            [(0, 0), (position, due)],
            self._witnesses,
            self._known,
            self.script.commands,
            [],
        )

    def _disk_at(self, position: int) -> Disk:
        disk = Disk()
        for operation in self.vfs.operations[:position]:
            disk.apply(operation)
        return disk

    def _compare(self, known: dict[int, Known]) -> None:
        assert self.script.acknowledged in known
        for sequence, live in self.script.digests.items():
            assert known[sequence].digest == live, f"the log gives another state after {sequence}"
