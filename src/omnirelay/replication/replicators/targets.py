"""Replicators by where they keep what is published: in memory, or in SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from omnirelay.errors import InvalidArgument
from omnirelay.replication.replicators.base import Replicator
from omnirelay.replication.replicators.composite import DEFAULT_SHARD, CompositeReplicator
from omnirelay.replication.settings import TABLE, FollowSettings
from omnirelay.replication.sinks import ReplicationSink
from omnirelay.replication.tables import SqliteSink

TABLE_MEMBER: Final = "table"


class InMemoryReplicator(CompositeReplicator):
    """A hub inside the process: nothing outlives it, and numbers begin at 1 again.

    A target that does outlive it is then ahead of the numbers; its member fails and says so, rather than take what is
    new for what it has.
    """

    def __init__(
        self,
        sinks: Mapping[str, ReplicationSink | Replicator] | None = None,
        *,
        shard: str = DEFAULT_SHARD,
        region: str = "local",
        follow: FollowSettings | None = None,
        retained_events: int | None = None,
    ) -> None:
        super().__init__(sinks, shard=shard, region=region, follow=follow, retained_events=retained_events)


class SqliteReplicator(CompositeReplicator):
    """Keeps events in a journal in `DIRECTORY/SHARD`, and as rows of the table in `DIRECTORY/SHARD.db` for readers.

    The journal is the commit, the table follows it. Another process on the same directory is refused when it starts.
    """

    def __init__(
        self,
        directory: Path | str,
        sinks: Mapping[str, ReplicationSink | Replicator] | None = None,
        *,
        table: str = TABLE,
        shard: str = DEFAULT_SHARD,
        region: str = "local",
        follow: FollowSettings | None = None,
        retained_events: int | None = None,
    ) -> None:
        if sinks is not None and TABLE_MEMBER in sinks:
            raise InvalidArgument(f"the name {TABLE_MEMBER!r} is that of the table itself", field="sinks")
        super().__init__(
            {TABLE_MEMBER: SqliteSink(Path(directory), table=table), **(sinks or {})},
            shard=shard,
            directory=directory,
            region=region,
            follow=follow,
            retained_events=retained_events,
        )
