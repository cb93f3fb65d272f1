-- Version 1 of the log's database. Applied in one transaction; PRAGMA user_version = 1 goes with it.

-- What never changes in the life of a log: shard, log_id, created_ms.
CREATE TABLE meta (
    key   TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per commit. The chain is SHA-256(chain of the row before + data); data is never re-encoded.
-- The wide column stands last, so that the others are read without following its overflow pages.
CREATE TABLE frames (
    last       INTEGER NOT NULL PRIMARY KEY,
    first      INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    time_ms    INTEGER NOT NULL,
    chain      BLOB    NOT NULL,
    data       TEXT    NOT NULL
) STRICT;

-- The end of the log and who may write there; written in the transaction of every frame.
-- unproven says why the history is not proven complete; the next frame must then start a generation.
CREATE TABLE head (
    id            INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    epoch         INTEGER NOT NULL,
    owner         TEXT,
    acquired_ms   INTEGER,
    generation    INTEGER NOT NULL,
    last          INTEGER NOT NULL,
    chain         BLOB    NOT NULL,
    time_ms       INTEGER NOT NULL,
    unproven      TEXT,
    highest_known INTEGER NOT NULL
) STRICT;

-- Where the log begins: the last frame that was trimmed, or the genesis.
CREATE TABLE anchor (
    id            INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    sequence      INTEGER NOT NULL,
    chain         BLOB    NOT NULL,
    highest_fence INTEGER NOT NULL,
    time_ms       INTEGER NOT NULL,
    generation    INTEGER NOT NULL
) STRICT;

-- Verified snapshots; their files lie beside the database.
CREATE TABLE snapshots (
    sequence      INTEGER NOT NULL PRIMARY KEY,
    chain         BLOB    NOT NULL,
    digest        TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    created_ms    INTEGER NOT NULL,
    events        INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    highest_fence INTEGER NOT NULL
) STRICT;

-- The events, one row each, for people: sqlite3 'file:leases.db?mode=ro' 'SELECT * FROM events LIMIT 10'.
-- json_extract instead of ->>, so that shells older than 3.38 read it too.
CREATE VIEW events (
    sequence_number, event_type, timestamp, epoch, generation, schema_version, sequence_id, event
) AS
SELECT
    json_extract(e.value, '$.sequenceNumber'),
    json_extract(e.value, '$.eventType'),
    strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(e.value, '$.timestamp') / 1000.0, 'unixepoch'),
    f.epoch,
    f.generation,
    coalesce(json_extract(e.value, '$.schemaVersion'), 1),
    coalesce(json_extract(e.value, '$.sequenceId'), json_extract(e.value, '$.ownership.sequenceId')),
    e.value
FROM frames AS f, json_each(f.data, '$.events') AS e;
