"""Reading JSON as lenient as clients write it: names in any case, numbers as strings, unknown fields, nulls.

A body that is written as this system writes it is read in one step. Only one that does not fit at first sight takes the
long way: its names are matched without regard to case, what is unknown or null is dropped, and numbers may be text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from omnirelay.errors import TOO_LARGE, InvalidArgument

T = TypeVar("T")

_PATH = re.compile(r" - at `(?:key in )?(\$.*)`$")
_INDEX = re.compile(r"^\$\.\w+\[(\d+)\]")
_NAME = re.compile(r"\.(\w+)")
_MISSING = re.compile(r"Object missing required field `(\w+)`")

_ANY = msgspec.json.Decoder()

OBJECTS_MAX = 500_000
"""Most objects that one body may hold: a few bytes each, they would become hundreds of megabytes."""
MATCHED_MAX = 300_000
"""Most names and elements of a body that take the long way: it is about a microsecond for each, and all wait for it."""

REQUIRED_CODES: Mapping[str, str] = {
    "payload": "resourcelease.payload.required",
    "resourceType": "resourcelease.payload.resource_type_required",
    "resourceId": "resourcelease.payload.resource_id_required",
}


class Reader(Generic[T]):
    """Reads one type of request. Its structs must forbid unknown fields: that is what sends a body the long way."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._many: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def read(self, body: bytes) -> T:
        """The request in `body`; an empty body stands for `{}`. Raises InvalidArgument naming the field."""
        check_objects(body)
        try:
            return self._decoder.decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.convert(_parsed(body or b"{}"))

    def read_many(self, body: bytes) -> list[T]:
        """One request, or an array of them."""
        if body[:1] != b"[":
            return [self.read(body)]
        check_objects(body)
        try:
            return self._many.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            budget = Budget()
            return [self.convert(each, budget) for each in _parsed(body)]

    def convert(self, value: Any, budget: Budget | None = None) -> T:
        """The request in a JSON value that is parsed already. Values of one body share a `budget`."""
        if not isinstance(value, dict):
            raise InvalidArgument(f"the body must be a JSON object, not {_kind_of(value)}", field="body")
        try:
            return msgspec.convert(_matched(value, self._kind, budget or Budget()), self._kind, strict=False)
        except (msgspec.ValidationError, RecursionError) as error:
            raise _refusal(str(error)) from None


def check_objects(body: bytes) -> None:
    """Refuse, before it is read, what can only be meant to be a burden. Braces within text count, too."""
    if len(body) > 2 * OBJECTS_MAX and body.count(b"{") > OBJECTS_MAX:
        raise InvalidArgument(
            f"the body has more than {OBJECTS_MAX} objects; send fewer in one call",
            code=TOO_LARGE,
            field="body",
            limit=OBJECTS_MAX,
        )


def _parsed(body: bytes) -> Any:
    try:
        return _ANY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}", field="body") from None


def _kind_of(value: Any) -> str:
    return {list: "an array", str: "a string", NoneType: "null", bool: "a boolean"}.get(type(value), "a number")


def _refusal(problem: str) -> InvalidArgument:
    """What msgspec found wrong, as an error with the code of the field it names."""
    path_found = _PATH.search(problem)
    path = path_found.group(1) if path_found else "$"
    what = _PATH.sub("", problem)
    details: dict[str, Any] = {}
    index = _INDEX.match(path)
    if index is not None:
        details["index"] = int(index.group(1))
    missing = _MISSING.search(what)
    if missing is not None:
        field = missing.group(1)
        code = REQUIRED_CODES.get(field, f"resourcelease.{field}.invalid")
        return InvalidArgument(f"{field} is required (in {path})", code=code, field=field, **details)
    names = _NAME.findall(path)
    field = names[-1] if names else "body"
    what = what[:1].lower() + what[1:]
    return InvalidArgument(
        f"{field}: {what} (at {path})", code=f"resourcelease.{field}.invalid", field=field, **details
    )


# -- the long way ------------------------------------------------------------------------------


class Budget:
    """How much of a body may still be matched."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MATCHED_MAX

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise InvalidArgument(
                f"something in the body has a wrong type or an unknown name, and with more than {MATCHED_MAX} names and"
                " elements it is too large to find out what; send fewer in one call",
                code=TOO_LARGE,
                field="body",
                limit=MATCHED_MAX,
            )


def _matched(value: Any, kind: Any, budget: Budget) -> Any:
    """The value with the names its type has. Nulls are left out of objects, so that the default holds."""
    if kind is msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(value))
    shape = _shape(kind)
    if isinstance(value, list):
        if shape.element is None:
            return value
        budget.spend(len(value))
        return [_matched(each, shape.element, budget) for each in value]
    if not isinstance(value, dict) or shape.fields is None:
        return value
    budget.spend(len(value))
    matched: dict[str, Any] = {}
    for name, each in value.items():
        known = shape.fields.get(name.lower())
        if known is not None and each is not None:
            matched[known[0]] = _matched(each, known[1], budget)
    return matched


class _Shape:
    """What of a type matters here: the fields of its struct by lower-case name, or the type of its elements."""

    def __init__(self, fields: dict[str, tuple[str, Any]] | None, element: Any) -> None:
        self.fields = fields
        self.element = element


@cache
def _shape(kind: Any) -> _Shape:
    if get_origin(kind) is Annotated:
        return _shape(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        shapes = [_shape(each) for each in get_args(kind) if each is not NoneType]
        with_fields = [shape for shape in shapes if shape.fields is not None or shape.element is not None]
        return with_fields[0] if with_fields else _Shape(None, None)
    if get_origin(kind) is list:
        return _Shape(None, get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        known = {
            each.encode_name.lower(): (each.encode_name, hints[each.name]) for each in msgspec.structs.fields(kind)
        }
        return _Shape(known, None)
    return _Shape(None, None)
