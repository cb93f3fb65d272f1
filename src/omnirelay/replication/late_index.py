"""The index of a table that is far behind, made once when it has caught up.

To put every row into it as it comes takes nearly half of all that a table costs; to make it of all rows at the end
takes half of that. So it is left out while more is to come than the table holds, nobody calls the node meanwhile, and
the rows that wait for it are so few that it is made within a second or two.

    opened: it is there ──far behind──▶ dropped ──caught up, somebody calls, many rows, closed──▶ made
                                           └── killed: made when the table is opened again

It goes and comes with the rows of a delivery, in one transaction. Who reads the table without it looks through all of
its rows.
"""

from __future__ import annotations

from typing import Final

import apsw

from omnirelay.replication.table_shape import TableShape

WORTH_EVENTS: Final = 100_000
"""Of what follows. With less it is not worth to drop an index."""

ROWS_MAX: Final = 4_000_000
"""Of a table without it: to make it for more would hold up a delivery, and callers, for too long."""

FEW_EVENTS: Final = 20_000
"""Of what follows, when a table has as good as caught up."""

_CACHE_KIB: Final = 128 * 1024
"""For as long as it is made. With less of it, a million rows are sorted in files."""


def leave_out(shape: TableShape, database: apsw.Connection, follows: int) -> bool:
    """Whether there is none any more. It is dropped when so many events behind a delivery make that worth it, within
    the transaction and before the rows.
    """
    if follows >= WORTH_EVENTS:
        rows = shape.rows(database)
        if rows <= follows and rows < ROWS_MAX:
            shape.drop_index(database)
            return True
    return False


def make_up(shape: TableShape, database: apsw.Connection, follows: int) -> None:
    """Make it unless it may wait. Within the transaction of a delivery, behind its rows."""
    if shape.has_index(database) or (follows >= FEW_EVENTS and shape.rows(database) < ROWS_MAX):
        return
    [(cache,)] = database.execute("pragma cache_size").fetchall()
    database.execute(f"pragma cache_size = -{_CACHE_KIB}")
    try:
        shape.make_index(database)
    finally:
        database.execute(f"pragma cache_size = {cache}")
