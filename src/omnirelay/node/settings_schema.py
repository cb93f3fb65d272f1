"""The JSON Schema of a configuration file, for editors. What may go with what only `load` knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnirelay.node.keys import SECTIONS, SHARDS, SINKS, Key
from omnirelay.node.kinds import Auto
from omnirelay.node.shard_keys import NAMESPACE_PATTERN, SHARD_KEYS
from omnirelay.node.sink_keys import SINK_KEYS

_ABOUT_SECTIONS = {
    "node": "The process: its name, where it keeps its files, where it listens.",
    "log": "The log of events, and how much may wait for it.",
    "telemetry": "What the node tells about itself.",
}


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the TOML document."""
    sections = {name: {**_table(keys), "description": _ABOUT_SECTIONS[name]} for name, keys in SECTIONS.items()}
    shards = {
        "type": "object",
        "description": "The shards of the node by name. With none there is one: resourcelease.",
        "propertyNames": {"pattern": NAMESPACE_PATTERN},
        "additionalProperties": _table(SHARD_KEYS),
    }
    sinks = {
        "type": "object",
        "description": "What follows the log, by name.",
        "propertyNames": {"pattern": NAMESPACE_PATTERN},
        "additionalProperties": {**_table(SINK_KEYS), "required": ["kind"]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of an OmniRelay node",
        "type": "object",
        "additionalProperties": False,
        "properties": {**sections, SHARDS: shards, SINKS: sinks},
    }


def _table(keys: Mapping[str, Key]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {key.name: _property(key) for key in keys.values()},
    }


def _property(key: Key) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": key.description, **key.kind.schema()}
    if key.name == "namespace":
        # Its default is the name of the shard, which a schema cannot say.
        return {**schema, "pattern": NAMESPACE_PATTERN}
    if key.default is None and not isinstance(key.kind, Auto):
        return schema  # There is no default, or leaving it out means that there is none.
    return {**schema, "default": key.written(key.default)}
