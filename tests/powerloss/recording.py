"""A script run on a disk that remembers, and the check of what is left of it after a power cut."""

from __future__ import annotations

import bisect
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from omnirelay.core.evolve import evolve
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.engine.recovery import rebuild
from omnirelay.engine.shard import Shard
from omnirelay.engine.snapshotter import make_snapshot
from omnirelay.errors import LogTrimmed, OmniRelayError
from omnirelay.log.failpoints import armed
from omnirelay.log.frame import decode_frame
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.connection import Synchronous
from omnirelay.testing.disk import Disk, Operation, Outcome, RecordingVFS
from tests.powerloss.conftest import REDO
from tests.powerloss.script import OPTIONS, Script

NAMESPACE: Final = "jobs"


class PromiseBroken(AssertionError):
    """A log after a power cut is not what was acknowledged."""


class Known(msgspec.Struct, frozen=True):
    """The end of a frame as the whole log has it."""

    chain: bytes
    digest: str


class Recording(msgspec.Struct):
    """Everything that happened, with positions in `operations`."""

    log_id: str
    operations: list[Operation]
    acknowledged: list[tuple[int, int]]
    """Position, and the last sequence that was called durable by then; both rise."""
    witnesses: list[tuple[int, int, bytes]]
    """Position before writing it, after, and the contents."""
    known: dict[int, Known]
    """By the last sequence of each frame."""
    commands: int
    starts: list[int]
    """Where the files were known, and where each shard was open."""
    snapshots: Path | None = None
    """The directory of snapshots; they are flushed before the log knows of them, so any cut leaves them whole."""

    def due(self, position: int) -> int:
        """The sequence that must survive a power cut at this position."""
        index = bisect.bisect_right(self.acknowledged, position, key=lambda entry: entry[0])
        return self.acknowledged[index - 1][1] if index else 0

    def witness_at(self, position: int) -> bytes | None:
        """The witness that is certainly on the disk."""
        index = bisect.bisect_right(self.witnesses, position, key=lambda entry: entry[1])
        return self.witnesses[index - 1][2] if index else None

    def witness_before(self, position: int) -> bytes | None:
        """The one half as many writes ago: a second disk may be behind."""
        index = bisect.bisect_right(self.witnesses, position, key=lambda entry: entry[1])
        return self.witnesses[index // 2][2] if index else None

    def witness_being_written(self, position: int) -> bytes | None:
        for before, after, contents in self.witnesses:
            if before <= position < after:
                return contents
        return None


@contextmanager
def noting_witnesses(vfs: RecordingVFS, path: Path, witnesses: list[tuple[int, int, bytes]]) -> Iterator[None]:
    """Take down each witness; the file is written past SQLite, so the VFS does not see it."""
    started: list[int] = []

    def before() -> None:
        vfs.notice_names()
        started.append(vfs.position)

    def after() -> None:
        witnesses.append((started[-1], vfs.position, path.read_bytes()))

    with ExitStack() as stack:
        stack.enter_context(armed("log.witness.before_write", before))
        stack.enter_context(armed("log.witness.written", after))
        yield


async def record(
    directory: Path,
    seed: int,
    commands: int,
    *,
    restarts: int = 1,
    synchronous: Synchronous = "FULL",
    due: int = 0,
    trims: bool = False,
) -> Recording:
    """Run a script over a recording VFS. The shard is closed and started anew `restarts` times on the way.

    `due`: what the directory holds already and must keep. `trims`: each shard makes snapshots and trims the log.
    """
    script = Script(seed)
    acknowledged: list[tuple[int, int]] = []
    witnesses: list[tuple[int, int, bytes]] = []
    starts: list[int] = []
    known: dict[int, Known] = {}
    with RecordingVFS() as vfs:
        for file in sorted((directory / NAMESPACE).glob("leases.*")):
            if file.suffix.startswith(".db") or file.suffix == ".redo":
                vfs.take_in(file)
        starts.append(vfs.position)
        acknowledged.append((vfs.position, due))
        witness = directory / NAMESPACE / "leases.witness"
        if witness.exists():
            witnesses.append((0, 0, witness.read_bytes()))
        script.on_answer = lambda: acknowledged.append((vfs.position, script.acknowledged))
        with noting_witnesses(vfs, witness, witnesses):
            log_id = ""
            for session in range(restarts + 1):
                log = SqliteLog.open(directory, NAMESPACE, vfs=vfs.name, synchronous=synchronous, redo=REDO)
                log_id = log.log_id
                script.shard = await Shard.open(log, options=OPTIONS, clock=script.clock, ids=script.next_lease_id)
                starts.append(vfs.position)
                await script.rest()
                with armed("engine.answered", script.note):
                    share = commands // (restarts + 1)
                    await script.run(commands - script.commands if session == restarts else share)
                    if trims:
                        known |= await _trim(script, log, directory)
                    await script.shard.close()
                script.note()
        known |= await replayed(directory)
    for sequence, live in script.digests.items():
        assert known[sequence].digest == live, f"replay of {sequence} is not what the shard was"
    snapshots = directory / NAMESPACE / "snapshots" if trims else None
    return Recording(log_id, vfs.operations, acknowledged, witnesses, known, script.commands, starts, snapshots)


async def _trim(script: Script, log: SqliteLog, directory: Path) -> dict[int, Known]:
    """Drop the frames before two snapshots, with work between them; returns what is known of those frames."""
    for _ in range(2):
        snapshot = await make_snapshot(log, script.clock.wall_ms())
        await log.add_snapshot(snapshot, script.live.epoch)
        await script.run(5)
    known = await replayed(directory)
    anchor = await log.trim((await log.snapshots())[1].sequence, script.live.epoch)
    assert anchor.sequence > 0
    await script.run(5)
    return known


async def replayed(directory: Path) -> dict[int, Known]:
    """Every frame of a log (of a trimmed one: from its oldest snapshot on) with the digest of the state after it."""
    known = {}
    log = SqliteLog.open(directory, NAMESPACE, read_only=True)
    state = State()
    if (await log.anchor()).sequence > 0:
        state = (await rebuild(log, (await log.snapshots())[-1].sequence)).state
    async for frame in log.read(state.sequence + 1):
        for event in decode_frame(frame, shard=log.shard, log_id=log.log_id):
            evolve(state, event)
        known[frame.last] = Known(frame.chain, digest(state))
    await log.close()
    return known


# -- after the cut -----------------------------------------------------------------------------


def lay_out(directory: Path, image: dict[str, bytes], witness: bytes | None, snapshots: Path | None = None) -> None:
    """The files a start finds after the cut."""
    home = directory / NAMESPACE
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for name, contents in image.items():
        (home / Path(name).name).write_bytes(contents)
    if witness is not None:
        (home / "leases.witness").write_bytes(witness)
    if snapshots is not None:
        shutil.copytree(snapshots, home / "snapshots")


async def check(
    recording: Recording, position: int, image: dict[str, bytes], witness: bytes | None, directory: Path
) -> None:
    """Recover from an image of the disk. Raises PromiseBroken unless all that was acknowledged is there."""
    due = recording.due(position)
    # They are made of what is in the log: before there is anything, there are none.
    lay_out(directory, image, witness, recording.snapshots if due else None)
    try:
        log = SqliteLog.open(directory, NAMESPACE)
    except OmniRelayError as error:
        raise PromiseBroken(f"cut at {position}: the log does not open: {error!r}") from error
    try:
        await _check_open(recording, log, position, due, witness is not None)
    except OmniRelayError as error:
        raise PromiseBroken(f"cut at {position}: {error!r}") from error
    finally:
        log.abandon()


async def _check_open(recording: Recording, log: SqliteLog, position: int, due: int, has_witness: bool) -> None:
    report = await log.verify()
    last = report.position.sequence
    if last < due:
        raise PromiseBroken(f"cut at {position}: the log ends at {last}, {due} was acknowledged")
    if last == 0:
        return
    known = recording.known.get(last)
    if log.log_id != recording.log_id or known is None or known.chain != report.position.chain:
        raise PromiseBroken(f"cut at {position}: the log ends at {last} with a history that never was")
    recovered = await rebuild(log)
    if (recovered.position.sequence, digest(recovered.state)) != (last, known.digest):
        raise PromiseBroken(f"cut at {position}: replay of {last} gives another state")
    if report.anchor.sequence < due < last and not await _gives(log, due, recording.known[due].digest):
        raise PromiseBroken(f"cut at {position}: replay of {due} gives another state")
    acquired = await log.acquire("after the cut")
    if acquired.position != report.position or (acquired.unproven is None) != has_witness:
        raise PromiseBroken(f"cut at {position}: unproven is {acquired.unproven!r}")


async def _gives(log: SqliteLog, sequence: int, expected: str) -> bool:
    try:
        return digest((await rebuild(log, sequence)).state) == expected
    except LogTrimmed:
        return True  # Between the anchor and the oldest snapshot: history, but no state can be had from it.


def images(recording: Recording, outcome: Outcome, seed: int, every: int = 1) -> Iterator[tuple[int, dict[str, bytes]]]:
    """The disk after a cut at each position (or each `every`-th), from before the first operation on."""
    disk = Disk()
    random = Random(seed)
    for position in range(len(recording.operations) + 1):
        if position:
            disk.apply(recording.operations[position - 1])
        if position % every == 0:
            image = disk.image(outcome, random)
            if image is not None:
                yield position, image
