"""Types that take exactly what the types of the log take, and refuse whatever else stands there.

The log's own types pass over what a newer version added. Columns must not: what this version does not know belongs into
`extra`. To refuse it while it is read costs nothing; to find it afterwards takes encoding everything once more.
"""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec


def strict(kind: Any) -> Any:
    """The same type, with every struct in it replaced by one that refuses names it does not have."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _strict_struct(kind)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is None or not any(_has_struct(each) for each in inside):
        return kind
    replaced = tuple(strict(each) for each in inside)
    if origin in (Union, UnionType):
        return Union[replaced]  # noqa: UP007 -- there is no other way to write a union of a tuple.
    return origin[replaced]


def _has_struct(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return True
    return any(_has_struct(each) for each in get_args(kind))


@cache
def _strict_struct(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    config = kind.__struct_config__
    known = msgspec.structs.fields(kind)
    return msgspec.defstruct(
        kind.__name__,
        [_field(each) for each in known],
        tag=config.tag,
        tag_field=config.tag_field,
        rename={each.name: each.encode_name for each in known},
        omit_defaults=config.omit_defaults,
        forbid_unknown_fields=True,
        kw_only=True,
        gc=False,
    )


def _field(field: msgspec.structs.FieldInfo) -> Any:
    kind = strict(field.type)
    if field.default is not msgspec.NODEFAULT:
        return field.name, kind, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, kind, msgspec.field(default_factory=field.default_factory)
    return field.name, kind
