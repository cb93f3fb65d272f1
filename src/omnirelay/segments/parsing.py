"""Stored events of one type as Arrow columns, parsed by Arrow's own reader of JSON, which leaves the interpreter alone.

It knows less of events than we do. So it gets only what it cannot misunderstand, and says no to the rest: a field that
the type does not have, a list or a map, a value of another kind. Whoever hears no takes events apart one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from omnirelay.core.events import Event
from omnirelay.segments.schema import INSTANT, arrow_schema
from omnirelay.wire.event_schema import EventField, FieldKind, column_of, event_types

_PARSED: Final[dict[FieldKind, pa.DataType]] = {
    "text": pa.string(),
    "whole number": pa.int64(),
    "yes or no": pa.bool_(),
    "instant": pa.int64(),
    "bytes": pa.string(),
}
"""What can be parsed, and as what. Bytes are base64 there."""
_NAMES: Final = {"sequence_number": "sequence"}

_BEGINNING: Final = b'{"eventType":"'
_TYPE_BYTES_MAX: Final = 100

_read_bytes = msgspec.json.Decoder(list[bytes]).decode


def is_plain(data: bytes) -> bool:
    """Whether a frame holds nothing that two readers of JSON could take for different things."""
    # An escape may stand for half a character, and a null for a default that is something else.
    return data.isascii() and b"\\" not in data and b":null" not in data


def types_of(data: bytes, events: Sequence[msgspec.Raw]) -> list[str] | None:
    """The type of each event of a frame, or only one when all have the same. None when some do not say it."""
    first = bytes(events[0])[: len(_BEGINNING) + _TYPE_BYTES_MAX] if events else b""
    name, quote, _ = first.removeprefix(_BEGINNING).partition(b'"')
    # One that stands further inside is found out later: then what is parsed has another type.
    if first.startswith(_BEGINNING) and quote and data.count(_BEGINNING + name + b'"') == len(events):
        return [name.decode()]
    try:
        return [each.event_type for each in _read_types(data).events]
    except msgspec.DecodeError:
        return None


class _Type(msgspec.Struct, rename="camel", gc=False):
    event_type: str


class _Types(msgspec.Struct, gc=False):
    events: list[_Type]


_read_types = msgspec.json.Decoder(_Types).decode


class _Column(msgspec.Struct, frozen=True):
    name: str
    field: EventField
    default: Any
    """Of a field that is left out; None also where it must be there."""


class _Form(msgspec.Struct, frozen=True):
    """How events of a type are read."""

    options: Any
    plain: tuple[_Column, ...]
    objects: tuple[tuple[str, tuple[_Column, ...]], ...]
    """The small objects whose members have columns of their own."""


def parse(event_type: str, events: Sequence[msgspec.Raw | bytes]) -> dict[str, pa.Array] | None:
    """The columns of events of one type, by name; what all of them leave out is missing. None when it takes more than
    parsing. Every event MUST be of a plain frame.
    """
    form = _forms().get(event_type)
    if form is None:
        return None
    text = b"\n".join([*events, b""])
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(text), read_options=reading, parse_options=form.options)
        if table.num_rows != len(events) or table["eventType"].unique().to_pylist() != [event_type]:
            return None
        found = _filled(form.plain, {name: _whole(table[name]) for name in table.column_names})
        for name, members in form.objects:
            values = _whole(table[name])
            if values.null_count:
                return None
            found |= _filled(members, dict(zip(values.type.names, values.flatten(), strict=True)))
    except (pa.ArrowException, msgspec.DecodeError, _Unusual):
        return None
    return found


class _Unusual(Exception):
    """A value that a type does not allow."""


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _filled(columns: Sequence[_Column], parsed: dict[str, pa.Array]) -> dict[str, pa.Array]:
    found = {}
    for column in columns:
        values = parsed[column.field.name]
        if column.field.required and values.null_count:
            raise _Unusual
        if column.field.choices and not set(values.unique().to_pylist()) <= {None, *column.field.choices}:
            raise _Unusual
        if column.field.kind == "bytes":
            values = _decoded(values)
        elif column.field.kind == "instant":
            values = values.cast(INSTANT)
        if column.default is not None and values.null_count:
            values = pc.fill_null(values, pa.scalar(column.default, values.type))
        if values.null_count < len(values):
            found[column.name] = values
    return found


def _decoded(values: pa.Array) -> pa.Array:
    """Bytes out of their base64, by the same decoder that reads events."""
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.binary())
    there = values.drop_null()
    decoded = pa.array(_read_bytes(b'["%b"]' % '","'.join(there.to_pylist()).encode()), pa.binary())
    if not values.null_count:
        return decoded
    # The place of each among those that are there; nothing where there is none.
    places = pc.subtract(pc.cumulative_sum(pc.cast(values.is_valid(), pa.int64())), 1)
    return decoded.take(pc.if_else(values.is_valid(), places, pa.scalar(None, pa.int64())))


# -- how each type is read -----------------------------------------------------------------------


@cache
def _forms() -> dict[str, _Form]:
    definitions = {each.__name__: each for each in get_args(Event)}
    forms = {each.name: _form(each.name, each.fields, definitions[each.name]) for each in event_types()}
    return {name: form for name, form in forms.items() if form is not None}


def _form(event_type: str, fields: Sequence[EventField], definition: Any) -> _Form | None:
    """None for a type that always has something which cannot be parsed."""
    columns = set(arrow_schema().names)
    types: dict[str, Any] = {field.encode_name: field.type for field in msgspec.structs.fields(definition)}
    schema, plain, objects = [], [], []
    for field in fields:
        if field.kind in _PARSED:
            schema.append(pa.field(field.name, _PARSED[field.kind]))
            plain.append(_column(event_type, (field,), definition))
        elif field.kind == "object" and column_of(event_type, field.name) not in columns and field.required:
            members = [member for member in field.fields if member.kind in _PARSED]
            schema.append(pa.field(field.name, pa.struct([(each.name, _PARSED[each.kind]) for each in members])))
            inner = tuple(_column(event_type, (field, each), types[field.name]) for each in members)
            objects.append((field.name, inner))
            if any(member.required and member not in members for member in field.fields):
                return None
        elif field.required:
            return None
    options = pyarrow.json.ParseOptions(explicit_schema=pa.schema(schema), unexpected_field_behavior="error")
    # The tag is in every event, and the type that was asked for.
    return _Form(options, tuple(each for each in plain if each.name != "event_type"), tuple(objects))


def _column(event_type: str, path: tuple[EventField, ...], definition: Any) -> _Column:
    field = path[-1]
    name = column_of(event_type, *(each.name for each in path))
    defaults = {each.encode_name: each.default for each in msgspec.structs.fields(definition)}
    default = defaults.get(field.name)
    return _Column(_NAMES.get(name, name), field, None if default is msgspec.NODEFAULT else default)
