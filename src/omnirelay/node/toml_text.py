"""TOML that the standard library does not do: writing values and keys, and finding the line of a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, time

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SIMPLE = r"""(?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')"""
_DOTTED = rf"{_SIMPLE}(?:\s*\.\s*{_SIMPLE})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")

Path = tuple[str, ...]


def toml_value(value: object) -> str:
    """A value as it stands behind `=`, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Mapping):
        fields = ", ".join(f"{toml_key([str(name)])} = {toml_value(field)}" for name, field in value.items())
        return f"{{ {fields} }}" if fields else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_value(element) for element in value)}]"
    return _toml_string(str(value))


def toml_key(path: Iterable[str]) -> str:
    """A dotted key, with quotes around the parts that need them."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else _toml_string(part) for part in path)


def _toml_string(text: str) -> str:
    # Escapes of JSON are escapes of TOML. DEL is the one character that only TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key_lines(text: str) -> dict[Path, int]:
    """The line where each key or table first stands. Best effort: what it does not recognise is left out."""
    lines: dict[Path, int] = {}
    table: Path = ()
    inside_text = False
    for number, line in enumerate(text.split("\n"), start=1):
        began_inside, inside_text = inside_text, inside_text ^ _opens_or_closes_text(line)
        if began_inside:
            continue
        if header := _HEADER.fullmatch(line):
            path = table = _parts(header[1])
        elif assignment := _ASSIGNMENT.match(line):
            path = table + _parts(assignment[1])
        else:
            continue
        # A dotted key makes the tables on its way: they stand here when they stand nowhere before.
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _opens_or_closes_text(line: str) -> bool:
    return (line.count('"""') + line.count("'''")) % 2 == 1


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_SIMPLE, dotted))


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a key, or of the innermost table around it: an inline table has no lines of its own."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return None
