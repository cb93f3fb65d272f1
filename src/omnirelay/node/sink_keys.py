"""The keys of a sink, and which of them go with which kind."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import unquote, urlsplit

import msgspec

from omnirelay.node.keys import Key, anything, between, by_name, key_for, key_of_field
from omnirelay.node.kinds import (
    AnyTable,
    Auto,
    Choice,
    Duration,
    Kind,
    Size,
    Switch,
    Text,
    Texts,
    TextTable,
    Whole,
    Wrong,
)
from omnirelay.node.kinds import refused as refused_value
from omnirelay.node.toml_text import toml_key, toml_value
from omnirelay.replication.addresses import (
    SCHEMES,
    address_problem,
    default_subject,
    governance_target,
    header_problems,
    holds_password,
    is_address,
    property_problems,
    scheme_of,
    schemes_in_words,
)
from omnirelay.replication.settings import (
    OWN_KINDS,
    FollowSettings,
    ObjectFormat,
    OnRefusal,
    OnRetentionExceeded,
    SinkSettings,
    followed_otherwise,
    is_table_name,
    is_taken_in_sqlite,
    kind_names,
)

_SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_STREAM = re.compile(r"[A-Za-z0-9_-]{1,255}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER_OPTION = re.compile("endpoint|account_name")
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


def _subject(kind: Kind, value: str, written: object) -> None:
    if not _SUBJECT.fullmatch(value):
        raise refused_value(value, "words of letters, digits, dashes and underscores, with dots between them")


def _stream(kind: Kind, value: str, written: object) -> None:
    if not _STREAM.fullmatch(value):
        raise refused_value(value, "letters, digits, dashes and underscores")


def _topic(kind: Kind, value: str, written: object) -> None:
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise refused_value(value, "1 to 249 letters, digits, dots, dashes and underscores")


def _properties(kind: Kind, value: Mapping[str, str], written: object) -> None:
    problems = property_problems(value)
    if problems:
        raise Wrong([(f".{toml_key([name])}", what) for name, what in problems])


def _headers(kind: Kind, value: Mapping[str, str], written: object) -> None:
    problems = header_problems(value)
    if problems:
        raise Wrong([(f".{toml_key([name])}", what) for name, what in problems])


def _table(kind: Kind, value: str, written: object) -> None:
    if not is_table_name(value):
        raise refused_value(value, "1 to 63 letters, digits and underscores, not beginning with a digit")


def _compact_at(kind: Kind, value: int, written: object) -> None:
    # One alone cannot be merged, and a manifest holds fewer than twice 64 that could be.
    if value != 0 and not 2 <= value <= 64:
        raise refused_value(written, "0, or a whole number between 2 and 64")


_SINK = SinkSettings(name="", kind="")
_FOLLOW = FollowSettings()
_TIME = between(1, _DAY)

_KIND_KEY = Key(
    name="kind",
    field="kind",
    kind=Text(),
    default=None,
    description=f"{', '.join(OWN_KINDS)}, or one that an installed package brings.",
    check=_name,
)

_OWN_KEYS = [
    key_for(_SINK, "enabled", Switch(), anything, "false: it is not started, and keeps its checkpoint."),
    key_for(_SINK, "shards", Texts(), anything, "Namespaces of the shards that it follows; none: all."),
    key_for(_SINK, "path", Auto(Text()), _path, 'Directory of its files, below node.data; "auto" is sinks/NAME.'),
    key_for(_SINK, "rotate_bytes", Size(), between(1, _COUNT), "Size beyond which a new file begins."),
    key_for(_SINK, "table", Text(), _table, "Name of the table."),
    key_for(_SINK, "url", Text(), anything, "Address of the target; what it may begin with depends on the kind."),
    key_for(_SINK, "secret_file", Text(), _file, "File with the key of the signature, below node.data."),
    key_for(_SINK, "headers", TextTable(), _headers, "Headers that are sent along."),
    key_for(_SINK, "password_file", Text(), _file, "File with the password or token for the target, below node.data."),
    key_for(_SINK, "subject", Auto(Text()), _subject, "What subjects of NATS begin with; that of the shard follows."),
    key_for(_SINK, "stream", Auto(Text()), _stream, "Stream of JetStream that keeps the subjects."),
    key_for(_SINK, "create", Switch(), anything, "Whether a stream that is missing is made."),
    key_for(_SINK, "topic", Auto(Text()), _topic, "Topic of Kafka."),
    key_for(
        _SINK, "properties", TextTable(), _properties, "More settings of the Kafka producer, by librdkafka's names."
    ),
    key_for(
        _SINK,
        "format",
        Choice(*get_args(ObjectFormat)),
        anything,
        "Segments as parquet or jsonl, or json for one object per event.",
    ),
    key_for(_SINK, "segment_bytes", Size(), between(1, _COUNT), "Small segments are merged up to this size."),
    key_for(_SINK, "compact_at", Whole(), _compact_at, "So many small segments in a row are merged; 0: never."),
    key_for(_SINK, "retention_ms", Duration(), between(0, 36_500 * _DAY), "Older segments are dropped; 0: never."),
    key_for(_SINK, "options", AnyTable(), anything, "What an object store, or a kind of another package, is given."),
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
    key_for(
        _FOLLOW,
        "lag_events_max",
        Whole(),
        between(0, _COUNT),
        "A required sink that is behind by more events closes intake. 0: never.",
    ),
    key_for(
        _FOLLOW,
        "lag_max_ms",
        Duration(),
        between(0, 365 * _DAY),
        "A required sink that has been behind for longer closes intake. 0: never.",
    ),
    key_for(
        _FOLLOW,
        "max_retained_bytes",
        Size(),
        between(0, 1 << 50),
        "Most bytes of the log that a required sink may leave unconfirmed. 0: any.",
    ),
    key_for(
        _FOLLOW,
        "on_retention_exceeded",
        Choice(*get_args(OnRetentionExceeded)),
        anything,
        "Whether a sink beyond max_retained_bytes closes intake, or is no longer required until it is down to half.",
    ),
]

SINK_KEYS: Final = {"kind": _KIND_KEY, **by_name(_OWN_KEYS), **by_name(_FOLLOW_KEYS)}

_FOLLOW_FIELDS = frozenset(key.field for key in _FOLLOW_KEYS)
_REQUIRED = frozenset({"lag_events_max", "lag_max_ms", "max_retained_bytes", "on_retention_exceeded"})
"""What is asked of a required sink."""
_POSTED = frozenset({"url", "secret_file", "headers"})
_KEYS_OF_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "file": frozenset({"path", "rotate_bytes"}),
    "sqlite": frozenset({"path", "table"}),
    "webhook": _POSTED,
    "postgres": frozenset({"url", "password_file", "table"}),
    "nats": frozenset({"url", "password_file", "subject", "stream", "create"}),
    "kafka": frozenset({"url", "password_file", "topic", "properties"}),
    "otel": frozenset({"url", "headers"}),
    "memory": frozenset(),
    "objects": frozenset(
        {"path", "url", "format", "segment_bytes", "compact_at", "retention", "retention_ms", "options"}
    ),
}
_OF_SEGMENTS = frozenset({"segment_bytes", "compact_at", "retention", "retention_ms"})
"""What is asked of segments, and means nothing for one object per event."""
_FILES_TOO = frozenset({"governance", "objects"})
"""Kinds that have a path when they have no address."""
_ANY_OF_A_KIND = frozenset({"options"}).union(*_KEYS_OF_KINDS.values())


def _fitting(kind: str, url: str | None, layout: ObjectFormat) -> frozenset[str]:
    """The keys that go with a kind. Those of governance are those of the kind that carries its lines, and `url`."""
    if kind == "governance":
        return _KEYS_OF_KINDS[governance_target(url)] | {"url"}
    if kind == "objects" and layout == "json":
        return _KEYS_OF_KINDS[kind] - _OF_SEGMENTS
    return _KEYS_OF_KINDS.get(kind, frozenset({"options"}))


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
    changed = [field for field, value in given.items() if value != getattr(_FOLLOW, field, None)]
    if not given.get("required", False) and "required" not in refused:
        problems += [(key_of_field(field), "goes with required = true only") for field in changed if field in _REQUIRED]
    if (
        "on_retention_exceeded" in changed
        and not given.get("max_retained_bytes")
        and "max_retained_bytes" not in refused
    ):
        problems.append(("on_retention_exceeded", "has no meaning without max_retained_bytes"))
    kind = given.get("kind")
    if kind is None:
        return problems if "kind" in refused else [*problems, ("kind", f"is missing: {', '.join(kind_names())}")]
    table = given.get("table", _SINK.table)
    if kind == "sqlite" and is_taken_in_sqlite(table):
        problems.append(("table", f"is {toml_value(table)}, which SQLite, or this sink, has a table of its own for"))
    return [*problems, *_address_problems(kind, given, refused), *_unfitting(kind, given, refused)]


def _address_problems(kind: str, given: Mapping[str, Any], refused: Collection[str]) -> list[tuple[str, str]]:
    url = given.get("url")
    if url is None:
        needed = kind in SCHEMES and kind not in _FILES_TOO and "url" not in refused
        return [("url", "is missing: where shall deliveries go?")] if needed else []
    if kind in SCHEMES and not is_address(kind, url):
        # A URL may hold a password: only the scheme is repeated.
        scheme = toml_value(url.split(":")[0])
        return [("url", f"is {scheme}, must be an address that begins with {schemes_in_words(kind)}")]
    if "password_file" in _fitting(kind, url, _SINK.format) and holds_password(url):
        return [("url", "holds a password, which everybody who sees the configuration sees; use password_file")]
    problem = address_problem(url) if kind in SCHEMES else None
    if problem is not None:
        return [("url", problem)]
    return [("url", "and path exclude each other")] if kind in _FILES_TOO and "path" in given else []


def _unfitting(kind: str, given: Mapping[str, Any], refused: Collection[str]) -> list[tuple[str, str]]:
    url = given.get("url")
    if kind == "governance" and "url" in refused:
        return []  # Nobody knows where to; what goes with it is not known either.
    layout = given.get("format", _SINK.format)
    fitting = _fitting(kind, url, layout)
    by_address = kind == "governance" and url is not None
    where = f", url = {scheme_of(url)}://…" if by_address and url is not None else ""
    where += ', format = "json"' if kind == "objects" and layout == "json" else ""
    told = {"path"} if by_address else set()
    problems = [
        (key_of_field(key), f'does not go with kind = "{kind}"{where}')
        for key in given
        if key in _ANY_OF_A_KIND and key not in fitting and key not in told
    ]
    options = given.get("options")
    if kind == "objects" and options and "url" not in refused and (url is None or scheme_of(url) == "file"):
        names = ", ".join(options)
        problems.append(("options", f"has {names}, but a directory takes none; they go with a url of a bucket"))
    return problems


def fields_of_sink(given: Mapping[str, Any]) -> dict[str, Any]:
    """What SinkSettings takes, of the fields that some source gave."""
    own = {field: value for field, value in given.items() if field not in _FOLLOW_FIELDS}
    follow = {field: value for field, value in given.items() if field in _FOLLOW_FIELDS}
    otherwise = followed_otherwise(given.get("kind", ""), given.get("format", _SINK.format))
    return {"kind": "", **own, "follow": FollowSettings(**{**otherwise, **follow})}


_PLACES: Final = {
    "objects": ("writes its objects", "place"),
    "lines": ("writes its files", "directory"),
    "nats": ("sends its messages", "subject"),
    "kafka": ("sends its records", "topic"),
}


def place_alone(sink: SinkSettings, data: Path) -> tuple[str, ...] | None:
    """Where a sink that runs must be alone, equal for those that would be in each other's way; None for others."""
    if not sink.enabled:
        return None
    if sink.kind == "objects" and sink.url is not None and scheme_of(sink.url) != "file":
        parts = urlsplit(sink.url)
        # One name may mean a bucket of several servers, or a container of several accounts.
        where = [f"{name}={sink.options[name]}" for name in sorted(sink.options) if _SERVER_OPTION.search(name.lower())]
        return ("objects", parts.scheme, parts.netloc, parts.path.strip("/"), *where)
    if sink.kind == "objects":
        return ("objects", os.path.realpath(data / _directory_of(sink)))
    carrier = governance_target(sink.url) if sink.kind == "governance" else sink.kind
    if carrier == "file":
        return ("lines", os.path.realpath(data / _directory_of(sink)))
    if carrier == "nats":
        return (carrier, str(sink.url), sink.subject or default_subject(sink.kind))
    if carrier == "kafka":
        return (carrier, str(sink.url), sink.topic or default_subject(sink.kind))
    return None


def told_place(sink: SinkSettings) -> str | None:
    """The key that says where that is; None when nobody said so, and it has the name of the sink."""
    named = {"path": sink.path, "subject": sink.subject, "topic": sink.topic, "url": sink.url}
    return next((key for key, value in named.items() if value is not None), None)


def place_in_words(place: tuple[str, ...], first: str) -> str:
    """What is wrong with a key that leads to a place where a sink already is."""
    what, alone = _PLACES[place[0]]
    return f"is where {first} {what}; each needs a {alone} of its own"


def log_in_the_way(sink: SinkSettings, data: Path, namespaces: Sequence[str]) -> str | None:
    """The namespace whose log lies where a sink would write; None when it is alone there."""
    carrier = governance_target(sink.url) if sink.kind == "governance" else sink.kind
    is_directory = sink.url is None or scheme_of(sink.url) == "file"
    if not sink.enabled or not is_directory or carrier not in ("file", "sqlite", "objects"):
        return None
    directory = data / _directory_of(sink)
    # A table is a file in the directory itself, named after its shard; the others have a directory for each.
    followed = [directory / name for name in namespaces if sink.follows(name)]
    written = {os.path.realpath(each) for each in ([directory] if carrier == "sqlite" else followed)}
    return next((name for name in namespaces if os.path.realpath(data / name) in written), None)


def _directory_of(sink: SinkSettings) -> str:
    return unquote(urlsplit(sink.url).path) if sink.url is not None else sink.path or f"sinks/{sink.name}"


def values_of_sink(sink: SinkSettings) -> dict[str, Any]:
    """The value of every key, by its field. Keys that do not go with the kind are as if they were not there."""
    values = {**msgspec.structs.asdict(sink), **msgspec.structs.asdict(sink.follow)}
    fitting = _fitting(sink.kind, sink.url, sink.format)
    return {
        key.field: values[key.field]
        for key in SINK_KEYS.values()
        if key.name in fitting or key.name not in _ANY_OF_A_KIND
    }
