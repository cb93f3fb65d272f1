"""The keys of a shard: its namespace, and the options of core under the names and units of a configuration file.

Core has the options, their defaults and their ranges; here its refusals are put into an operator's words.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from omnirelay.core.options import QueueOptions
from omnirelay.errors import InvalidArgument
from omnirelay.node.keys import SECTIONS, Check, Key, by_name, key_of_field
from omnirelay.node.kinds import Auto, Choice, Duration, Kind, Limits, Size, Text, Weights, Whole, Wrong, refused
from omnirelay.node.option_descriptions import OPTION_DESCRIPTIONS
from omnirelay.node.toml_text import toml_key

NAMESPACE_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
NAMESPACE_FORM: Final = "1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit"


def is_namespace(text: str) -> bool:
    # fullmatch, because `$` alone would let a line break at the end pass.
    return re.fullmatch(NAMESPACE_PATTERN, text) is not None


def _namespace(kind: Kind, value: str, written: object) -> None:
    if not is_namespace(value):
        raise refused(value, NAMESPACE_FORM)


def _parts(field: str, value: Any, written: object) -> list[tuple[str, Any, object]]:
    """What core is asked about one by one: the place, the part as core takes it, and as it was written."""
    if field == "limits" and isinstance(written, list):
        return [(f"[{i}]", [limit], written[i]) for i, limit in enumerate(value)]
    if field == "tenant_weights":
        return [(f".{toml_key([tenant])}", {tenant: weight}, weight) for tenant, weight in value.items()]
    return [("", value, written)]


def _option_check(field: str) -> Check:
    """Whether core takes a value by itself. Whether it goes with the others is asked when all are known."""

    def check(kind: Kind, value: Any, written: object) -> None:
        problems: list[tuple[str, str]] = []
        for place, part, shown in _parts(field, value, written):
            try:
                QueueOptions(**{field: part})
            except InvalidArgument as error:
                if refused_field(error) == field and not is_relation(error):
                    problems += refused(shown, allowed_by_core(error, kind), place).problems
        if problems:
            raise Wrong(problems)

    return check


def refused_field(error: InvalidArgument) -> str:
    """The field that core names, in snake case."""
    return re.sub("[A-Z]", lambda upper: f"_{upper[0].lower()}", str(error.details.get("field", "")))


def is_relation(error: InvalidArgument) -> bool:
    """Whether core refused a value because of another one, rather than for itself."""
    return _allowed(error).startswith(("at least ", "below "))


def _allowed(error: InvalidArgument) -> str:
    return error.message.rpartition(", must be ")[2]


def related_fields(error: InvalidArgument) -> set[str]:
    """The options that a refusal of core is about."""
    marks = {"high_watermark", "capacity"} if "the high watermark" in _allowed(error) else set()
    return {refused_field(error), *re.findall("[a-z_]+_ms", _allowed(error)), *marks}


def allowed_by_core(error: InvalidArgument, kind: Kind) -> str:
    """What core allows, in the words and units of a configuration file."""

    def in_units(found: re.Match[str]) -> str:
        return f"{kind.noun} between {kind.written(int(found[1]))} and {kind.written(int(found[2]))}"

    allowed = re.sub(r"a whole number between ([0-9]+) and ([0-9]+)", in_units, _allowed(error))
    return re.sub("([a-z_]+)_ms", r"\1", allowed)


def _option_kind(field: str, type_: Any) -> Kind:
    """Names carry the unit, so a new option of core needs no entry here."""
    if field == "tenant_weights":
        return Weights()
    if field == "limits":
        return Limits()
    if get_origin(type_) is Literal:
        return Choice(*get_args(type_))
    if type_ is str:
        return Text()
    if field.endswith("_ms"):
        kind: Kind = Duration()
    elif "bytes" in field or field == "body_limit":
        kind = Size()
    else:
        kind = Whole()
    return Auto(kind) if type(None) in get_args(type_) else kind


def _option_keys() -> list[Key]:
    return [
        Key(
            name=key_of_field(info.name),
            field=info.name,
            kind=_option_kind(info.name, info.type),
            default=getattr(QueueOptions(), info.name),
            description=OPTION_DESCRIPTIONS.get(key_of_field(info.name), ""),
            check=_option_check(info.name),
        )
        for info in msgspec.structs.fields(QueueOptions)
    ]


_NAMESPACE_KEY = Key(
    name="namespace",
    field="namespace",
    kind=Text(),
    default=None,
    description="What clients call the shard, and its directory below node.data. Default: the name of the shard.",
    check=_namespace,
)


OPTION_KEYS: Final = by_name(_option_keys())
SHARD_KEYS: Final = {"namespace": _NAMESPACE_KEY, **OPTION_KEYS}


def home_of(name: str) -> str | None:
    """The table that has a key of this name, for those who wrote it into another one."""
    for section, keys in SECTIONS.items():
        if name in keys:
            return f"[{section}]"
    return "[shards.NAME]" if name in SHARD_KEYS else None
