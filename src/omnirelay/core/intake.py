"""Checks on what callers hand in. Each refusal names its field and changes nothing.

Here is every field by itself; `batches` lets the common item pass at first sight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NoReturn

import msgspec

from omnirelay.core.commands import CompleteItem, FailItem, GrantLeases, Progress, ReleaseItem
from omnirelay.core.events import Event
from omnirelay.core.options import COMMAND_BYTES_MAX, QueueOptions
from omnirelay.core.payload import (
    ANONYMOUS,
    Caller,
    NewItem,
    OwnershipToken,
    Payload,
)
from omnirelay.errors import FailedPrecondition, InvalidArgument

NAME_MAX = 1024
"""Most characters of a resource type, a resource id, a key or the request id of an enqueue."""
CALLER_MAX = 256
"""Most characters of a peer, a principal or the request id of a lease call: a thousand grants repeat them all."""
TEXT_MAX = 16 * 1024
"""Most characters of a reason or an error message."""
ATTRIBUTES_MAX = 64
ATTRIBUTE_NAME_MAX = 128
ATTRIBUTE_VALUE_MAX = 4096
PROGRESS_BYTES_MAX = 64 * 1024
NESTING_MAX = 100
BATCH_ITEMS_MAX = 10_000
DIGEST_BYTES = 16
WEIGHT_MAX = 1_000_000
ATTEMPTS_MAX = 1_000_000
TIME_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: later instants have no ISO-8601 form everybody reads."""
DELAY_MAX_MS = 10 * 365 * 24 * 3_600_000

STORED_MIN: Final = 768
"""No less than what an event takes in the log besides what its item brings along."""

_wire_form = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode


LEASES_MAX: Final = 1_000
"""Most leases one call may take."""

FILTER_MAX: Final = 1_000
"""Most resource types or tenants one call may name."""

_SURROGATE_FIRST: Final = chr(0xD800)
_SURROGATE_LAST: Final = chr(0xDFFF)


def refuse(field: str, why: str, *, code: str | None = None, **details: Any) -> NoReturn:
    raise InvalidArgument(f"{field} {why}", code=code or f"resourcelease.{field}.invalid", field=field, **details)


def is_clean(text: object, length_max: int = NAME_MAX) -> bool:
    """Whether this is text that every store and every reader takes: no control characters, valid UTF-8."""
    if type(text) is not str or len(text) > length_max:
        return False
    return text.isprintable() or not any(
        (c < " " and c not in "\t\n\r") or c == "\x7f" or _SURROGATE_FIRST <= c <= _SURROGATE_LAST for c in text
    )


def check_text(field: str, text: str | None, length_max: int = NAME_MAX) -> None:
    if text is not None and not is_clean(text, length_max):
        refuse(field, f"must be text of at most {length_max} characters without control characters")


def check_name(field: str, text: str | None, length_max: int = NAME_MAX) -> None:
    """Text that is not blank, when there is one at all."""
    check_text(field, text, length_max)
    if text is not None and (not text or text.isspace()):
        refuse(field, "must not be blank")


def check_names(field: str, names: Sequence[str], count_max: int) -> None:
    """A list of names, none of them blank; the empty name stands for "none"."""
    if not isinstance(names, (tuple, list)) or len(names) > count_max:
        refuse(field, f"must be a list of at most {count_max} names")
    for name in names:
        if not is_clean(name):
            refuse(field, f"must be names of at most {NAME_MAX} characters without control characters")


def check_required_number(field: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        refuse(field, f"must be a whole number from {low} to {high}")


def check_number(field: str, value: int | None, low: int, high: int) -> None:
    if value is not None:
        check_required_number(field, value, low, high)


def check_attributes(field: str, attributes: Mapping[str, str] | None) -> None:
    if attributes is None:
        return
    if not isinstance(attributes, dict):
        refuse(field, "must be a map of strings")
    if len(attributes) > ATTRIBUTES_MAX:
        refuse(field, f"must be at most {ATTRIBUTES_MAX}, got {len(attributes)}")
    for name, value in attributes.items():
        if not is_clean(name, ATTRIBUTE_NAME_MAX) or not name:
            refuse(field, f"must have names of 1 to {ATTRIBUTE_NAME_MAX} plain characters")
        if not is_clean(value, ATTRIBUTE_VALUE_MAX):
            refuse(field, f"must have text of at most {ATTRIBUTE_VALUE_MAX} characters under {name!r}")


def check_payload(payload: Payload, body_limit: int) -> None:
    if not isinstance(payload, Payload):
        refuse("payload", "is required", code="resourcelease.payload.required")
    _check_required("resourceType", payload.resource_type, "resourcelease.payload.resource_type_required")
    _check_required("resourceId", payload.resource_id, "resourcelease.payload.resource_id_required")
    if payload.payload_encoding is not None:
        _check_required("payloadEncoding", payload.payload_encoding, "resourcelease.payload.encoding_required")
    check_name("partitionKey", payload.partition_key)
    check_name("requestId", payload.request_id)
    if type(payload.body) is not bytes:
        refuse("body", "must be bytes")
    if len(payload.body) > body_limit:
        refuse(
            "body",
            f"has {len(payload.body)} bytes, the limit is {body_limit}; keep large data in a store and enqueue "
            "its address",
            code="resourcelease.payload.too_large",
            limit=body_limit,
        )
    check_attributes("attributes", payload.attributes)


def _check_required(field: str, text: str, code: str) -> None:
    if text is None or (type(text) is str and (not text or text.isspace())):
        refuse(field, "is required and must not be blank", code=code)
    check_text(field, text)


def check_new_item(item: NewItem, body_limit: int) -> None:
    if type(item) is not NewItem:
        refuse("payload", "is required", code="resourcelease.payload.required")
    check_payload(item.payload, body_limit)
    check_required_number("priority", item.priority, 0, 9)
    check_required_number("weight", item.weight, 1, WEIGHT_MAX)
    check_number("delayMs", item.delay_ms, 0, DELAY_MAX_MS)
    check_number("notBefore", item.not_before_ms, 0, TIME_MAX_MS)
    if item.delay_ms is not None and item.not_before_ms is not None:
        refuse("delayMs", "and notBefore exclude each other")
    check_number("maxAttempts", item.max_attempts, 1, ATTEMPTS_MAX)


def check_caller(caller: Caller) -> None:
    if type(caller) is not Caller:
        refuse("caller", "must be a Caller")
    if caller is not ANONYMOUS:
        check_name("principal", caller.principal, CALLER_MAX)
        check_name("peerId", caller.peer_id, CALLER_MAX)


def caller_bytes(caller: Caller) -> int:
    """No less than what naming the caller takes in an event."""
    return 4 * (len(caller.principal or "") + len(caller.peer_id or ""))


def stored_bytes(payload: Payload) -> int:
    """No less than the bytes an event with this payload takes in the log: base64, and 4 bytes a character."""
    text = len(payload.resource_type) + len(payload.resource_id)
    if payload.partition_key is not None:
        text += len(payload.partition_key)
    if payload.payload_encoding is not None:
        text += len(payload.payload_encoding)
    if payload.request_id is not None:
        text += len(payload.request_id)
    if payload.attributes is not None:
        for name, value in payload.attributes.items():
            text += len(name) + len(value) + 2
    return len(payload.body) * 4 // 3 + 4 * text + STORED_MIN


def check_stored(stored: int, bytes_max: int = COMMAND_BYTES_MAX) -> None:
    """Refuse a command whose events might not fit one frame."""
    if stored > bytes_max:
        refuse(
            "items",
            f"take about {stored} bytes together, one call takes at most {bytes_max}; send them in several calls",
            code="resourcelease.payload.too_large",
            limit=bytes_max,
        )


def check_storable(events: Sequence[Event], bytes_max: int = COMMAND_BYTES_MAX) -> None:
    """Encode what a command leads to before anything happens: what the log cannot hold is the caller's mistake.

    For commands that come seldom; those that come by the thousand are bounded field by field instead.
    """
    if not events:
        return
    try:
        size = len(_encode(events))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(
            f"the request cannot be written down: {error}", code="resourcelease.request.invalid", field="request"
        ) from None
    check_stored(size, bytes_max)


def check_token(token: OwnershipToken) -> OwnershipToken:
    """The token with its lease id in lower case. One that no shard can have issued is an unknown one."""
    if type(token) is not OwnershipToken:
        refuse("ownershipToken", "is required")
    if type(token.sequence_id) is not int or type(token.attempt) is not int or type(token.lease_id) is not str:
        raise FailedPrecondition("the token is not one this shard issued", code="error.resourcelease.unknown_token")
    if token.lease_id.islower():
        return token
    return OwnershipToken(token.sequence_id, token.attempt, token.lease_id.lower(), token.fence)


def check_grant(command: GrantLeases, options: QueueOptions) -> None:
    check_required_number("maxItems", command.items_max, 1, LEASES_MAX)
    check_number("leaseDurationMs", command.lease_duration_ms, 1, options.max_lease_duration_ms)
    check_name("requestId", command.request_id, CALLER_MAX)
    check_caller(command.caller)
    if command.resource_types is not None:
        check_names("resourceTypes", command.resource_types, FILTER_MAX)
    if command.tenants is not None:
        check_names("tenants", command.tenants, FILTER_MAX)


def check_completion(command: CompleteItem, options: QueueOptions) -> None:
    check_name("resultEncoding", command.result_encoding)
    check_caller(command.caller)
    if command.result is not None:
        if type(command.result) is not bytes:
            refuse("result", "must be bytes")
        if len(command.result) > options.body_limit:
            refuse(
                "result",
                f"has {len(command.result)} bytes, the limit is {options.body_limit}",
                code="resourcelease.payload.too_large",
                limit=options.body_limit,
            )


def check_failure(command: FailItem) -> None:
    if command.mode not in ("retry", "release", "dead"):
        refuse("mode", "must be retry, release or dead")
    check_text("reason", command.reason, TEXT_MAX)
    check_name("errorCode", command.error_code)
    check_number("delayMs", command.delay_ms, 0, DELAY_MAX_MS)
    check_attributes("metadata", command.metadata)


def check_release(command: ReleaseItem) -> None:
    check_number("delayMs", command.delay_ms, 0, DELAY_MAX_MS)


def encode_progress(progress: Progress) -> bytes:
    fraction = progress.fraction
    if fraction is not None and (type(fraction) not in (int, float) or not 0 <= fraction <= 1):
        refuse("progress", "must have a fraction from 0 to 1")
    check_text("progress", progress.message, TEXT_MAX)
    try:
        encoded = msgspec.json.encode(progress)
        check_nesting(encoded)
        # Raw JSON in it is whatever somebody made: it has to be some, and without line feeds between its tokens.
        encoded = msgspec.json.format(encoded, indent=-1)
        encoded.decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"progress.data is not JSON: {error}", code="resourcelease.progress.invalid", field="progress"
        ) from None
    if len(encoded) > PROGRESS_BYTES_MAX:
        refuse("progress", f"must be at most {PROGRESS_BYTES_MAX} bytes as JSON, got {len(encoded)}")
    return encoded


def check_nesting(encoded: bytes) -> None:
    """Refuse JSON that nests too deep: it is written without complaint, and no reader gets it back."""
    if encoded.count(b"[") + encoded.count(b"{") <= NESTING_MAX:
        return
    depth = 0
    in_text = escaped = False
    for byte in encoded:
        if in_text:
            in_text = escaped or byte != 0x22
            escaped = not escaped and byte == 0x5C
        elif byte == 0x22:
            in_text = True
        elif byte in b"[{":
            depth += 1
            if depth > NESTING_MAX:
                refuse("progress", f"must not nest deeper than {NESTING_MAX} levels")
        elif byte in b"]}":
            depth -= 1


def request_key(principal: str | None, request_id: str) -> bytes:
    """16 bytes for a request id within the scope of its principal: short, and the same length for all."""
    return blake2b(_wire_form((principal, request_id)), digest_size=DIGEST_BYTES).digest()


def payload_digest(payload: Payload) -> bytes:
    """16 bytes that tell whether a repeated request id came with the same payload."""
    return blake2b(
        _wire_form(
            (
                payload.resource_type,
                payload.resource_id,
                payload.partition,
                payload.encoding,
                payload.body,
                sorted(payload.attributes.items()) if payload.attributes else None,
            )
        ),
        digest_size=DIGEST_BYTES,
    ).digest()
