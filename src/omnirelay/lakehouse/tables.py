"""Which tables there are: their columns, what each means, their keys. The reference page is made from this."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

Layer: TypeAlias = Literal["bronze", "silver", "gold"]


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str
    """As Spark's SQL has it."""
    meaning: str


class Table(msgspec.Struct, frozen=True, kw_only=True):
    layer: Layer
    name: str
    meaning: str
    """What a row is."""
    keys: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    """Empty: whatever the source has."""
    partition: tuple[str, ...] = ()
    open: str | None = None
    """The column that is null in rows which may still change, where most rows do not. A format may keep them apart."""
    event: str | None = None
    """The column with the event that began a row. A format may keep rows together whose events are close: those of the
    last minutes are then found without looking at all of them.
    """
    near: tuple[str, ...] = ()
    """The columns by which upkeep puts rows in order, so that those of the same values are found in a few files."""

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def _columns(text: str) -> tuple[Column, ...]:
    """One column a line: name, type, meaning."""
    return tuple(Column(*line.split(maxsplit=2)) for line in text.strip().splitlines())


EVENTS: Final = Table(
    layer="bronze",
    name="events",
    meaning="an event of the log, with every column of the segments and `date`, the day of its timestamp",
    keys=("shard", "sequence"),
    partition=("shard", "date"),
)

QUARANTINE: Final = Table(
    layer="bronze",
    name="quarantine",
    meaning="a segment that was refused, with the reason. The shard stands still before it until it is mended",
    keys=("shard", "segment", "reason"),
    columns=_columns(
        """
        shard STRING whose segment it is
        segment STRING name of the segment, the index or the manifest
        sequence BIGINT the first event that cannot be taken
        reason STRING what is wrong with it
        found_at TIMESTAMP when the pipeline first met it
        """
    ),
)

LEASES: Final = Table(
    layer="silver",
    name="leases",
    meaning="a lease, from its grant to its end",
    keys=("shard", "lease_id"),
    partition=("shard",),
    open="ended_at",
    event="fence",
    columns=_columns(
        """
        shard STRING where it was granted
        lease_id STRING its name in the token
        fence BIGINT its fence: the sequence of the grant
        item BIGINT the item that was leased
        attempt BIGINT which attempt at the item it was
        resource_type STRING of the item when it was granted
        resource_id STRING of the item when it was granted
        owner STRING the peer that got it
        principal STRING as whom the peer was authenticated
        granted_at TIMESTAMP when it was granted; null when that is older than the segments
        expires_at TIMESTAMP until when it was last promised, without what changes of leader added
        last_heartbeat_at TIMESTAMP null when there was none
        heartbeats BIGINT how many there were
        ended_at TIMESTAMP null while it is live
        outcome STRING completed, failed, released, expired or cancelled; null while it is live
        fail_mode STRING what the owner asked for when it failed: retry, release or dead
        undelivered BOOLEAN it ended without any sign of life, and the attempt does not count
        error_code STRING of the failure
        error_message STRING of the failure
        wait_ms BIGINT from when the item could be leased to the grant; null when that is older than the segments
        work_ms BIGINT from the grant to the end
        table_version STRING tableVersion of a JSON result: what the owner says that it committed
        last_sequence BIGINT the last event that says something of it
        """
    ),
)

ITEMS: Final = Table(
    layer="silver",
    name="items",
    meaning="an item, with its life so far. What a node forgets or purges stays here",
    keys=("shard", "item"),
    partition=("shard",),
    open="ended_at",
    event="first_sequence",
    columns=_columns(
        """
        shard STRING where it is
        item BIGINT its id
        resource_type STRING what it is about
        resource_id STRING what it is about
        partition_key STRING as it was given; null when left out
        priority BIGINT of the item
        parent BIGINT the item whose follow-up it is
        peer STRING who enqueued it
        principal STRING as whom
        enqueued_at TIMESTAMP when it came in
        ready_at TIMESTAMP since when it can be leased, or could be before its last lease
        first_granted_at TIMESTAMP when it was leased first
        last_granted_at TIMESTAMP when it was leased last
        ended_at TIMESTAMP when it was completed, cancelled, drained or dead; null before
        state STRING pending, leased, completed, dead, cancelled or drained
        attempt BIGINT number of the last attempt
        leases BIGINT how often it was leased
        failures BIGINT how often it failed
        expiries BIGINT how often its lease ran out
        error_code STRING of the last failure
        error_message STRING of the last failure
        life_ms BIGINT from coming in to its end
        first_sequence BIGINT the first event that names it
        last_sequence BIGINT the last event that names it
        """
    ),
)

PEERS: Final = Table(
    layer="silver",
    name="peers",
    meaning="a time in which a peer kept its leases alive, or did not. The log knows of peers only by their leases:"
    " one that holds none is not seen, and counts as it did last",
    keys=("shard", "peer", "from_sequence"),
    partition=("shard",),
    columns=_columns(
        """
        shard STRING where its leases are
        peer STRING the owner of leases
        from_sequence BIGINT the event that began it
        from_at TIMESTAMP when it began
        until_at TIMESTAMP when it ended; null for the last one
        healthy BOOLEAN whether the peer gave signs of life
        reason STRING why not: its lease ran out, or it never answered to a grant
        signs BIGINT grants, heartbeats and acknowledgements
        expiries BIGINT leases that ran out
        last_seen_at TIMESTAMP the last sign of life in it
        last_sequence BIGINT the last event in it
        """
    ),
)

BACKPRESSURE: Final = Table(
    layer="silver",
    name="backpressure",
    meaning="a time in which one cause kept intake closed. Several causes may overlap",
    keys=("shard", "cause", "from_sequence"),
    partition=("shard",),
    columns=_columns(
        """
        shard STRING whose intake it was
        cause STRING pending: too much was pending; else what the event names
        reason STRING in the words of the cause
        from_sequence BIGINT the event that began it
        from_at TIMESTAMP when it began
        until_at TIMESTAMP when it ended; null while it lasts
        pending BIGINT how much was pending when it began
        high_watermark BIGINT the limit that was reached
        last_sequence BIGINT the last event that says something of it
        """
    ),
)

LINEAGE: Final = Table(
    layer="gold",
    name="lineage",
    meaning="who worked on what, when, under which fence, and what came of it",
    keys=("shard", "lease_id"),
    open="ended_at",
    columns=_columns(
        """
        shard STRING where it was leased
        lease_id STRING the lease
        principal STRING as whom the peer was authenticated
        peer STRING who worked
        resource_type STRING on what
        resource_id STRING on what
        item BIGINT for which item
        fence BIGINT under which fence
        started_at TIMESTAMP when the lease was granted
        ended_at TIMESTAMP when it ended; null while it is live
        outcome STRING what came of it
        table_version STRING the version of a table that the owner says it committed
        """
    ),
)

SLO: Final = Table(
    layer="gold",
    name="slo",
    meaning="five minutes of a shard; there is none where nothing happened",
    keys=("shard", "window_start"),
    columns=_columns(
        """
        shard STRING whose minutes they are
        window_start TIMESTAMP when they began
        events BIGINT events
        enqueued BIGINT items that came in
        granted BIGINT leases that were granted
        ended BIGINT leases that ended
        wait_p50_ms DOUBLE wait of the leases granted, median
        wait_p95_ms DOUBLE wait of the leases granted
        wait_p99_ms DOUBLE wait of the leases granted
        lease_age_p50_ms DOUBLE age of leases at their end, median
        lease_age_p95_ms DOUBLE age of leases at their end
        lease_age_max_ms BIGINT age of leases at their end
        expiry_rate DOUBLE share of the leases ended that ran out; null when none ended
        backpressure_share DOUBLE share of the time in which intake was closed
        commit_lag_max_ms BIGINT longest time from an event to the frame it was committed in
        """
    ),
)

RESOURCE_HEALTH: Final = Table(
    layer="gold",
    name="resource_health",
    meaning="a resource, with how work on it goes",
    keys=("shard", "resource_type", "resource_id"),
    near=("resource_id", "shard"),
    columns=_columns(
        """
        shard STRING where it is worked on
        resource_type STRING the resource
        resource_id STRING the resource
        leases BIGINT leases so far
        live BIGINT leases that are live
        completed BIGINT leases by their end
        failed BIGINT leases by their end
        expired BIGINT leases by their end
        released BIGINT leases by their end
        cancelled BIGINT leases by their end
        owners BIGINT peers that worked on it
        failures_in_a_row BIGINT failures and expiries since it was last completed
        expiries_in_a_row BIGINT expiries since a lease last ended otherwise
        last_outcome STRING of the lease that was granted last among those ended
        last_ended_at TIMESTAMP when a lease last ended
        work_p95_ms DOUBLE time that completed leases took, to within 4 %
        health STRING healthy, failing (three in a row), expiring (three in a row), or new: nothing ended yet
        owner_names ARRAY<STRING> those peers
        last_fence BIGINT the greatest fence among leases ended; null when none is
        good_fence BIGINT the greatest fence among leases completed; 0 when none is
        other_fence BIGINT the greatest fence among leases that ended, but did not run out; 0 when none did
        bad_fences ARRAY<BIGINT> fences of those failures and expiries in a row
        expired_fences ARRAY<BIGINT> fences of those expiries in a row
        work_times ARRAY<STRUCT<ms:BIGINT,leases:BIGINT>> how many completed leases took how long, rounded
        """
    ),
)

ANOMALIES: Final = Table(
    layer="gold",
    name="anomalies",
    meaning="something out of the ordinary on one day. `owner_fails`: of five or more leases of a peer that ended, half"
    " or more failed or ran out, three times the share of all other peers together. `resource_expires`: three or more"
    " leases on it ran out. `retry_storm`: in five minutes twenty or more leases ended badly, and half or more of all"
    " that ended. `clock_skew`: a frame is older than the one it follows; no node writes such a log, whatever is done"
    " to its clock",
    keys=("shard", "date", "kind", "subject"),
    columns=_columns(
        """
        shard STRING where
        date DATE when
        kind STRING owner_fails, resource_expires, retry_storm or clock_skew
        subject STRING the peer, the resource, the minutes or the frame
        value DOUBLE what was measured
        expected DOUBLE what it is compared with
        detail STRING in words
        """
    ),
)

DAILY: Final = Table(
    layer="gold",
    name="daily",
    meaning="a day of a shard",
    keys=("shard", "date"),
    columns=_columns(
        """
        shard STRING whose day it was
        date DATE which day, in UTC
        events BIGINT events
        enqueued BIGINT items that came in
        granted BIGINT leases granted
        heartbeats BIGINT heartbeats
        completed BIGINT leases completed
        failed BIGINT leases that failed
        expired BIGINT leases that ran out
        released BIGINT leases that were released
        cancelled BIGINT items cancelled
        dead BIGINT items that were given up
        owners BIGINT peers that got leases
        wait_p50_ms DOUBLE wait of the leases granted, median, to within 1 %
        wait_p95_ms DOUBLE wait of the leases granted, to within 1 %
        work_p50_ms DOUBLE time that the leases ended had taken, median, to within 1 %
        work_p95_ms DOUBLE time that the leases ended had taken, to within 1 %
        by_peer ARRAY<STRUCT<peer:STRING,granted:BIGINT,ended:BIGINT,bad:BIGINT>> by owner; bad: failed or ran out
        by_resource ARRAY<STRUCT<resource:STRING,expired:BIGINT>> leases that ran out, where any did
        by_window ARRAY<STRUCT<at:TIMESTAMP,ended:BIGINT,bad:BIGINT>> leases that ended, by five minutes
        wait_times ARRAY<STRUCT<ms:BIGINT,leases:BIGINT>> how many of the leases granted had waited how long, rounded
        work_times ARRAY<STRUCT<ms:BIGINT,leases:BIGINT>> how many of the leases ended had taken how long, rounded
        """
    ),
)

SILVER: Final = (LEASES, ITEMS, PEERS, BACKPRESSURE)
"""In the order in which they are brought forward. Leases are first: they need the items as they were before."""
GOLD: Final = (LINEAGE, SLO, RESOURCE_HEALTH, DAILY, ANOMALIES)
"""Likewise: anomalies are made of daily."""
TABLES: Final = (EVENTS, QUARANTINE, *SILVER, *GOLD)


def _of_segments(table: Table) -> tuple[Column, ...]:
    """The columns of a table that has those of the segments, as Spark reads them, and the days it is kept by."""
    from omnirelay.lakehouse.columns import spark_schema
    from omnirelay.segments.schema import column_meanings

    meanings = column_meanings()
    columns = [Column(each.name, each.dataType.simpleString().upper(), meanings[each.name]) for each in spark_schema()]
    days = [Column("date", "DATE", "The day of `timestamp`, in UTC.")] if "date" in table.partition else []
    return (*columns, *days)


def reference() -> str:
    """The tables as a page of Markdown."""
    parts = [
        "# Tables",
        "Made from `omnirelay.lakehouse.tables` by `python -m omnirelay.lakehouse.tables`; a test compares them.",
        "Every table lies below the warehouse as `LAYER/NAME`. Times are UTC; lengths of time are milliseconds.",
    ]
    for table in TABLES:
        parts.append(f"## {table.layer}.{table.name}\n\nA row is {table.meaning}.")
        kept = f" Partitioned by {', '.join(f'`{name}`' for name in table.partition)}." if table.partition else ""
        parts.append(f"Key: {', '.join(f'`{name}`' for name in table.keys)}.{kept}")
        if columns := table.columns or _of_segments(table):
            rows = "\n".join(f"| `{each.name}` | {each.type} | {each.meaning} |" for each in columns)
            parts.append(f"| column | type | meaning |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference())
