"""Where a configuration comes from: a file, environment variables and flags, all brought into one form.

    file          [shards.orders] capacity = 5            ┐
    environment   OMNIRELAY_SHARDS__ORDERS__CAPACITY=5    ├─→  Entry(("shards", "orders", "capacity"), 5, origin)
    flags         {"shards.orders.capacity": 5}           ┘

Entries of a later source go before those of an earlier one. What cannot be an entry is a problem.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import Final

import msgspec

from omnirelay.node.keys import NESTED_NOT_YET, NOT_YET, SECTIONS, SHARDS, SINKS
from omnirelay.node.kinds import refused, unknown
from omnirelay.node.toml_text import key_lines, line_of, toml_key

PREFIX: Final = "OMNIRELAY_"
SEPARATOR: Final = "__"

NAMED: Final = {SHARDS: "options of a shard", SINKS: "settings of a sink"}
"""Sections of named tables, and what stands in one."""


class Entry(msgspec.Struct, frozen=True):
    path: tuple[str, ...]
    value: object
    origin: str
    is_text: bool = False
    """Text that stands for a value of any kind, as in an environment variable."""


class Source(msgspec.Struct):
    entries: list[Entry] = []
    shards: dict[str, str] = {}
    """The shards it names, with or without keys, and where."""
    sinks: dict[str, str] = {}
    """The same of sinks."""
    problems: list[str] = []

    def named(self, section: str) -> dict[str, str]:
        return self.shards if section == SHARDS else self.sinks

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.path[0] in NAMED:
            self.named(entry.path[0]).setdefault(entry.path[1], entry.origin)


# ----------------------------------------------------------------------------------------- file


def read_file(path: Path) -> Source:
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text)
    except OSError as error:
        return Source(problems=[f"{path}: cannot be read: {error.strerror or error}"])
    except UnicodeDecodeError:
        return Source(problems=[f"{path}: is not UTF-8 text"])
    except (ValueError, RecursionError) as error:
        return Source(problems=[f"{path}: is not TOML: {error}"])
    return _File(path, key_lines(text)).read(document)


class _File:
    def __init__(self, path: Path, lines: Mapping[tuple[str, ...], int]) -> None:
        self._path = path
        self._lines = lines
        self._source = Source()

    def read(self, document: dict[str, object]) -> Source:
        for name, value in document.items():
            if name in NOT_YET:
                for path, words in _not_yet(name, value):
                    self._problem(path, words)
            elif name in NAMED:
                self._named(name, value)
            elif name in SECTIONS and isinstance(value, dict):
                self._entries((name,), value)
            elif name in SECTIONS:
                self._must_be_table((name,), value, f"a table: [{name}]")
            else:
                # Keys outside of every table, and unknown tables, are reported with all other unknown keys.
                self._source.add(Entry((name,), value, self._origin((name,))))
        return self._source

    def _named(self, section: str, value: object) -> None:
        if not isinstance(value, dict):
            self._must_be_table((section,), value, f"tables: [{section}.NAME]")
            return
        for name, table in value.items():
            if isinstance(table, dict):
                self._source.named(section)[name] = self._origin((section, name))
                self._entries((section, name), table)
            else:
                self._must_be_table((section, name), table, f"a table: {NAMED[section]} stand in [{section}.NAME]")

    def _entries(self, table: tuple[str, ...], values: Mapping[str, object]) -> None:
        for name, value in values.items():
            path = (*table, name)
            self._source.add(Entry(path, value, self._origin(path)))

    def _origin(self, path: tuple[str, ...]) -> str:
        line = line_of(self._lines, path)
        return f"file {self._path}" if line is None else f"file {self._path}:{line}"

    def _must_be_table(self, path: tuple[str, ...], value: object, allowed: str) -> None:
        for _, words in refused(value, allowed).problems:
            self._problem(path, f"{toml_key(path)} {words}")

    def _problem(self, path: tuple[str, ...], words: str) -> None:
        self._source.problems.append(f"{place_of(self._origin(path))}: {words}")


def place_of(origin: str) -> str:
    """An origin at the head of a message, where `name:line` is what editors and people know."""
    return origin.removeprefix("file ")


def _not_yet(name: str, value: object) -> list[tuple[tuple[str, ...], str]]:
    """One problem per table that a later version knows."""
    inner = [key for key, table in value.items() if isinstance(table, dict)] if isinstance(value, dict) else []
    if name in NESTED_NOT_YET and inner:
        return [((name, key), _no_table(f"[{toml_key((name, key))}]")) for key in inner]
    return [((name,), _no_table(f"[[{name}]]" if isinstance(value, list) else f"[{name}]"))]


def _no_table(table: str) -> str:
    return f"this version has no {table} yet; remove it"


# ---------------------------------------------------------------------------------- environment


def read_environment(environ: Mapping[str, str], named: Mapping[str, Collection[str]]) -> Source:
    """Variables whose name has a `__` are keys; all others belong to somebody else. `named` are the shards and sinks
    known so far.
    """
    source = Source()
    given: dict[tuple[str, ...], str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or SEPARATOR not in variable:
            continue
        origin = f"environment {variable}"
        try:
            path = _path_of(variable, named)
        except ValueError as error:
            source.problems.append(f"{origin}: {error}")
            continue
        # Names differ in case only when one of them was forgotten, and which one counts would be a guess.
        if path in given:
            source.problems.append(f"{origin}: {toml_key(path)} is given a second time, after {given[path]}")
            continue
        given[path] = variable
        _add(source, Entry(path, environ[variable], origin, is_text=True))
    return source


def _path_of(variable: str, named: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The key that a variable names. Raises ValueError for one that this version cannot have or cannot tell."""
    parts = variable.removeprefix(PREFIX).split(SEPARATOR)
    section, *inner = [part.lower() for part in parts]
    if section in NOT_YET:
        table = f"[{section}.{inner[0]}]" if section in NESTED_NOT_YET and len(inner) > 1 else f"[{section}]"
        raise ValueError(_no_table(table))
    if section not in NAMED or len(inner) < 2:
        return (section, *inner)
    # The name of a shard or a sink may have the separator in it; a key has not.
    meant = _names_meant(SEPARATOR.join(parts[1:-1]), named[section])
    if len(meant) > 1:
        raise ValueError(f"may mean any of the {section} {', '.join(meant)}")
    return (section, meant[0], inner[-1])


def _names_meant(written: str, names: Collection[str]) -> list[str]:
    """The known shards or sinks that a variable may mean, or the new one that it names."""
    meant = [name for name in dict.fromkeys(names) if _as_variable(name) == _as_variable(written)]
    return meant or [written.lower()]


def _as_variable(name: str) -> str:
    return name.upper().replace("-", "_").replace(".", "_")


# ---------------------------------------------------------------------------------------- flags


def read_flags(flags: Mapping[str, object]) -> Source:
    """Dotted keys and what the command line gave; None was not given."""
    source = Source()
    for dotted, value in flags.items():
        if value is None:
            continue
        path = tuple(dotted.split("."))
        if path[0] in NAMED and len(path) > 2:
            path = (path[0], ".".join(path[1:-1]), path[-1])
        if isinstance(value, PurePath):
            value = str(value)
        _add(source, Entry(path, value, "flag", is_text=isinstance(value, str)))
    return source


def _add(source: Source, entry: Entry) -> None:
    """Take an entry that did not come out of a file, so that its text and its table may be anything."""
    key = toml_key(entry.path)
    if isinstance(entry.value, str) and not _is_utf8(entry.value):
        source.problems.append(f"{entry.origin}: {key} is not UTF-8 text")
    elif entry.path[0] in SECTIONS and len(entry.path) != 2:
        source.problems.append(f"{entry.origin}: {key} is not a known key")
    elif entry.path[0] in NAMED and len(entry.path) != 3:
        what = f"{NAMED[entry.path[0]]} are {entry.path[0]}.NAME.KEY"
        source.problems.append(f"{entry.origin}: {key} is not a known key; {what}")
    elif entry.path[0] in SECTIONS or entry.path[0] in NAMED:
        source.add(entry)
    else:
        source.problems.append(f"{entry.origin}: {key} {unknown(entry.path[0], [*SECTIONS, *NAMED])}")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
