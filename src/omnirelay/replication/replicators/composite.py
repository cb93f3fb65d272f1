"""`CompositeReplicator`: one numbering, and any number of members, each with a pace and failures of its own.

publish ──▶ journal (numbers, durable) ──▶ follower ──▶ member
                                      └──▶ follower ──▶ member that is down: retried, the others do not notice
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from omnirelay.errors import InvalidArgument
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.confirmed import CHECKPOINT_FILE
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.following import Follower
from omnirelay.replication.replicators.base import Publishable, Replicator, labelled
from omnirelay.replication.replicators.journal import Journal
from omnirelay.replication.replicators.members import sink_of
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink
from omnirelay.replication.status import FollowStatus

DEFAULT_SHARD: Final = "events"
RETAINED_IN_MEMORY: Final = 100_000
_TRIM_EVERY: Final = 1_000


class CompositeReplicator:
    """A `Replicator`. With a directory, events and how far each member has come outlive the process."""

    def __init__(
        self,
        members: Mapping[str, ReplicationSink | Replicator] | None = None,
        *,
        shard: str = DEFAULT_SHARD,
        directory: Path | str | None = None,
        region: str = "local",
        follow: FollowSettings | None = None,
        follow_members: Mapping[str, FollowSettings] | None = None,
        retained_events: int | None = None,
    ) -> None:
        """`members` are sinks and replicators by name. `follow` says how each is fed, `follow_members` names those that
        are fed otherwise. `retained_events`: at least so many stay in the journal, and all that a member with
        `required` still has to get; any other that is further behind has failed. None: all, in memory 100,000.
        """
        if retained_events is not None and retained_events < 1:
            raise InvalidArgument(f"retained_events must be at least 1, got {retained_events}", field="retained_events")
        unknown = sorted(set(follow_members or {}) - set(members or {}))
        if unknown:
            raise InvalidArgument(f"follow_members names {unknown[0]!r}, which is no member", field="follow_members")
        self._directory = None if directory is None else Path(directory)
        if retained_events is None and self._directory is None:
            retained_events = RETAINED_IN_MEMORY
        self._members = dict(members or {})
        self._region = region
        self._follow = follow or FollowSettings()
        self._follow_members = dict(follow_members or {})
        self._retained_events = retained_events
        self._journal = Journal(shard, self._directory, region)
        self._checkpoints = Checkpoints(None if self._directory is None else self._directory / CHECKPOINT_FILE)
        self._followers: dict[str, Follower] = {}
        self._since_trim = 0
        self._started = False

    @property
    def shard(self) -> str:
        return self._journal.shard

    @property
    def last(self) -> int:
        return self._journal.last_sequence

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises LogLocked when another process has the directory, LogDamaged when the journal is."""
        if self._started:
            return
        await self._journal.open()
        self._started = True
        for name, member in self._members.items():
            self._start_member(name, member)

    def _start_member(self, name: str, member: ReplicationSink | Replicator) -> None:
        sink = sink_of(member)
        settings = self._follow_members.get(name, self._follow)
        follower = Follower(name, sink, self._journal, self._checkpoints, settings, region=self._region)
        self._followers[name] = follower
        follower.start()

    def add(self, name: str, member: ReplicationSink | Replicator) -> None:
        """One more member, which gets everything that the journal still has."""
        if name in self._members:
            raise InvalidArgument(f"there is a member {name!r} already", field="name")
        self._members[name] = member
        if self._started:
            self._start_member(name, member)

    async def stop(self) -> None:
        """What was published and not delivered is delivered after the next start, when there is a directory."""
        if not self._started:
            return
        self._started = False
        await asyncio.gather(*(follower.stop() for follower in self._followers.values()))
        self._followers.clear()
        await self._journal.close()
        await self._checkpoints.close()

    # -- publishing ----------------------------------------------------------------------------

    async def publish(self, events: Sequence[Publishable]) -> list[ReplicatedEvent]:
        taken = await self._journal.publish(events)
        self._since_trim += len(taken)
        if self._retained_events is not None and self._since_trim >= _TRIM_EVERY:
            self._since_trim = 0
            await self._trim(self._retained_events)
        return [labelled(event) for event in taken]

    async def _trim(self, retained: int) -> None:
        needed = [each.needs_from() for each in self._followers.values() if each.settings.required]
        await self._journal.trim(min([self.last - retained + 1, *needed]))

    async def read(self, after: int = 0, most: int = 1_000) -> list[ReplicatedEvent]:
        """Published events behind `after`, in order; none at the end. Raises LogTrimmed when they are gone."""
        return [labelled(event) for event in await self._journal.read(after, most)]

    # -- members -------------------------------------------------------------------------------

    async def wait_delivered(self, sequence: int | None = None) -> None:
        """Return when every member has everything up to `sequence`, or up to what was published last."""
        until = self.last if sequence is None else sequence
        await asyncio.gather(*(follower.wait_confirmed(until) for follower in self._followers.values()))

    def follower(self, name: str) -> Follower:
        """What feeds a member: its state, its last error, `pause`, `resume` and `reset`."""
        found = self._followers.get(name)
        if found is None:
            known = ", ".join(sorted(self._followers)) or "none"
            raise InvalidArgument(f"there is no member {name!r} under way; there are: {known}", field="name")
        return found

    def status(self) -> list[FollowStatus]:
        """How each member is doing."""
        return [follower.status() for follower in self._followers.values()]
