"""Older events made into events of today: the only place that knows how the schema was before.

A change that old events survive (a new field with a default, a new type) needs nothing here. Any other raises
`SCHEMA_VERSION` and adds a step from the version before it. Steps are run one after the other when the log is read;
what is stored, and what sinks pass on, stays as it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from omnirelay.core.events import SCHEMA_VERSION
from omnirelay.errors import DataLoss

Members: TypeAlias = dict[str, Any]
"""An event by the names of its JSON, instants in milliseconds."""

UPCASTS: Final[dict[int, Callable[[Members], Members]]] = {}
"""By the version that a step begins with. A step gets members it may change, and returns those of the next version."""

_members = msgspec.json.Decoder(Members).decode
_encode = msgspec.json.Encoder().encode


class _Version(msgspec.Struct, rename="camel"):
    schema_version: int = 1


_version = msgspec.json.Decoder(_Version).decode


def upcast(stored: bytes | msgspec.Raw) -> bytes:
    """A stored event in the schema of today; the same bytes when it is that already, or newer.

    Raises DataLoss when a step is missing, DecodeError when it is no event.
    """
    version = _version(stored).schema_version
    if version >= SCHEMA_VERSION:
        return bytes(stored)
    members = _members(stored)
    while version < SCHEMA_VERSION:
        step = UPCASTS.get(version)
        if step is None:
            raise DataLoss(
                f"event {members.get('sequenceNumber')} has schema version {version}, which this version of omnirelay"
                " no longer reads; open the log with one in between first",
                code="error.log.schema_too_old",
                sequence=members.get("sequenceNumber"),
                found=version,
                expected=SCHEMA_VERSION,
            )
        members = step(members)
        version += 1
        members["schemaVersion"] = version
    return _encode(members)
