"""Kinds of sinks by name: ours, and those that other packages bring through the entry points `omnirelay.sinks`.

    [project.entry-points."omnirelay.sinks"]
    parrot = "my_package.sinks:make_parrot"

    def make_parrot(options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink: ...

The function is called once per shard, in a thread, with the table `[sinks.NAME.options]`. What it raises makes the sink
failed, until somebody resumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from omnirelay.replication.addresses import default_stream, default_subject, governance_target
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.files import FileSink, whole_event
from omnirelay.replication.governance import GovernanceLines, Lookup
from omnirelay.replication.memory import MemorySink
from omnirelay.replication.settings import SinkSettings, foreign_kinds, kind_names
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.replication.tables import SqliteSink


class SinkPlace(msgspec.Struct, frozen=True):
    """Where a sink is to work."""

    name: str
    shard: str
    directory: Path
    """The node's data directory: what relative paths are relative to."""
    lookup: Lookup
    """What the shard knows of an item now."""


LineOf: TypeAlias = Callable[[ReplicatedEvent], bytes | None]
"""Makes what is sent of an event, None when nothing is."""

SinkFactory: TypeAlias = Callable[[Mapping[str, Any], SinkPlace], ReplicationSink]


def _path(settings: SinkSettings, place: SinkPlace) -> Path:
    return Path(place.directory, settings.path or f"sinks/{place.name}")


def _file(settings: SinkSettings, place: SinkPlace) -> ReplicationSink:
    return FileSink(_path(settings, place), rotate_bytes=settings.rotate_bytes)


def _sqlite(settings: SinkSettings, place: SinkPlace) -> ReplicationSink:
    return SqliteSink(_path(settings, place), table=settings.table)


# The libraries behind these are not everybody's, or take long to load: each is imported when the first of its sinks is
# made.


def _webhook(
    settings: SinkSettings, place: SinkPlace, line_of: LineOf = whole_event, lines_are: str = ""
) -> ReplicationSink:
    from omnirelay.replication.webhook import WebhookSink

    assert settings.url is not None
    secret = _secret(settings, place)
    return WebhookSink(settings.url, secret=secret, headers=settings.headers, line_of=line_of, lines_are=lines_are)


def _postgres(settings: SinkSettings, place: SinkPlace) -> ReplicationSink:
    from omnirelay.replication.postgres_table import PostgresSink

    assert settings.url is not None
    return PostgresSink(
        settings.url,
        password=_password(settings, place),
        table=settings.table,
        timeout_ms=settings.follow.timeout_ms,
    )


def _nats(settings: SinkSettings, place: SinkPlace, line_of: LineOf = whole_event) -> ReplicationSink:
    from omnirelay.replication.nats_stream import NatsSink

    assert settings.url is not None
    return NatsSink(
        settings.url,
        password=_password(settings, place),
        subject=settings.subject or default_subject(settings.kind),
        stream=settings.stream or default_stream(settings.kind),
        create=settings.create,
        line_of=line_of,
        timeout_ms=settings.follow.timeout_ms,
    )


def _kafka(settings: SinkSettings, place: SinkPlace, line_of: LineOf = whole_event) -> ReplicationSink:
    from omnirelay.replication.kafka_topic import KafkaSink

    assert settings.url is not None
    return KafkaSink(
        settings.url,
        password=_password(settings, place),
        topic=settings.topic or default_subject(settings.kind),
        properties=settings.properties,
        line_of=line_of,
        timeout_ms=settings.follow.timeout_ms,
    )


def _otel(settings: SinkSettings, place: SinkPlace) -> ReplicationSink:
    from omnirelay.replication.otel_logs import OtelSink

    assert settings.url is not None
    return OtelSink(settings.url, headers=settings.headers, timeout_ms=settings.follow.timeout_ms)


def _objects(settings: SinkSettings, place: SinkPlace) -> ReplicationSink:
    from omnirelay.replication.objects import ObjectPerEventSink, SegmentSink

    address = settings.url or str(_path(settings, place))
    if settings.format == "json":
        return ObjectPerEventSink(address, options=settings.options)
    return SegmentSink(
        address,
        kind=settings.format,
        options=settings.options,
        segment_bytes=settings.segment_bytes,
        compact_at=settings.compact_at,
        retention_ms=settings.retention_ms,
        writer=place.name,
    )


def _governance(settings: SinkSettings, place: SinkPlace) -> ReplicationSink:
    line_of = GovernanceLines(place.lookup, repeated_max=settings.follow.batch_events).line_of
    target = governance_target(settings.url)
    if target == "nats":
        return _nats(settings, place, line_of)
    if target == "kafka":
        return _kafka(settings, place, line_of)
    if settings.url is not None:
        return _webhook(settings, place, line_of, settings.kind)
    path = _path(settings, place)
    return FileSink(path, rotate_bytes=settings.rotate_bytes, line_of=line_of, keeps_all=False)


def _memory(settings: SinkSettings, place: SinkPlace) -> ReplicationSink:
    return MemorySink()


def _secret(settings: SinkSettings, place: SinkPlace) -> bytes | None:
    """The key of the signature. White space around it is an editor's, not the secret's."""
    return _read(settings.secret_file, place, "secret")


def _password(settings: SinkSettings, place: SinkPlace) -> str | None:
    password = _read(settings.password_file, place, "password")
    try:
        return None if password is None else password.decode()
    except UnicodeDecodeError:
        raise SinkUnusable(
            f"the password in {Path(place.directory, settings.password_file or '')} is no text"
        ) from None


def _read(file: str | None, place: SinkPlace, what: str) -> bytes | None:
    if file is None:
        return None
    path = Path(place.directory, file)
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SinkUnusable(f"cannot read the {what} in {path}: {error.strerror}") from None
    if not secret:
        raise SinkUnusable(f"the {what} in {path} is empty")
    return secret


_OWN: Final[Mapping[str, Callable[[SinkSettings, SinkPlace], ReplicationSink]]] = {
    "file": _file,
    "sqlite": _sqlite,
    "webhook": _webhook,
    "objects": _objects,
    "postgres": _postgres,
    "nats": _nats,
    "kafka": _kafka,
    "otel": _otel,
    "governance": _governance,
    "memory": _memory,
}


def kind_rebuilds_state(kind: str) -> bool | None:
    """What sinks of this kind say of themselves; None for a kind that another package brings."""
    return kind == "memory" if kind in _OWN else None


def make_sink(settings: SinkSettings, place: SinkPlace) -> ReplicationSink:
    """Make a sink. Raises SinkUnusable."""
    if settings.kind in _OWN:
        return _OWN[settings.kind](settings, place)
    point = foreign_kinds().get(settings.kind)
    if point is None:
        raise SinkUnusable(f"there is no sink of kind {settings.kind!r}; there are {', '.join(kind_names())}")
    try:
        factory: SinkFactory = point.load()
        return factory(settings.options, place)
    except SinkUnusable:
        raise
    except Exception as error:
        raise SinkUnusable(f"{point.value} cannot make the sink: {type(error).__name__}: {error}") from error
