"""The keys of a sink, and which of them go with which kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from omnirelay.node.keys import Key, anything, between, by_name, key_for
from omnirelay.node.kinds import AnyTable, Auto, Choice, Duration, Kind, Size, Switch, Text, Texts, TextTable, Whole
from omnirelay.node.kinds import refused as refused_value
from omnirelay.replication.settings import (
    OWN_KINDS,
    FollowSettings,
    OnRefusal,
    SinkSettings,
    is_table_name,
    kind_names,
)

_DAY = 86_400_000
_COUNT = 1 << 40


def _name(kind: Kind, value: str, written: object) -> None:
    # Asked only when it is none of ours: looking for packages takes time.
    if value not in OWN_KINDS and value not in kind_names():
        raise refused_value(value, f"one of {', '.join(kind_names())}")


def _path(kind: Kind, value: str, written: object) -> None:
    if not value.strip() or "\0" in value:
        raise refused_value(value, "the path of a directory")


def _file(kind: Kind, value: str, written: object) -> None:
    if not value.strip() or "\0" in value:
        raise refused_value(value, "the path of a file")


def _url(kind: Kind, value: str, written: object) -> None:
    if not value.startswith(("http://", "https://")):
        # A URL may hold a password: only the scheme is repeated.
        raise refused_value(value.split(":")[0], "an address that begins with http:// or https://")


def _table(kind: Kind, value: str, written: object) -> None:
    if not is_table_name(value):
        raise refused_value(value, "1 to 63 letters, digits and underscores, not beginning with a digit")


_SINK = SinkSettings(name="", kind="")
_FOLLOW = FollowSettings()
_TIME = between(1, _DAY)

_KIND_KEY = Key(
    name="kind",
    field="kind",
    kind=Text(),
    default=None,
    description="file, sqlite, webhook, governance, memory, or one that an installed package brings.",
    check=_name,
)

_OWN_KEYS = [
    key_for(_SINK, "enabled", Switch(), anything, "false: it is not started, and keeps its checkpoint."),
    key_for(_SINK, "shards", Texts(), anything, "Namespaces of the shards that it follows; none: all."),
    key_for(_SINK, "path", Auto(Text()), _path, 'Directory of its files, below node.data; "auto" is sinks/NAME.'),
    key_for(_SINK, "rotate_bytes", Size(), between(1, _COUNT), "Size beyond which a new file begins."),
    key_for(_SINK, "table", Text(), _table, "Name of the table."),
    key_for(_SINK, "url", Text(), _url, "Where deliveries are POSTed to."),
    key_for(_SINK, "secret_file", Text(), _file, "File with the key of the signature, below node.data."),
    key_for(_SINK, "headers", TextTable(), anything, "Headers that are sent along."),
    key_for(_SINK, "options", AnyTable(), anything, "What a kind of another package is given."),
]

_FOLLOW_KEYS = [
    key_for(_FOLLOW, "batch_events", Whole(), between(1, 100_000), "Most events of one delivery."),
    key_for(_FOLLOW, "batch_bytes", Size(), between(1, 1 << 30), "Most bytes of one delivery of several events."),
    key_for(_FOLLOW, "linger_ms", Duration(), between(0, 60_000), "How long a delivery waits for company."),
    key_for(_FOLLOW, "timeout_ms", Duration(), _TIME, "A delivery that takes longer has failed."),
    key_for(_FOLLOW, "retry_first_ms", Duration(), _TIME, "First pause after a failure; doubles up to retry_max."),
    key_for(_FOLLOW, "retry_max_ms", Duration(), _TIME, "Longest pause after a failure."),
    key_for(_FOLLOW, "stalled_after_ms", Duration(), _TIME, "Failing for this long it is called stalled."),
    key_for(
        _FOLLOW,
        "on_refusal",
        Choice(*get_args(OnRefusal)),
        anything,
        "Whether an event that is refused for good is parked, or blocks the sink.",
    ),
    key_for(_FOLLOW, "refusals_max", Whole(), between(1, 1_000), "Refused so often, an event is parked."),
    key_for(_FOLLOW, "required", Switch(), anything, "The log keeps what this sink has not confirmed."),
]

SINK_KEYS: Final = {"kind": _KIND_KEY, **by_name(_OWN_KEYS), **by_name(_FOLLOW_KEYS)}

_FOLLOW_FIELDS = frozenset(key.field for key in _FOLLOW_KEYS)
_POSTED = frozenset({"url", "secret_file", "headers"})
_KEYS_OF_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "file": frozenset({"path", "rotate_bytes"}),
    "sqlite": frozenset({"path", "table"}),
    "webhook": _POSTED,
    "governance": _POSTED | {"path", "rotate_bytes"},
    "memory": frozenset(),
}
_ANY_OF_A_KIND = frozenset({"path", "rotate_bytes", "table", "options"}) | _POSTED


def sink_problems(
    given: Mapping[str, Any], refused: Collection[str], namespaces: Sequence[str]
) -> list[tuple[str, str]]:
    """What is wrong with the keys of a sink together: the key, and the words. `refused` have a problem already."""
    problems = [
        ("shards", f'names "{name}", which is no namespace of this node: {", ".join(namespaces)}')
        for name in given.get("shards", ())
        if name not in namespaces
    ]
    first, longest = (given.get(field, getattr(_FOLLOW, field)) for field in ("retry_first_ms", "retry_max_ms"))
    if first > longest:
        problems.append(("retry_first", "must not be longer than retry_max"))
    kind = given.get("kind")
    if kind is None:
        return problems if "kind" in refused else [*problems, ("kind", f"is missing: {', '.join(kind_names())}")]
    fitting = _KEYS_OF_KINDS.get(kind, frozenset({"options"}))
    problems += [
        (key, f'does not go with kind = "{kind}"') for key in given if key in _ANY_OF_A_KIND and key not in fitting
    ]
    if kind == "webhook" and "url" not in given and "url" not in refused:
        problems.append(("url", "is missing: where shall deliveries go?"))
    if kind == "governance" and "url" in given and "path" in given:
        problems.append(("url", "and path exclude each other"))
    return problems


def fields_of_sink(given: Mapping[str, Any]) -> dict[str, Any]:
    """What SinkSettings takes, of the fields that some source gave."""
    own = {field: value for field, value in given.items() if field not in _FOLLOW_FIELDS}
    follow = {field: value for field, value in given.items() if field in _FOLLOW_FIELDS}
    return {"kind": "", **own, "follow": FollowSettings(**follow)}


def values_of_sink(sink: SinkSettings) -> dict[str, Any]:
    """The value of every key, by its field. Keys that do not go with the kind are as if they were not there."""
    values = {**msgspec.structs.asdict(sink), **msgspec.structs.asdict(sink.follow)}
    fitting = _KEYS_OF_KINDS.get(sink.kind, frozenset({"options"}))
    return {
        key.field: values[key.field]
        for key in SINK_KEYS.values()
        if key.name in fitting or key.name not in _ANY_OF_A_KIND
    }
