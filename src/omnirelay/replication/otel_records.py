"""The request that carries events as OpenTelemetry log records, in protobuf.

A message of protobuf is its fields, one behind the other, and those of most records are the same: one after the other
with objects of the library, they were two thirds of the work. So each is made once by the library and put around what
differs, which are the text of an event and its number. The bytes are those that the library would make.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from omnirelay._version import __version__
from omnirelay.replication.events import ReplicatedEvent, json_of
from omnirelay.replication.extras import extra

with extra("otel"):
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import (
        SEVERITY_NUMBER_INFO,
        SEVERITY_NUMBER_WARN,
        LogRecord,
        ResourceLogs,
        ScopeLogs,
    )
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

_WARNINGS: Final = frozenset({"Failed", "Expired", "DeadLettered", "GenerationStarted"})
_LATEST_MS: Final = (1 << 63) // 1_000_000
"""What lies outside of the range that the field has is no time anyway; the body has it."""

_LENGTH_DELIMITED: Final = 2
_VARINT: Final = 0


def request_of(events: Sequence[ReplicatedEvent]) -> bytes:
    """The request that carries these, in order."""
    scope = ScopeLogs(scope=InstrumentationScope(name="omnirelay.replication", version=__version__)).SerializeToString()
    request = []
    for region, group in groupby(events, key=lambda event: event.region):
        attributes = [_text("service.name", "omnirelay"), _text("cloud.region", region)]
        logs = ResourceLogs(resource=Resource(attributes=attributes)).SerializeToString()
        logs += _member(_SCOPE_LOGS, scope + _records(list(group)))
        request.append(_member(_RESOURCE_LOGS, logs))
    return b"".join(request)


def _records(events: Sequence[ReplicatedEvent]) -> bytes:
    around: dict[tuple[str, str, int], tuple[bytes, bytes]] = {}
    records = []
    for event, text in zip(events, json_of(events), strict=True):
        alike = (event.event_type, event.shard, event.timestamp)
        found = around.get(alike)
        if found is None:
            found = around[alike] = _around(*alike)
        before, behind = found
        body = _member(_STRING_VALUE, text)
        number = _NUMBER_KEY + _member(_ATTRIBUTE_VALUE, _INT_VALUE + _varint(event.sequence))
        record = b"".join((before, _member(_BODY, body), behind, _member(_ATTRIBUTES, number)))
        records.append(_member(_LOG_RECORDS, record))
    return b"".join(records)


def _around(event_type: str, shard: str, timestamp: int) -> tuple[bytes, bytes]:
    """What stands before the body of a record and behind it, but for its number."""
    warns = event_type in _WARNINGS
    before = LogRecord(
        time_unix_nano=min(max(0, timestamp), _LATEST_MS) * 1_000_000,
        severity_number=SEVERITY_NUMBER_WARN if warns else SEVERITY_NUMBER_INFO,
        severity_text="WARN" if warns else "INFO",
    )
    behind = LogRecord(attributes=[_text("omnirelay.event.type", event_type), _text("omnirelay.shard", shard)])
    return before.SerializeToString(), behind.SerializeToString()


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


# -- protobuf ------------------------------------------------------------------------------------


def _tag(message: Any, field: str, wire_type: int) -> bytes:
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | wire_type)


def _member(tag: bytes, content: bytes) -> bytes:
    return b"%b%b%b" % (tag, _varint(len(content)), content)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


_RESOURCE_LOGS: Final = _tag(ExportLogsServiceRequest, "resource_logs", _LENGTH_DELIMITED)
_SCOPE_LOGS: Final = _tag(ResourceLogs, "scope_logs", _LENGTH_DELIMITED)
_LOG_RECORDS: Final = _tag(ScopeLogs, "log_records", _LENGTH_DELIMITED)
_BODY: Final = _tag(LogRecord, "body", _LENGTH_DELIMITED)
_ATTRIBUTES: Final = _tag(LogRecord, "attributes", _LENGTH_DELIMITED)
_ATTRIBUTE_VALUE: Final = _tag(KeyValue, "value", _LENGTH_DELIMITED)
_STRING_VALUE: Final = _tag(AnyValue, "string_value", _LENGTH_DELIMITED)
_INT_VALUE: Final = _tag(AnyValue, "int_value", _VARINT)
_NUMBER_KEY: Final = KeyValue(key="omnirelay.sequence").SerializeToString()
