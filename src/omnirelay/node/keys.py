"""The keys of a configuration file: what each one holds, what it may be, and what it is for.

Those of a shard are in `shard_keys`, those of a sink in `sink_keys`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec

from omnirelay.core.intake import CALLER_MAX
from omnirelay.node.kinds import Auto, Choice, Duration, Kind, Size, Switch, Text, Texts, Whole, Wrong, refused
from omnirelay.node.settings import LogLevel, LogSection, NodeSection, TelemetrySection
from omnirelay.node.toml_text import toml_value

_DAY = 86_400_000
_COUNT = 1 << 40

Check = Callable[[Kind, Any, object], None]
"""Takes the value as the settings hold it, and as it was written. Raises Wrong when it is not allowed."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    field: str
    """Where the settings hold it: durations end in `_ms` there."""
    kind: Kind
    default: Any
    description: str
    check: Check

    def read(self, value: object) -> Any:
        """The value that the settings hold. Raises Wrong."""
        found = self.kind.read(value)
        # None is "auto", which is always allowed.
        if found is not None:
            self.check(self.kind, found, value)
        return found

    def written(self, value: Any) -> object:
        return self.kind.written(value)


# ---------------------------------------------------------------------------------------- checks


def between(low: int, high: int) -> Check:
    def check(kind: Kind, value: int, written: object) -> None:
        if not low <= value <= high:
            range_ = f"between {kind.written(low)} and {kind.written(high)}"
            raise refused(written, f"{kind.noun} {range_}")

    return check


def _label(kind: Kind, value: str, written: object) -> None:
    if not value.isprintable() or not value.strip() or len(value) > CALLER_MAX:
        raise refused(value, f"1 to {CALLER_MAX} printable characters")


def _directory(kind: Kind, value: str, written: object) -> None:
    if not value.strip() or "\0" in value:
        raise refused(value, "the path of a directory")


def _host(kind: Kind, value: str, written: object) -> None:
    # An empty host would listen on every interface.
    if not value.isprintable() or not value or any(c.isspace() or c in "/[]" for c in value):
        raise refused(value, "a host name or an IP address, without a port")


def _hosts(kind: Kind, value: tuple[str, ...], written: object) -> None:
    for name in value:
        _host(kind, name, written)
        if ":" in name:
            raise refused(name, "a host name without a port; addresses need not be named")


def _log_url(kind: Kind, value: str, written: object) -> None:
    if value in ("sqlite:", "memory:"):
        return
    # A URL may hold a password: only the scheme is repeated.
    scheme = value.split(":")[0] if ":" in value else ""
    if scheme in ("postgresql", "postgres"):
        raise Wrong([("", f"names {scheme}:…, which is not supported by this version; use sqlite: or memory:")])
    raise refused(f"{scheme}:…" if scheme else value, "sqlite: (files below node.data) or memory:")


def anything(kind: Kind, value: object, written: object) -> None:
    pass


# --------------------------------------------------------------------------------------- tables


def key_of_field(field: str) -> str:
    return field.removesuffix("_ms")


def key_for(section: msgspec.Struct, field: str, kind: Kind, check: Check, description: str) -> Key:
    return Key(
        name=key_of_field(field),
        field=field,
        kind=kind,
        default=getattr(section, field),
        description=description,
        check=check,
    )


_NODE = NodeSection()
_LOG = LogSection()
_PORT = between(0, 65_535)
_WAITING = between(0, _COUNT)

_NODE_KEYS = [
    key_for(_NODE, "name", Text(), _label, "What the node calls itself in logs and towards others."),
    key_for(_NODE, "region", Text(), _label, "Where the node runs."),
    key_for(_NODE, "data", Text(), _directory, "Directory of the node's files, relative to the working directory."),
    key_for(_NODE, "host", Text(), _host, "Address to listen on."),
    key_for(_NODE, "port", Whole(), _PORT, "HTTP port; 0 takes a free one."),
    key_for(
        _NODE,
        "grpc_port",
        Auto(Whole()),
        _PORT,
        'Kept for a later version, where "auto" is the HTTP port + 1. This one serves no gRPC: nothing listens there.',
    ),
    key_for(
        _NODE,
        "allowed_hosts",
        Texts(),
        _hosts,
        "Names under which the node may be asked, besides addresses, localhost and host: what a proxy before it sends"
        " as Host. With none: on loopback no others, elsewhere any.",
    ),
    key_for(_NODE, "log_level", Choice(*get_args(LogLevel)), anything, "Least severity that is logged."),
    key_for(
        _NODE,
        "drain_timeout_ms",
        Duration(),
        between(0, _DAY),
        "How long a stopping node waits for what is in flight.",
    ),
]

_LOG_KEYS = [
    key_for(
        _LOG,
        "url",
        Text(),
        _log_url,
        "Where the log lies: sqlite: (files below node.data), or memory: (gone when the node stops).",
    ),
    key_for(
        _LOG,
        "snapshot_every_events",
        Whole(),
        between(0, _COUNT),
        "A snapshot is made after this many events. 0: only when asked for.",
    ),
    key_for(
        _LOG,
        "retention_ms",
        Duration(),
        between(0, 3650 * _DAY),
        "The log keeps at least this much history when it trims itself after a snapshot.",
    ),
    key_for(
        _LOG,
        "waiting_leases_max",
        Whole(),
        _WAITING,
        "Most lease calls of a shard that wait at the same time; one more is refused.",
    ),
    key_for(
        _LOG,
        "waiting_enqueues_max",
        Whole(),
        _WAITING,
        "Most enqueues of a shard that wait for room at the same time; one more is refused.",
    ),
    key_for(
        _LOG,
        "waiting_enqueue_bytes_max",
        Size(),
        _WAITING,
        "Most bytes that the waiting enqueues of a shard hold; one more is refused.",
    ),
]

_TELEMETRY_KEYS = [
    key_for(
        TelemetrySection(),
        "json_logs",
        Auto(Switch()),
        anything,
        'Whether logs are JSON; "auto": unless standard error is a terminal.',
    )
]


def by_name(keys: list[Key]) -> dict[str, Key]:
    return {key.name: key for key in keys}


SECTIONS: Final = {
    "node": by_name(_NODE_KEYS),
    "log": by_name(_LOG_KEYS),
    "telemetry": by_name(_TELEMETRY_KEYS),
}
SHARDS: Final = "shards"
SINKS: Final = "sinks"

NOT_YET: Final = ("auth", "policy", "peers", "mesh", "lakehouse")
"""Sections that later versions have. Ignored, they would let an operator believe that, say, authentication is on."""

NESTED_NOT_YET: Final = ("auth",)
"""Those of them whose tables have a second name, as in [auth.jwt]."""


def shown_as(key: Key, value: Any) -> str:
    """A value of the settings as it would be written in a file."""
    return toml_value(key.written(value))
