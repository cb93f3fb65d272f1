"""`Replication`: every sink of a node behind every shard it follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from omnirelay.engine.shard import Shard
from omnirelay.errors import NotFound
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.commits import Commits
from omnirelay.replication.confirmed import CHECKPOINT_FILE
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.following import Follower
from omnirelay.replication.governance import Holder, holder_in
from omnirelay.replication.kinds import SinkPlace, kind_rebuilds_state, make_sink
from omnirelay.replication.owners import Newest
from omnirelay.replication.settings import SinkSettings
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.replication.status import FollowStatus
from omnirelay.replication.workshop import Maker, Workshop


class _MadeWhenOpened:
    """A sink that is made when it is first opened: one that cannot be made is a failed sink, not a node that is down.

    One that turned out to be unusable is made anew, because whoever resumes it has changed something.
    """

    def __init__(self, settings: SinkSettings, place: SinkPlace, maker: Maker) -> None:
        self._settings = settings
        self._maker = maker
        self._place = place
        self._made: ReplicationSink | None = None
        self._log_id: str | None = None

    @property
    def rebuilds_state(self) -> bool:
        if self._made is not None:
            return self._made.rebuilds_state
        # Of a foreign one nobody knows before it is made; then nothing may be left out.
        return kind_rebuilds_state(self._settings.kind) is not False

    @rebuilds_state.setter
    def rebuilds_state(self, value: bool) -> None:
        raise AttributeError("a sink says itself whether it rebuilds a state")

    @property
    def takes_commits(self) -> bool:
        return getattr(self._made, "takes_commits", False)

    @property
    def prepares_ahead(self) -> int:
        return getattr(self._made, "prepares_ahead", 1)

    @property
    def events_beside_callers(self) -> int:
        return getattr(self._made, "events_beside_callers", self._settings.follow.batch_events)

    @property
    def newest(self) -> Newest | None:
        return getattr(self._made, "newest", None)

    def of_log(self, log_id: str) -> None:
        self._log_id = log_id

    async def open(self, shard: str) -> int | None:
        if self._made is None:
            # In a thread: a package may be imported for it.
            self._made = await asyncio.to_thread(make_sink, self._settings, self._place)
            if hasattr(self._made, "maker"):
                self._made.maker = self._maker
        of_log = getattr(self._made, "of_log", None)
        if of_log is not None:
            of_log(self._log_id)
        try:
            return await self._made.open(shard)
        except SinkUnusable:
            made, self._made = self._made, None
            await made.close()
            raise

    def expect(self, events: int) -> None:
        expect = getattr(self._made, "expect", None)
        if expect is not None:
            expect(events)

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        assert self._made is not None
        await self._made.apply(events)

    async def prepare(self, commits: Commits) -> None:
        prepare = getattr(self._made, "prepare", None)
        if prepare is not None:
            await prepare(commits)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()

    @property
    def holds(self) -> Callable[[str], Awaitable[int]] | None:
        return self._held_unopened if self._made is None else getattr(self._made, "holds", None)

    async def _held_unopened(self, shard: str) -> int:
        """What is held by the target of a sink that is still to be opened; 0 where that does not matter."""
        sink = await asyncio.to_thread(make_sink, self._settings, self._place)
        try:
            holds: Callable[[str], Awaitable[int]] | None = getattr(sink, "holds", None)
            return 0 if holds is None else await holds(shard)
        finally:
            await sink.close()

    @property
    def is_known(self) -> bool:
        """Whether `rebuilds_state` is more than a careful guess."""
        return self._made is not None or kind_rebuilds_state(self._settings.kind) is not None

    @property
    def made(self) -> ReplicationSink | None:
        return self._made


class Replication:
    """Give it every shard with `follow` as soon as that serves; `stop` before the logs close."""

    def __init__(self, sinks: Sequence[SinkSettings], directory: Path, *, durable: bool, region: str = "local") -> None:
        """`directory` is the node's; unless `durable`, checkpoints are kept in memory, as the log itself is."""
        self.followers: list[Follower] = []
        self._settings = sinks
        self._directory = directory
        self._region = region
        self._checkpoints = Checkpoints(directory / CHECKPOINT_FILE if durable else None)
        self.workshop = Workshop(is_called=lambda: any(follower.is_called for follower in self.followers))
        self._sinks: dict[tuple[str, str], _MadeWhenOpened] = {}

    def follow(self, shard: Shard) -> None:
        """Start the sinks of a shard. Does not wait: from here on nothing is trimmed that a required sink needs."""
        for settings in self._settings:
            if settings.follows(shard.log.shard):
                self._start(settings, shard)

    def _start(self, settings: SinkSettings, shard: Shard) -> None:
        def lookup(item: int, lease_id: str | None) -> Holder | None:
            return holder_in(shard.state, item, lease_id)

        name = shard.log.shard
        sink = _MadeWhenOpened(settings, SinkPlace(settings.name, name, self._directory, lookup), self.workshop)
        follower = Follower(settings.name, sink, shard, self._checkpoints, settings.follow, region=self._region)
        if settings.follow.required:
            shard.add_trim_guard(follower.needs_from)
        self._sinks[settings.name, name] = sink
        self.followers.append(follower)
        follower.start()

    async def stop(self) -> None:
        """End every delivery. Safe to call twice."""
        await asyncio.gather(*(follower.stop() for follower in self.followers))
        await self.workshop.close()
        await self._checkpoints.close()

    def status(self, sink: str | None = None, shard: str | None = None) -> list[FollowStatus]:
        """Raises NotFound as `find` does."""
        return [follower.status() for follower in self.find(sink, shard)]

    def find(self, sink: str | None = None, shard: str | None = None) -> list[Follower]:
        """The followers of a sink and a shard, of all for None. Raises NotFound when there is none of such a name."""
        found = [
            follower
            for follower in sorted(self.followers, key=lambda each: (each.name, each.shard_name))
            if sink in (None, follower.name) and shard in (None, follower.shard_name)
        ]
        if not found and (sink is not None or shard is not None):
            known = sorted({f"{follower.name} of {follower.shard_name}" for follower in self.followers})
            raise NotFound(
                f"{_nobody(sink, shard)}; there are: {', '.join(known) or 'none'}", code="replication.unknown_sink"
            )
        return found

    def sink(self, name: str, shard: str) -> ReplicationSink | None:
        """The sink itself, for whoever embeds a node; None until it was opened."""
        made = self._sinks.get((name, shard))
        return None if made is None else made.made


def _nobody(sink: str | None, shard: str | None) -> str:
    if sink is None:
        return f"there is no sink of a shard {shard!r}"
    return f"there is no sink {sink!r} of {'any shard' if shard is None else f'a shard {shard!r}'}"
