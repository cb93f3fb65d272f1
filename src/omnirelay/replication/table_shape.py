"""The table of events in SQLite: how it is made, what a table that is there must have, and what is put into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw

from omnirelay.replication.rows import Row
from omnirelay.replication.sinks import SinkUnusable

_COLUMNS: Final = ("sequence_number", "event_type", "timestamp", "peer_id", "event_json")
_ROW: Final = "(?, ?, ?, ?, ?)"


class TableShape:
    """The statements for one table. Its name is quoted: some are words of SQL."""

    def __init__(self, table: str) -> None:
        self.name = table
        self.quoted = f'"{table}"'
        self._index = f"IX_{table}_EventType"
        self._into = f"insert into {self.quoted} ({', '.join(_COLUMNS)})"
        # Nothing but an event that is there already is passed over. "or ignore" would hide whatever a table refuses.
        self._unless_there = "on conflict (sequence_number) do nothing"
        self._create = (
            f"{self.quoted} (sequence_number integer primary key, event_type integer not null, timestamp text not null,"
            " peer_id text, event_json text not null)"
        )

    def insert_run(self, *, numbered: bool, behind_last: bool) -> str:
        """See `Made` and `Run` for what it takes. `numbered`: the text ends before its number, which is put there.

        `behind_last`: the rows follow the last one of the table, which then counts them. To say the number of each has
        it looked for twice, which is a tenth of the work.
        """
        # Cut out as bytes, which are found without counting characters. A blob and a text joined are a text.
        text = "substr(?6, value >> 32, value & 0xffffffff) || " + ("?7 || (?1 + rowid) || ?8" if numbered else "?8")
        rest = f"?2, ?3, ?4, {text} from carray(?5)"
        if behind_last:
            return f"insert into {self.quoted} ({', '.join(_COLUMNS[1:])}) select {rest}"
        return f"{self._into} select ?1 + rowid, {rest} where true {self._unless_there}"

    def counts_on(self, database: apsw.Connection) -> bool:
        """Whether a row without a number is certain to get the one behind the last: the table is as we make them, and
        nothing else happens when rows come in.
        """
        there = database.execute(
            "select type, sql from sqlite_schema where tbl_name = ? collate nocase and type <> 'index'", (self.name,)
        ).fetchall()
        return there == [("table", f"CREATE TABLE {self._create}")]

    def insert_rows(self, count: int) -> str:
        return f"{self._into} values {', '.join([_ROW] * count)} {self._unless_there}"

    def make(self, database: apsw.Connection) -> None:
        """Unless it is there. Raises SinkUnusable when what is there cannot take events."""
        database.execute(f"create table if not exists {self._create}")
        self._check(database)
        self.make_index(database)
        database.execute(f"explain {self.insert_rows(1)}", (None,) * len(_COLUMNS))

    def has_index(self, database: apsw.Connection) -> bool:
        found = database.execute("select 1 from sqlite_schema where type = 'index' and name = ?", (self._index,))
        return found.fetchone() is not None

    def make_index(self, database: apsw.Connection) -> None:
        """If there is none of its name."""
        database.execute(f'create index if not exists "{self._index}" on {self.quoted} (event_type)')

    def drop_index(self, database: apsw.Connection) -> None:
        database.execute(f'drop index if exists "{self._index}"')

    def newest(self, database: apsw.Connection) -> int:
        """The number of the last event, 0 when there is none."""
        return _number(database, f"select ifnull(max(sequence_number), 0) from {self.quoted}")

    def rows(self, database: apsw.Connection) -> int:
        """How many there are, if no number is missing. To count them takes long."""
        oldest = f"(select min(sequence_number) from {self.quoted})"
        newest = f"(select max(sequence_number) from {self.quoted})"
        return _number(database, f"select ifnull({newest} - {oldest} + 1, 0)")

    def _check(self, database: apsw.Connection) -> None:
        """Other columns are somebody's business as long as they need no value; ours have to be there."""
        found = {
            str(name): (bool(not_null), default)
            for name, not_null, default in database.execute(
                'select name, "notnull", dflt_value from pragma_table_info(?)', (self.name,)
            )
        }
        missing = [name for name in _COLUMNS if name not in found]
        if missing:
            raise self._another(f"it has no column {', '.join(missing)}")
        needing = [
            name
            for name, (not_null, default) in found.items()
            if not_null and default is None and (name == "peer_id" or name not in _COLUMNS)
        ]
        if needing:
            raise self._another(f"{', '.join(needing)} must not be null, and not every event has a value for it")

    def _another(self, what: str) -> SinkUnusable:
        return SinkUnusable(f"the table {self.name} is another one: {what}; name another table")

    def check_same(self, database: apsw.Connection, rows: Sequence[Row]) -> None:
        """Raises SinkUnusable when the table has other events under these numbers."""
        held = {
            row[0]: row[1:]
            for row in database.execute(
                f"select sequence_number, event_type, timestamp from {self.quoted}"
                " where sequence_number between ? and ?",
                (rows[0][0], rows[-1][0]),
            )
        }
        for sequence, event_type, timestamp, *_ in rows:
            there = held.get(sequence, (event_type, timestamp))
            # A type that one of two versions does not know is 0 for it.
            if there[1] != timestamp or (there[0] != event_type and 0 not in (there[0], event_type)):
                raise SinkUnusable(
                    f"the table {self.name} holds another event {sequence}: another node writes to it, or the log is"
                    " not the one it was; name another table, or empty it, then resume"
                )


def _number(database: apsw.Connection, query: str) -> int:
    found = database.execute(query).get
    assert isinstance(found, int)
    return found
