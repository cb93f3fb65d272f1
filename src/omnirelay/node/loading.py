"""Load a node's configuration: flag before environment before file before default, key by key.

Every problem of every source is found before any is reported, so that one run is enough to mend a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from omnirelay.core.options import QueueOptions
from omnirelay.errors import InvalidArgument
from omnirelay.node.keys import SECTIONS, SHARDS, SINKS, Key, key_of_field, shown_as
from omnirelay.node.kinds import Auto, Wrong, unknown
from omnirelay.node.secret_values import without_secret_values
from omnirelay.node.settings import (
    DEFAULT_SHARD,
    InvalidConfiguration,
    LogSection,
    NodeSection,
    NodeSettings,
    ShardSettings,
    TelemetrySection,
)
from omnirelay.node.shard_keys import (
    NAMESPACE_FORM,
    OPTION_KEYS,
    SHARD_KEYS,
    allowed_by_core,
    home_of,
    is_namespace,
    refused_field,
    related_fields,
)
from omnirelay.node.sink_keys import (
    SINK_KEYS,
    fields_of_sink,
    log_in_the_way,
    place_alone,
    place_in_words,
    sink_problems,
    told_place,
    values_of_sink,
)
from omnirelay.node.sources import NAMED, Entry, Source, place_of, read_environment, read_file, read_flags
from omnirelay.node.toml_text import toml_key
from omnirelay.replication.settings import SinkSettings

DEFAULT = "default"
REPLICATION = "replication"
"""Procedures of this namespace are about the sinks of a node."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    settings: NodeSettings
    origins: dict[str, str]
    """For each key, dotted as in TOML: `default`, `file NAME:LINE`, `environment VARIABLE` or `flag`."""


class _Given(msgspec.Struct, frozen=True):
    value: Any
    origin: str


class _Reading(msgspec.Struct):
    """What has been read so far."""

    given: dict[tuple[str, ...], _Given] = {}
    refused: set[tuple[str, ...]] = set()
    """Keys with a value that some source got wrong."""
    problems: list[str] = []


def load(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """The settings, and where each one came from. `flags` has dotted keys; None as a value is a flag not given.

    Raises InvalidConfiguration (`config.invalid`) with all problems there are.
    """
    file = Source() if path is None else read_file(path)
    flagged = read_flags(flags)
    environment = read_environment(
        environ, {section: [*file.named(section), *flagged.named(section)] for section in NAMED}
    )
    sources = (file, environment, flagged)
    reading = _Reading()
    for source in sources:
        reading.problems += source.problems
        for entry in source.entries:
            _take(entry, reading)
    shards = _shards(sources, reading)
    sinks = _sinks(sources, [shard.namespace for shard in shards], reading)
    if reading.problems:
        raise InvalidConfiguration(reading.problems)
    node = NodeSection(**_node_fields(reading))
    shared = _shared_files(sinks, node.data, reading)
    shared += _beside_logs(sinks, node.data, [shard.namespace for shard in shards], reading)
    if shared:
        raise InvalidConfiguration(shared)
    settings = NodeSettings(
        node=node,
        log=LogSection(**_fields("log", reading)),
        telemetry=TelemetrySection(**_fields("telemetry", reading)),
        shards=tuple(shards),
        sinks=tuple(sinks),
    )
    return Loaded(settings=settings, origins=_origins(settings, reading))


def show_rows(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Each key with its value as TOML and its origin. Lines `key = value` of them are the same configuration, but for
    what is secret.
    """
    return [
        (toml_key(path), shown_as(key, _to_be_shown(path, value)), loaded.origins[toml_key(path)])
        for path, key, value in _effective(loaded.settings)
    ]


def _to_be_shown(path: tuple[str, ...], value: Any) -> Any:
    # Every other key has a name of ours, and none of those holds a secret.
    return without_secret_values(value) if path[0] == SINKS else value


# ---------------------------------------------------------------------------------------- reading


def _take(entry: Entry, reading: _Reading) -> None:
    """Read one entry. What a later source overrides must be right as well: it may not be overridden tomorrow."""
    place = f"{place_of(entry.origin)}: {toml_key(entry.path)}"
    key = _keys_at(entry.path[:-1]).get(entry.path[-1])
    if key is None:
        reading.problems.append(f"{place} {_unknown_at(entry.path)}")
        return
    try:
        value = key.kind.from_text(entry.value) if entry.is_text and isinstance(entry.value, str) else entry.value
        reading.given[entry.path] = _Given(key.read(value), entry.origin)
    except Wrong as wrong:
        reading.refused.add(entry.path)
        reading.problems += [f"{place}{inside} {what}" for inside, what in wrong.problems]


def _keys_at(table: tuple[str, ...]) -> Mapping[str, Key]:
    if not table:
        return {}
    if table[0] == SINKS:
        return SINK_KEYS
    return SHARD_KEYS if table[0] == SHARDS else SECTIONS[table[0]]


def _unknown_at(path: tuple[str, ...]) -> str:
    known = list(_keys_at(path[:-1])) or [*SECTIONS, *NAMED]
    words = unknown(path[-1], known)
    home = home_of(path[-1]) or ("[sinks.NAME]" if path[-1] in SINK_KEYS else None)
    # A key that is right elsewhere was put into the wrong table; whatever looks like it here was not meant.
    return f"is not a known key; it belongs in {home}" if home else words


# --------------------------------------------------------------------------------------- building


def _fields(section: str, reading: _Reading) -> dict[str, Any]:
    return _given_at((section,), SECTIONS[section], reading)


def _given_at(table: tuple[str, ...], keys: Mapping[str, Key], reading: _Reading) -> dict[str, Any]:
    """The fields of a table that some source gave."""
    paths = {key.field: (*table, key.name) for key in keys.values()}
    return {field: reading.given[path].value for field, path in paths.items() if path in reading.given}


def _node_fields(reading: _Reading) -> dict[str, Any]:
    fields = _fields("node", reading)
    if "data" in fields:
        fields["data"] = Path(fields["data"])
    return fields


def _names(section: str, sources: Sequence[Source], reading: _Reading) -> dict[str, str]:
    """The named tables of a section, and where each one is named first."""
    origins: dict[str, str] = {}
    for source in sources:
        for name, origin in source.named(section).items():
            origins.setdefault(name, origin)
    what = section.removesuffix("s")
    reading.problems += [
        f"{place_of(origin)}: {toml_key((section, name))} is no name for a {what}, which has {NAMESPACE_FORM}"
        for name, origin in origins.items()
        if not is_namespace(name)
    ]
    return origins


def _sinks(sources: Sequence[Source], namespaces: Sequence[str], reading: _Reading) -> list[SinkSettings]:
    sinks = []
    for name, origin in _names(SINKS, sources, reading).items():
        given = _given_at((SINKS, name), SINK_KEYS, reading)
        refused = {path[2] for path in reading.refused if path[:2] == (SINKS, name)}
        for key, what in sink_problems(given, refused, namespaces):
            path = (SINKS, name, key)
            place = place_of(reading.given[path].origin if path in reading.given else origin)
            reading.problems.append(f"{place}: {toml_key(path)} {what}")
        sinks.append(SinkSettings(name=name, **fields_of_sink(given)))
    return sinks


def _shared_files(sinks: Iterable[SinkSettings], data: Path, reading: _Reading) -> list[str]:
    """Sinks that would write in the same place: each takes files for its own, and cuts off what it did not write, or
    extends the segments that the other is about to extend, or mixes its messages with those of the other.
    """
    writers: dict[tuple[str, ...], list[SinkSettings]] = {}
    problems = []
    for sink in sinks:
        place = place_alone(sink, data)
        if place is None:
            continue
        others = writers.setdefault(place, [])
        for other in others:
            if not sink.shards or not other.shards or set(sink.shards) & set(other.shards):
                # A place that nobody named has the name of its sink, and no other has that.
                named, key = next((each, key) for each in (sink, other) if (key := told_place(each)) is not None)
                path = (SINKS, named.name, key)
                first = toml_key((SINKS, (other if named is sink else sink).name))
                words = place_in_words(place, first)
                problems.append(f"{place_of(reading.given[path].origin)}: {toml_key(path)} {words}")
        others.append(sink)
    return problems


def _beside_logs(sinks: Iterable[SinkSettings], data: Path, namespaces: Sequence[str], reading: _Reading) -> list[str]:
    """Sinks that would write into the directory of a log, which is to have one writer, and nothing else beside it."""
    problems = []
    for sink in sinks:
        namespace, key = log_in_the_way(sink, data, namespaces), told_place(sink)
        if namespace is not None and key is not None:
            path = (SINKS, sink.name, key)
            problems.append(
                f"{place_of(reading.given[path].origin)}: {toml_key(path)} leads to where the log of {namespace} lies;"
                " the sink needs a directory of its own"
            )
    return problems


def _shards(sources: Sequence[Source], reading: _Reading) -> list[ShardSettings]:
    origins = _names(SHARDS, sources, reading)
    shards = [_shard(name, reading) for name in origins or [DEFAULT_SHARD]]
    reading.problems += _shared_namespaces(shards, origins)
    reading.problems += [
        f"{place_of(origins[shard.name])}: {toml_key((SHARDS, shard.name))} has the namespace {REPLICATION},"
        " which is the node's own; choose another"
        for shard in shards
        if shard.namespace == REPLICATION
    ]
    return shards


def _shard(name: str, reading: _Reading) -> ShardSettings:
    namespace = reading.given.get((SHARDS, name, "namespace"))
    return ShardSettings(
        name=name,
        namespace=name if namespace is None else namespace.value,
        options=_options(name, reading),
    )


def _options(name: str, reading: _Reading) -> QueueOptions:
    """Build the options. Each is right by itself by now; those that do not go together are reported and left out."""
    fields = _given_at((SHARDS, name), OPTION_KEYS, reading)
    while True:
        try:
            return QueueOptions(**fields)
        except InvalidArgument as error:
            related = related_fields(error)
            # Beside a value that was refused already this would only be about the default in its place.
            if reading.refused.isdisjoint(_path(name, field) for field in related):
                reading.problems.append(_unfit(name, error, reading))
            kept = {field: value for field, value in fields.items() if field not in related}
            # Without progress nothing would be found but the same problem again.
            fields = kept if len(kept) < len(fields) else {}


def _path(name: str, field: str) -> tuple[str, ...]:
    return (SHARDS, name, key_of_field(field))


def _unfit(name: str, error: InvalidArgument, reading: _Reading) -> str:
    """An option that does not go with another. The default may be the one named; then the other's place is told."""
    key = OPTION_KEYS[key_of_field(refused_field(error))]
    named = reading.given.get(_path(name, key.field))
    related = [reading.given.get(_path(name, field)) for field in sorted(related_fields(error))]
    place = next((place_of(found.origin) for found in [named, *related] if found is not None), DEFAULT)
    value = shown_as(key, key.default) + " (the default)" if named is None else shown_as(key, named.value)
    return f"{place}: {toml_key(_path(name, key.field))} is {value}, must be {allowed_by_core(error, key.kind)}"


def _shared_namespaces(shards: Iterable[ShardSettings], origins: Mapping[str, str]) -> list[str]:
    owners: dict[str, str] = {}
    problems = []
    for shard in shards:
        path = toml_key((SHARDS, shard.name))
        first = owners.setdefault(shard.namespace, path)
        if first != path:
            place = place_of(origins[shard.name])
            problems.append(
                f'{place}: {path} and {first} have the same namespace "{shard.namespace}"; each needs its own'
            )
    return problems


# ---------------------------------------------------------------------------------------- showing


def _effective(settings: NodeSettings) -> Iterator[tuple[tuple[str, ...], Key, Any]]:
    """Every key with its value, in the order in which they are shown."""
    for section, keys in SECTIONS.items():
        values = getattr(settings, section)
        for key in keys.values():
            yield (section, key.name), key, getattr(values, key.field)
    for shard in settings.shards:
        for key in SHARD_KEYS.values():
            value = shard.namespace if key.name == "namespace" else getattr(shard.options, key.field)
            yield (SHARDS, shard.name, key.name), key, value
    for sink in settings.sinks:
        values = values_of_sink(sink)
        for key in SINK_KEYS.values():
            # What does not go with the kind is not shown, nor what is not there: TOML has no null.
            if values.get(key.field) is not None or (key.field in values and isinstance(key.kind, Auto)):
                yield (SINKS, sink.name, key.name), key, values[key.field]


def _origins(settings: NodeSettings, reading: _Reading) -> dict[str, str]:
    given = reading.given
    return {toml_key(path): given[path].origin if path in given else DEFAULT for path, _, _ in _effective(settings)}
