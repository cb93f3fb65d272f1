"""Kinds of values that a key of the configuration may have.

A kind reads what stands in a TOML file, or the text of an environment variable, into the value that the settings
hold, and writes it back. What it refuses it names together with what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

import msgspec

from omnirelay.core.options import Limit, LimitKind
from omnirelay.node.quantities import (
    DURATION_FORM,
    DURATION_PATTERN,
    SIZE_FORM,
    SIZE_PATTERN,
    bare_duration_hint,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from omnirelay.node.toml_text import toml_key, toml_value

AUTO: Final = "auto"
"""Written where a value follows from others; so even a file's value can be taken back by the environment."""

_SHOWN_MAX = 120
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")

Schema = dict[str, Any]


class Wrong(Exception):
    """A refused value: each problem is the place inside the value ("" for all of it) and what is wrong there."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__(problems)
        self.problems = problems


def refused(value: object, allowed: str, place: str = "") -> Wrong:
    shown = toml_value(value)
    if len(shown) > _SHOWN_MAX:
        shown = f"{shown[:_SHOWN_MAX]}…"
    return Wrong([(place, f"is {shown}, must be {allowed}")])


def unknown(key: str, known: Sequence[str]) -> str:
    """The words for a key nobody knows, with the one that was probably meant."""
    near = get_close_matches(key.lower(), known, n=1)
    return f"is not a known key; did you mean {near[0]}?" if near else "is not a known key"


class Kind:
    """What the kinds share: text from outside is taken as it is, values are written as they are."""

    noun: str
    """What a value is, for messages."""

    def read(self, value: object) -> Any:
        """The value that the settings hold. Raises Wrong."""
        raise NotImplementedError

    def from_text(self, text: str) -> object:
        """The text of an environment variable as the value that would stand in a file. Raises Wrong."""
        return text

    def written(self, value: Any) -> object:
        """The value as it would stand in a file."""
        return value

    def schema(self) -> Schema:
        raise NotImplementedError


class Text(Kind):
    noun = "text"

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise refused(value, self.noun)
        return value

    def written(self, value: object) -> object:
        return str(value)

    def schema(self) -> Schema:
        return {"type": "string"}


class Choice(Kind):
    def __init__(self, *values: str) -> None:
        self.values = values
        self.noun = "one of " + ", ".join(values)

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.values:
            raise refused(value, self.noun)
        return value

    def schema(self) -> Schema:
        return {"enum": list(self.values)}


class Switch(Kind):
    noun = "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise refused(value, self.noun)
        return value

    def from_text(self, text: str) -> object:
        return {"true": True, "false": False}.get(text.lower(), text)

    def schema(self) -> Schema:
        return {"type": "boolean"}


class Whole(Kind):
    noun = "a whole number"

    def read(self, value: object) -> int:
        # A bool is an int to Python, and never what was meant.
        if not isinstance(value, int) or isinstance(value, bool):
            raise refused(value, self.noun)
        return value

    def from_text(self, text: str) -> object:
        return int(text) if _INTEGER.fullmatch(text) else text

    def schema(self) -> Schema:
        return {"type": "integer"}


class Size(Whole):
    noun = "a size"

    def read(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if not isinstance(value, str):
            raise refused(value, SIZE_FORM)
        try:
            return parse_size(value)
        except ValueError as error:
            raise refused(value, str(error)) from None

    def written(self, value: int) -> object:
        return format_size(value)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]}


class Duration(Kind):
    noun = "a duration"

    def read(self, value: object) -> int:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise refused(value, bare_duration_hint(value) if 0 < value < math.inf else DURATION_FORM)
        if not isinstance(value, str):
            raise refused(value, DURATION_FORM)
        try:
            return parse_duration(value)
        except ValueError as error:
            raise refused(value, str(error)) from None

    def written(self, value: int) -> object:
        return format_duration(value)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": DURATION_PATTERN}


class Auto(Kind):
    """Another kind, or "auto", which the settings hold as None."""

    def __init__(self, inner: Kind) -> None:
        self.inner = inner
        self.noun = inner.noun

    def read(self, value: object) -> Any:
        if value == AUTO:
            return None
        try:
            return self.inner.read(value)
        except Wrong as wrong:
            raise Wrong([(place, f'{what}, or "{AUTO}"') for place, what in wrong.problems]) from None

    def from_text(self, text: str) -> object:
        return text if text == AUTO else self.inner.from_text(text)

    def written(self, value: Any) -> object:
        return AUTO if value is None else self.inner.written(value)

    def schema(self) -> Schema:
        return {"anyOf": [{"const": AUTO}, self.inner.schema()]}


class _Json(Kind):
    """Tables and lists; an environment variable holds them as JSON."""

    def from_text(self, text: str) -> object:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            raise refused(text, f"{self.noun}, as JSON") from None


class Weights(_Json):
    noun = "a table of tenants and whole numbers"

    def read(self, value: object) -> dict[str, int]:
        if not isinstance(value, dict):
            raise refused(value, self.noun)
        problems: list[tuple[str, str]] = []
        for tenant, weight in value.items():
            problems += _problems_of(Whole(), weight, f".{toml_key([tenant])}")
        if problems:
            raise Wrong(problems)
        return dict(value)

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": {"type": "integer"}}


class Texts(_Json):
    noun = "an array of texts"

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
            raise refused(value, self.noun)
        return tuple(value)

    def written(self, value: Sequence[str]) -> object:
        return list(value)

    def schema(self) -> Schema:
        return {"type": "array", "items": {"type": "string"}}


class TextTable(_Json):
    noun = "a table of texts"

    def read(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            raise refused(value, self.noun)
        problems: list[tuple[str, str]] = []
        for name, text in value.items():
            problems += _problems_of(Text(), text, f".{toml_key([name])}")
        if problems:
            raise Wrong(problems)
        return dict(value)

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": {"type": "string"}}


class AnyTable(_Json):
    """A table that somebody else reads."""

    noun = "a table"

    def read(self, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refused(value, self.noun)
        return dict(value)

    def schema(self) -> Schema:
        return {"type": "object"}


_LIMIT_FIELDS: Final[dict[str, Kind]] = {"by": Choice(*get_args(LimitKind)), "match": Text(), "max": Whole()}
_LIMIT_REQUIRED: Final = ("by", "max")


class Limits(_Json):
    noun = "an array of tables with by, match and max"

    def read(self, value: object) -> list[Limit]:
        if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
            raise refused(value, self.noun)
        problems: list[tuple[str, str]] = []
        for index, element in enumerate(value):
            problems += _limit_problems(element, f"[{index}]")
        if problems:
            raise Wrong(problems)
        return [Limit(**element) for element in value]

    def written(self, value: list[Limit]) -> object:
        return [msgspec.structs.asdict(limit) for limit in value]

    def schema(self) -> Schema:
        return {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": list(_LIMIT_REQUIRED),
                "properties": {name: kind.schema() for name, kind in _LIMIT_FIELDS.items()},
            },
        }


def _limit_problems(element: dict[str, object], place: str) -> list[tuple[str, str]]:
    problems = [(f"{place}.{name}", "is missing") for name in _LIMIT_REQUIRED if name not in element]
    for name, field in element.items():
        if name in _LIMIT_FIELDS:
            problems += _problems_of(_LIMIT_FIELDS[name], field, f"{place}.{name}")
        else:
            problems.append((f"{place}.{name}", unknown(name, list(_LIMIT_FIELDS))))
    return problems


def _problems_of(kind: Kind, value: object, place: str) -> list[tuple[str, str]]:
    try:
        kind.read(value)
    except Wrong as wrong:
        return [(place, what) for _, what in wrong.problems]
    return []
