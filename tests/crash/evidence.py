"""What another process finds in the log after a kill: everything the checker compares with the records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from omnirelay.core.evolve import evolve
from omnirelay.core.items import STATE_NAMES
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.engine.recovery import rebuild
from omnirelay.errors import LogDamaged
from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_frame
from omnirelay.log.sqlite import SqliteLog
from tests.crash.checker import History, Record, Recovered
from tests.crash.ledger import Event, Violation
from tests.crash.plan import NAMESPACE

_decode = msgspec.json.Decoder().decode


class Archive:
    """Keeps every frame that was ever read, so that a replay from the first one works after a trim too, and a
    history that changes behind our back is noticed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.frames: list[Frame] = []
        self.shard = NAMESPACE
        self.log_id = ""

    async def gather(self, records: list[Record], *, verify: bool = False) -> History:
        """Read the log as it lies there. Opens it read-only: a restart must find what the kill left."""
        log = SqliteLog.open(self.directory, NAMESPACE, read_only=True)
        try:
            self.log_id = log.log_id
            await self._read(log)
            if verify:
                await log.verify()
            with replaying():
                recovered = describe((await rebuild(log)).state)
                wanted = {record["sequence"] for record in records if "digest" in record}
                digests = self._digests(wanted | {recovered.sequence})
        finally:
            await log.close()
        return History(records, self.events(), recovered, digests)

    async def _read(self, log: SqliteLog) -> None:
        anchor = await log.anchor()
        known = {frame.last: frame.chain for frame in self.frames}
        end = self.frames[-1].last if self.frames else 0
        assert anchor.sequence <= end, "the child trimmed what the parent had not read"
        async for frame in log.read(anchor.sequence + 1):
            if frame.last > end:
                self.frames.append(frame)
            elif known.get(frame.last) != frame.chain:
                raise Violation("history_rewritten", f"the frame that ends at {frame.last} has changed")
        last = (await log.head()).position.sequence
        if last < end:
            raise Violation("acknowledged_lost", f"the log reached {end} before and ends at {last} now")

    def events(self) -> list[Event]:
        return [event for frame in self.frames for event in _decode(frame.data)["events"]]

    def _digests(self, wanted: Iterable[int]) -> dict[int, str]:
        """Replay from the first frame."""
        state, sequences = State(), set(wanted)
        digests: dict[int, str] = {}
        for frame in self.frames:
            for event in decode_frame(frame, shard=self.shard, log_id=self.log_id):
                evolve(state, event)
                if event.sequence_number in sequences:
                    digests[event.sequence_number] = digest(state)
        if 0 in sequences:
            digests[0] = digest(State())
        return digests


@contextmanager
def replaying() -> Iterator[None]:
    """Events that do not fit the state before them break `evolve`: no state came from writing those."""
    try:
        yield
    except (LookupError, AttributeError, AssertionError, LogDamaged) as error:
        raise Violation("digest_differs", f"the log cannot be replayed: {error!r}") from error


def describe(state: State) -> Recovered:
    return Recovered(
        sequence=state.sequence,
        digest=digest(state),
        items={number: STATE_NAMES[item.state] for number, item in state.items.items()},
        leases={
            number: (item.lease.token.lease_id, item.lease.token.fence or 0, item.lease.deadline)
            for number, item in state.items.items()
            if item.lease is not None
        },
    )
