"""Replicators by where they keep what is published: in memory, in SQLite, or in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from omnirelay.errors import InvalidArgument
from omnirelay.replication.replicators.base import Replicator
from omnirelay.replication.replicators.composite import DEFAULT_SHARD, CompositeReplicator
from omnirelay.replication.settings import TABLE, FollowSettings, ObjectFormat
from omnirelay.replication.sinks import ReplicationSink
from omnirelay.replication.tables import SqliteSink

TABLE_MEMBER: Final = "table"
OBJECTS_MEMBER: Final = "objects"


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
        super().__init__(
            _beside(TABLE_MEMBER, SqliteSink(Path(directory), table=table), sinks),
            shard=shard,
            directory=directory,
            region=region,
            follow=follow,
            retained_events=retained_events,
        )


class ObjectStorageReplicator(CompositeReplicator):
    """Keeps events in an object store: as segments, or one object each.

    Numbers come from a journal in `DIRECTORY/SHARD`, and an object is never written over. When the journal is lost and
    the objects are not, the numbers begin at 1 again and the store refuses what it has; give it another place then.
    """

    def __init__(
        self,
        directory: Path | str,
        address: str,
        sinks: Mapping[str, ReplicationSink | Replicator] | None = None,
        *,
        layout: ObjectFormat = "parquet",
        options: Mapping[str, Any] | None = None,
        shard: str = DEFAULT_SHARD,
        region: str = "local",
        follow: FollowSettings | None = None,
        retained_events: int | None = None,
    ) -> None:
        """`address` is a directory, or `s3://BUCKET/PREFIX` and the like with the `options` of the store; `layout` is
        `parquet` or `jsonl` for segments, `json` for `SHARD/{20 digits}.json`. Raises SinkUnusable when the extra
        `segments` is not installed.
        """
        # Only here: the libraries are large, and not everybody has them.
        from omnirelay.replication.objects import ObjectPerEventSink, SegmentSink

        objects: ReplicationSink
        if layout == "json":
            objects = ObjectPerEventSink(address, options=options)
        else:
            objects = SegmentSink(address, kind=layout, options=options)
        super().__init__(
            _beside(OBJECTS_MEMBER, objects, sinks),
            shard=shard,
            directory=directory,
            region=region,
            follow=follow,
            retained_events=retained_events,
        )


def _beside(
    name: str, own: ReplicationSink, sinks: Mapping[str, ReplicationSink | Replicator] | None
) -> dict[str, ReplicationSink | Replicator]:
    if sinks is not None and name in sinks:
        raise InvalidArgument(f"the name {name!r} is that of the target itself", field="sinks")
    return {name: own, **(sinks or {})}
