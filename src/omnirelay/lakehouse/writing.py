"""Writing a DataFrame: every row becomes an item of a queue, once, however often Spark runs the task again.

    url            the node
    namespace      of the shard (default: resourcelease)
    key            columns, separated by commas, that tell rows apart: the requestId of an item is a hash of them
    keyScope       makes the same keys into other items, for a job that runs every day over the same rows
    resourceType   of rows that have no column `resource_type`
    timeoutMs      how long a batch may wait for room in the queue (default: 60000)

    columns        resource_id, resource_type, body (binary or text), encoding, partition_key, attributes (map of
                   texts), priority, weight, delay_ms, not_before (timestamp), max_attempts

The node knows a requestId again for as long as it is set to remember them; a task that Spark repeats comes back much
sooner. The same key with another payload is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from omnirelay.client.client import ItemSpec
from omnirelay.client.sync import SyncClient
from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse.source_options import is_node_address

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS: Final[Mapping[str, str]] = {
    "resource_id": "string",
    "resource_type": "string",
    "body": "binary or string",
    "encoding": "string",
    "partition_key": "string",
    "attributes": "map<string,string>",
    "priority": "int or bigint",
    "weight": "int or bigint",
    "delay_ms": "int or bigint",
    "not_before": "timestamp",
    "max_attempts": "int or bigint",
}
"""Columns that become part of an item, with the types they may have."""

_NAMES: Final = ("url", "namespace", "key", "keyScope", "resourceType", "timeoutMs")
_OPTIONS: Final = frozenset(name.lower() for name in _NAMES)
_TIMEOUT_MS: Final = 60_000


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    namespace: str
    key: tuple[str, ...]
    key_scope: str
    resource_type: str | None
    timeout_ms: int


class Written(WriterCommitMessage):
    """What one task did."""

    def __init__(self, items: int, duplicates: int) -> None:
        self.items = items
        self.duplicates = duplicates


def read_write_options(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    """Raises InvalidArgument naming the option or the column."""
    if overwrite:
        raise _wrong("mode", 'must be "append": a queue is not overwritten')
    given = {name.lower(): value for name, value in options.items()}
    # Spark adds options of its own to a stream.
    unknown = sorted(set(given) - _OPTIONS - {"checkpointlocation", "queryname"})
    if "path" in unknown:
        raise _wrong("path", f"is {given['path']!r}, and a queue is at no path: leave save(…) empty, and say url")
    if unknown:
        raise _wrong(unknown[0], f"is no option of writing; there are {', '.join(_NAMES)}")
    url = given.get("url", "")
    if not is_node_address(url):
        raise _wrong("url", f"must be the address of a node, such as http://127.0.0.1:7070, got {url!r}")
    for name in ("namespace", "resourceType"):
        if not given.get(name.lower(), name).strip():
            raise _wrong(name, "must not be blank")
    key = tuple(each.strip() for each in given.get("key", "").split(",") if each.strip())
    if not key:
        raise _wrong("key", "is required: the columns that tell rows apart")
    timeout = given.get("timeoutms", str(_TIMEOUT_MS))
    if not timeout.isdecimal() or int(timeout) < 1:
        raise _wrong("timeoutMs", f"must be a whole number of milliseconds from 1, got {timeout!r}")
    _check_columns(schema, key, given.get("resourcetype"))
    return WriteOptions(
        url=url,
        namespace=given.get("namespace", "resourcelease"),
        key=key,
        key_scope=given.get("keyscope", ""),
        resource_type=given.get("resourcetype"),
        timeout_ms=int(timeout),
    )


def _check_columns(schema: StructType, key: Sequence[str], resource_type: str | None) -> None:
    names = set(schema.fieldNames())
    for name in key:
        if name not in names:
            raise _wrong("key", f"names the column {name}, which the DataFrame does not have")
    if "resource_id" not in names:
        raise _wrong("resource_id", "is missing: a column with what the work is about", kind="column")
    if "resource_type" not in names and not resource_type:
        raise _wrong("resourceType", "is required where there is no column resource_type")
    for field in schema.fields:
        allowed = COLUMNS.get(field.name)
        if allowed is not None and field.dataType.simpleString() not in allowed.split(" or "):
            raise _wrong(field.name, f"must be {allowed}, is {field.dataType.simpleString()}", kind="column")


def _wrong(name: str, what: str, *, kind: str = "option") -> InvalidArgument:
    return InvalidArgument(f"{kind} {name} {what}", field=name)


def enqueue_batches(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Enqueue every row. On an error those before it may be in; a repeat of the task finds them there."""
    items = duplicates = 0
    with SyncClient(options.url, namespace=options.namespace, timeout_ms=options.timeout_ms) as client:
        for batch in batches:
            specs = [item_of(options, row) for row in batch.to_pylist()]
            results = client.enqueue_many(specs, wait_ms=options.timeout_ms, timeout_ms=options.timeout_ms)
            items += len(results)
            duplicates += sum(result.duplicate for result in results)
    return Written(items, duplicates)


def item_of(options: WriteOptions, row: Mapping[str, Any]) -> ItemSpec:
    """The item of a row. Raises InvalidArgument naming the column and the key of the row."""
    fields: dict[str, Any] = {name: row[name] for name in COLUMNS if row.get(name) is not None}
    fields.setdefault("resource_type", options.resource_type)
    for name in ("resource_id", "resource_type"):
        if fields.get(name) is None:
            key = {each: row[each] for each in options.key}
            raise InvalidArgument(f"column {name} is null in the row with key {key}", field=name)
    if isinstance(body := fields.get("body"), str):
        fields["body"] = body.encode()
    if attributes := fields.get("attributes"):
        fields["attributes"] = dict(attributes)
    if (at := fields.pop("not_before", None)) is not None:
        fields["not_before_ms"] = _milliseconds(at)
    return ItemSpec(request_id=request_id(options, row), **fields)


def request_id(options: WriteOptions, row: Mapping[str, Any]) -> str:
    """The same for the same values of the key columns, in every run and on every machine."""
    values = []
    for name in options.key:
        value = row[name]
        if value is None:
            raise InvalidArgument(f"key column {name} is null: such rows cannot be told apart", field=name)
        values.append(_told_apart(name, value))
    # Encoded as one list with the scope, so that ("ab", "c") and ("a", "bc") differ.
    text = msgspec.json.encode([options.key_scope, *values])
    return f"spark-{hashlib.sha256(text).hexdigest()[:40]}"


def _told_apart(name: str, value: Any) -> Any:
    """A value of a key as it is hashed: what Spark takes for equal becomes the same."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)  # Whatever time zone the session has.
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(f"key column {name} is {value}: such rows cannot be told apart", field=name)
        return value + 0.0  # There is no zero below zero.
    if isinstance(value, list | tuple):
        told = [_told_apart(name, each) for each in value]
        # A map comes as pairs, in the order in which somebody put them in.
        is_map = isinstance(value, list) and value and isinstance(value[0], tuple)
        return sorted(told, key=msgspec.json.encode) if is_map else told
    if isinstance(value, dict):
        return {field: _told_apart(name, each) for field, each in value.items()}
    return value


def _milliseconds(at: datetime) -> int:
    # Spark hands instants over as UTC.
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


class ItemWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return enqueue_batches(self.options, iterator)


class ItemStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return enqueue_batches(self.options, iterator)
