"""Items on their way in: what a caller says of one, and how many of them become calls."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from omnirelay.client.arguments import (
    Bytes,
    as_bytes,
    as_instant,
    as_kind,
    as_text,
    as_texts,
    as_whole,
    as_whole_or_none,
)
from omnirelay.core.payload import DEFAULT_PRIORITY, DEFAULT_WEIGHT
from omnirelay.errors import InvalidArgument
from omnirelay.wire import requests as asked

BATCH_ITEMS = 1_000
BATCH_BYTES = 3 * 1024 * 1024


class ItemSpec(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """One item for `enqueue_many`; the fields are those of `Client.enqueue`.

    Their order is that of the compact form of an item on the stream (`wire.packed.CompactItem`).
    """

    resource_type: str
    resource_id: str
    body: Bytes = b""
    encoding: str | None = None
    partition_key: str | None = None
    attributes: dict[str, str] | None = None
    request_id: str | None = None
    priority: int = DEFAULT_PRIORITY
    weight: int = DEFAULT_WEIGHT
    delay_ms: int | None = None
    not_before_ms: int | None = None
    max_attempts: int | None = None

    def wire(self) -> asked.EnqueueItem:
        """The item as it is sent. Raises InvalidArgument when the body is not bytes or a text is, or a number or time
        none.
        """
        return asked.EnqueueItem(
            payload=asked.IncomingPayload(
                resource_type=as_text("resource_type", self.resource_type),
                resource_id=as_text("resource_id", self.resource_id),
                partition_key=as_text("partition_key", self.partition_key),
                payload_encoding=as_text("encoding", self.encoding),
                body=as_bytes("body", self.body),
                attributes=as_texts("attributes", self.attributes),
                request_id=as_text("request_id", self.request_id),
            ),
            priority=as_whole("priority", self.priority),
            weight=as_whole("weight", self.weight),
            delay_ms=as_whole_or_none("delay_ms", self.delay_ms),
            not_before=as_instant("not_before_ms", self.not_before_ms),
            max_attempts=as_whole_or_none("max_attempts", self.max_attempts),
        )


def is_plain(item: ItemSpec) -> bool:
    """Whether it can be sent as it is, in the compact form: whatever else is wrong with it is for the node to say.

    Attributes are not looked at: for items of a batch that was done when it was made.
    """
    delay_ms, max_attempts = item.delay_ms, item.max_attempts
    partition_key, encoding, request_id = item.partition_key, item.encoding, item.request_id
    return (
        type(item.body) is bytes
        and type(item.resource_type) is str
        and type(item.resource_id) is str
        and (request_id is None or type(request_id) is str)
        and (partition_key is None or type(partition_key) is str)
        and (encoding is None or type(encoding) is str)
        and type(item.priority) is int
        and type(item.weight) is int
        and (delay_ms is None or type(delay_ms) is int)
        and item.not_before_ms is None
        and (max_attempts is None or type(max_attempts) is int)
    )


def new_request_id() -> str:
    """Random, and as long as a UUID; that class would take six times as long."""
    return os.urandom(16).hex()


def with_ids(items: Sequence[ItemSpec], ids: Sequence[str | None]) -> list[ItemSpec]:
    """The items, each with the request id that stands beside it. The callers' own stay as they are."""
    return [
        item if request_id is None else msgspec.structs.replace(item, request_id=request_id)
        for item, request_id in zip(items, ids, strict=True)
    ]


def _text_in(item: ItemSpec) -> int:
    """How many characters it has: a node reckons with four bytes for each. What is no text is for it to refuse, but for
    bytes, of which it would get base64.
    """
    try:
        text = len(item.resource_type) + len(item.resource_id)
        if item.partition_key is not None:
            text += len(item.partition_key)
        if item.encoding is not None:
            text += len(item.encoding)
        if item.request_id is not None:
            text += len(item.request_id)
        if item.attributes is not None:
            text += len("".join(item.attributes)) + len("".join(item.attributes.values())) + 2 * len(item.attributes)
    except (TypeError, AttributeError):
        as_texts("attributes", item.attributes)
        return 0
    return text


def in_batches(items: Sequence[ItemSpec]) -> list[list[ItemSpec]]:
    """Items in batches that fit one call. Raises InvalidArgument with the `index` of one that is none, or whose body is
    not bytes.
    """
    batch: list[ItemSpec] = []
    batches = [batch]
    size = 0
    for index, item in enumerate(items):
        try:
            body = item.body if type(item) is ItemSpec else as_kind("items", item, ItemSpec).body
            weight = len(body if type(body) is bytes else as_bytes("body", body)) * 4 // 3 + 1_024 + 4 * _text_in(item)
        except InvalidArgument as error:
            error.details["index"] = index
            raise
        if batch and (len(batch) >= BATCH_ITEMS or size + weight > BATCH_BYTES):
            batch = []
            batches.append(batch)
            size = 0
        batch.append(item)
        size += weight
    return batches if batch else []
