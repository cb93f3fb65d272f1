"""Checks on batches of new items. The common item passes at first sight; any other is looked at field by field.

The values are what callers made of them, so every one is taken for anything until its type was seen.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import astuple

from omnirelay.core.intake import (
    ATTRIBUTE_NAME_MAX,
    ATTRIBUTES_MAX,
    BATCH_ITEMS_MAX,
    NAME_MAX,
    STORED_MIN,
    WEIGHT_MAX,
    check_new_item,
    check_stored,
    refuse,
    stored_bytes,
)
from omnirelay.core.items import size_of
from omnirelay.core.payload import NewItem, Payload
from omnirelay.errors import InvalidArgument

# What is asked for with every item; compiled code would look a name up in its module each time.
_astuple: Final = astuple
_NEW_ITEM: Final[Any] = NewItem
_PAYLOAD: Final[Any] = Payload
_NAME_MAX: Final[int] = NAME_MAX
_ATTRIBUTES_MAX: Final[int] = ATTRIBUTES_MAX
_ATTRIBUTE_NAME_MAX: Final[int] = ATTRIBUTE_NAME_MAX
_WEIGHT_MAX: Final[int] = WEIGHT_MAX
_STORED_MIN: Final[int] = STORED_MIN

_AFTER_SPACE: Final = "!"
"""Text that is printable and not below this is neither empty nor blank."""


def check_batch(items: Any, body_limit: int, per_item: int = 0) -> tuple[int, bool]:
    """Check every item of a batch; the error of a bad one names its index. Returns their bytes, and whether all of them
    are plain: due at once, with a class, a weight and attempts as they stand, and without a request id.

    `per_item` is what each event takes in the log beyond its item.
    """
    if not isinstance(items, list) or not items:
        refuse("items", "must be a list with at least one item")
    if len(items) > BATCH_ITEMS_MAX:
        refuse(
            "items",
            f"must be at most {BATCH_ITEMS_MAX} in one call, got {len(items)}",
            code="resourcelease.payload.too_large",
            limit=BATCH_ITEMS_MAX,
        )
    size = 0
    stored = 0
    plain = True
    good: set[str] = set()
    for index, item in enumerate(items):
        if type(item) is _NEW_ITEM:
            payload, priority, weight, not_before, delay_ms, max_attempts = _astuple(item)
            if (
                type(payload) is _PAYLOAD
                and not_before is None
                and delay_ms is None
                and max_attempts is None
                and type(priority) is int
                and type(weight) is int
            ):
                level: int = priority
                units: int = weight
                resource_type, resource_id, partition_key, encoding, body, attributes, request_id = _astuple(payload)
                if (
                    0 <= level <= 9
                    and 1 <= units <= _WEIGHT_MAX
                    and partition_key is None
                    and encoding is None
                    and request_id is None
                    and type(body) is bytes
                    and len(body) <= body_limit
                    and type(resource_type) is str
                    and (resource_type in good or _is_good(resource_type, good))
                    and type(resource_id) is str
                    and resource_id >= _AFTER_SPACE
                    and len(resource_id) <= _NAME_MAX
                    and resource_id.isprintable()
                ):
                    # As most items are: nothing but a type, an id, a body and maybe attributes, all of them good.
                    text = 0 if attributes is None else _attributes_text(attributes, good)
                    if text >= 0:
                        length = len(body)
                        size += length + text
                        stored += length * 4 // 3 + 4 * (len(resource_type) + len(resource_id) + 2 * text) + _STORED_MIN
                        continue
        plain = False
        try:
            check_new_item(item, body_limit)
        except InvalidArgument as error:
            if len(items) > 1:
                error.details["index"] = index
            raise
        size += size_of(item.payload)
        stored += stored_bytes(item.payload)
    check_stored(stored + per_item * len(items))
    return size, plain


def _attributes_text(attributes: Any, good: set[str]) -> int:
    """How many characters good attributes have; -1 when they need a closer look."""
    if type(attributes) is not dict or len(attributes) > _ATTRIBUTES_MAX:
        return -1
    known: dict[Any, Any] = attributes
    text = 0
    for name, value in known.items():
        if type(name) is not str or type(value) is not str or len(name) > _ATTRIBUTE_NAME_MAX:
            return -1
        if (name not in good and not _is_good(name, good)) or (value not in good and not _is_good(value, good)):
            return -1
        text += len(name) + len(value)
    return text


def _is_good(text: str, good: set[str]) -> bool:
    """Whether it is a good name at first sight, remembered for the rest of the call: types and tenants repeat.

    Printable is stricter than clean: what is not goes the long way round.
    """
    if text >= _AFTER_SPACE and len(text) <= _NAME_MAX and text.isprintable():
        good.add(text)
        return True
    return False
