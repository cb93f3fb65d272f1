"""Kinds of sinks by name: ours, and those that other packages bring through the entry points `omnirelay.sinks`.

    [project.entry-points."omnirelay.sinks"]
    parrot = "my_package.sinks:make_parrot"

    def make_parrot(options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink: ...

The function is called once per shard with the table `[sinks.NAME.options]`. It must not wait for anything; what it
raises makes the sink failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from omnirelay.replication.files import FileSink
from omnirelay.replication.governance import GovernanceLines, Lookup
from omnirelay.replication.memory import MemorySink
from omnirelay.replication.settings import foreign_kinds, kind_names
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.replication.tables import SqliteSink
from omnirelay.replication.webhook import WebhookSink


class SinkPlace(msgspec.Struct, frozen=True):
    """Where a sink is to work."""

    name: str
    shard: str
    directory: Path
    """The node's data directory: what relative paths are relative to."""
    lookup: Lookup
    """What the shard knows of an item now."""


SinkFactory: TypeAlias = Callable[[Mapping[str, Any], SinkPlace], ReplicationSink]


def _path(options: Mapping[str, Any], place: SinkPlace) -> Path:
    return Path(place.directory, options.get("path") or f"sinks/{place.name}")


def _file(options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink:
    return FileSink(_path(options, place), rotate_bytes=options["rotate_bytes"])


def _sqlite(options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink:
    return SqliteSink(_path(options, place), table=options["table"])


def _webhook(options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink:
    return WebhookSink(options["url"], secret=_secret(options, place), headers=options["headers"])


def _governance(options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink:
    line_of = GovernanceLines(place.lookup).line_of
    if options.get("url"):
        secret = _secret(options, place)
        return WebhookSink(options["url"], secret=secret, headers=options["headers"], line_of=line_of)
    path = _path(options, place)
    return FileSink(path, rotate_bytes=options["rotate_bytes"], line_of=line_of, keeps_all=False)


def _memory(options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink:
    return MemorySink()


def _secret(options: Mapping[str, Any], place: SinkPlace) -> bytes | None:
    """The key of the signature. White space around it is an editor's, not the secret's."""
    if not options.get("secret_file"):
        return None
    path = Path(place.directory, options["secret_file"])
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SinkUnusable(f"cannot read the secret in {path}: {error.strerror}") from None
    if not secret:
        raise SinkUnusable(f"the secret in {path} is empty")
    return secret


KINDS: Final[Mapping[str, SinkFactory]] = {
    "file": _file,
    "sqlite": _sqlite,
    "webhook": _webhook,
    "governance": _governance,
    "memory": _memory,
}
"""Those of this package. They take the keys of `[sinks.NAME]` itself, by the names of the settings."""


def make_sink(kind: str, own: Mapping[str, Any], options: Mapping[str, Any], place: SinkPlace) -> ReplicationSink:
    """Make a sink: ours of its `own` keys, another's of its `options`. Raises SinkUnusable."""
    if kind in KINDS:
        return KINDS[kind](own, place)
    point = foreign_kinds().get(kind)
    if point is None:
        raise SinkUnusable(f"there is no sink of kind {kind!r}; there are {', '.join(kind_names())}")
    try:
        factory: SinkFactory = point.load()
        return factory(options, place)
    except SinkUnusable:
        raise
    except Exception as error:
        raise SinkUnusable(f"{point.value} cannot make the sink: {type(error).__name__}: {error}") from error
