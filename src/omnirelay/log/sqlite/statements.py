"""The SQL of the store, read from the `.sql` files beside this module: named statements and numbered migrations."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_END = re.compile(r";\s*(\n\n|\Z)")


def _load_statements() -> dict[str, str]:
    parts = _NAME.split((files(__package__) / "sql" / "queries.sql").read_text("utf-8"))
    # What stands before the next name includes the comment that introduces it, behind an empty line.
    return {name: _END.split(body)[0].strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _load_migrations() -> tuple[str, ...]:
    directory = files(__package__) / "sql"
    found = sorted(entry.name for entry in directory.iterdir() if re.match(r"\d{4}_", entry.name))
    for number, name in enumerate(found, start=1):
        if int(name[:4]) != number:
            raise RuntimeError(f"migration {number:04d} is missing, found {name}")
    return tuple((directory / name).read_text("utf-8") for name in found)


_STATEMENTS: Final = _load_statements()

MIGRATIONS: Final = _load_migrations()
"""Number n takes a database from user_version n - 1 to n."""

SCHEMA_VERSION: Final = len(MIGRATIONS)


def statement(name: str) -> str:
    """The text of one named statement."""
    return _STATEMENTS[name]
