"""The SQL files: every statement is named and prepares, and the schema version is the number of migrations."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

from omnirelay.log import SqliteLog
from omnirelay.log.sqlite.connection import APPLICATION_ID
from omnirelay.log.sqlite.statements import MIGRATIONS, SCHEMA_VERSION, statement

QUERIES = (files("omnirelay.log.sqlite") / "sql" / "queries.sql").read_text("utf-8")
NAMES = re.findall(r"^-- name: (\w+)$", QUERIES, re.MULTILINE)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    SqliteLog.open(directory, "shard").abandon()
    return directory / "shard" / "leases.db"


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_prepares_against_the_schema(database: Path, name: str) -> None:
    text = statement(name)
    # By our own driver: the SQLite of the machine may be older than a function we use.
    with closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        numbered = [int(number) for number in re.findall(r"\?(\d+)", text)]
        connection.execute("EXPLAIN " + text, [None] * (max(numbered) if numbered else text.count("?")))


def test_no_name_is_used_twice() -> None:
    assert len(NAMES) == len(set(NAMES)) > 20


def test_a_new_database_has_the_newest_schema_and_says_whose_it_is(database: Path) -> None:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    assert version == SCHEMA_VERSION == len(MIGRATIONS)
    assert application == APPLICATION_ID == int.from_bytes(b"ORLG", "big")
    assert mode == "wal"
