-- Every statement of the store, by name. The line before a name says what it is for.

-- What this log is.
-- name: read_meta
SELECT key, value FROM meta;

-- name: insert_meta
INSERT INTO meta (key, value) VALUES (?, ?);

-- The head, for the compare of an append and for everybody who asks.
-- name: read_head
SELECT epoch, generation, last, chain, time_ms, unproven, highest_known FROM head WHERE id = 1;

-- name: insert_head
INSERT INTO head (id, epoch, generation, last, chain, time_ms, unproven, highest_known)
VALUES (1, ?, ?, ?, ?, ?, ?, ?);

-- Move the head over a new frame. The compare is repeated here, so that no code path can skip it.
-- name: advance_head
UPDATE head SET generation = ?, last = ?, chain = ?, time_ms = ?, unproven = NULL
WHERE id = 1 AND epoch = ? AND last = ? AND chain = ?;

-- The plain append: compare, frame and head in one statement, which is a transaction by itself. One call instead of
-- five means that the writing thread asks for the interpreter once. It inserts nothing when anything is out of the
-- ordinary (a new generation, another writer, a frame that is there already); then the long way finds out what.
-- name: append_frame
INSERT INTO frames (last, first, count, epoch, generation, time_ms, chain, data)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, CAST(?8 AS TEXT) FROM head
WHERE id = 1 AND epoch = ?4 AND generation = ?5 AND last = ?9 AND chain = ?10 AND unproven IS NULL;

-- Does for `append_frame` what `advance_head` does. Of the writing connection only: the file's schema has no triggers.
-- name: advance_head_by_itself
CREATE TEMP TRIGGER advance_head AFTER INSERT ON main.frames
WHEN NEW.last > (SELECT last FROM main.head WHERE id = 1) BEGIN
    UPDATE head SET last = NEW.last, chain = NEW.chain, time_ms = NEW.time_ms WHERE id = 1;
END;

-- Data is bound as a blob and stored as text: a cast keeps the bytes, a detour through str would re-encode them.
-- name: insert_frame
INSERT INTO frames (last, first, count, epoch, generation, time_ms, chain, data)
VALUES (?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT));

-- Take the log over. What the opening found to be unproven is kept until a generation has been started.
-- name: acquire
UPDATE head SET epoch = epoch + 1, owner = ?, acquired_ms = ?, unproven = coalesce(?, unproven),
    highest_known = max(highest_known, ?)
WHERE id = 1;

-- A backup, or a loss an operator accepted: from now on the history is not proven complete.
-- name: mark_unproven
UPDATE head SET unproven = ?, highest_known = max(highest_known, ?) WHERE id = 1;

-- name: read_anchor
SELECT sequence, chain, highest_fence, time_ms, generation FROM anchor WHERE id = 1;

-- name: insert_anchor
INSERT INTO anchor (id, sequence, chain, highest_fence, time_ms, generation) VALUES (1, ?, ?, ?, ?, ?);

-- name: move_anchor
UPDATE anchor SET sequence = ?, chain = ?, highest_fence = ?, time_ms = ?, generation = ? WHERE id = 1;

-- Frames in order, from the one that holds a sequence.
-- name: read_frames
SELECT first, last, count, epoch, generation, time_ms, CAST(data AS BLOB), chain FROM frames
WHERE last >= ? AND last <= ? ORDER BY last;

-- The newest frame.
-- name: read_last_frame
SELECT first, last, count, epoch, generation, time_ms, CAST(data AS BLOB), chain FROM frames
ORDER BY last DESC LIMIT 1;

-- What the frame that holds a sequence must link to.
-- name: link_before
SELECT last, chain, generation FROM frames WHERE last < ? ORDER BY last DESC LIMIT 1;

-- The chain where a frame ends.
-- name: chain_at
SELECT chain FROM frames WHERE last = ?;

-- How much a walk has before it.
-- name: count_frames
SELECT count(*) FROM frames WHERE last > ? AND last <= ?;

-- How much a reader has before it. The size of a text is known without reading it (SQLite 3.43 or later).
-- name: read_size
SELECT coalesce(sum(min(count, last - ?1)), 0), coalesce(sum(octet_length(data)), 0) FROM frames
WHERE last > ?1 AND last <= ?2;

-- Beyond the head: rows that no commit of ours left there.
-- name: last_of_frames
SELECT max(last) FROM frames;

-- The next frames to trim, without their data.
-- name: trim_candidates
SELECT last, chain, time_ms, generation FROM frames WHERE last < ? ORDER BY last LIMIT ?;

-- name: delete_frames
DELETE FROM frames WHERE last <= ?;

-- name: delete_snapshots
DELETE FROM snapshots WHERE sequence < ?;

-- Newest first.
-- name: read_snapshots
SELECT sequence, chain, digest, path, created_ms, events, bytes, highest_fence FROM snapshots ORDER BY sequence DESC;

-- name: put_snapshot
INSERT OR REPLACE INTO snapshots (sequence, chain, digest, path, created_ms, events, bytes, highest_fence)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_snapshot
DELETE FROM snapshots WHERE sequence = ?;
