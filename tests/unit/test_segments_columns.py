"""Events as columns: every field has its place, and nothing that this version does not know gets lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirelay.core.events import EVENT_NUMBERS, Event
from omnirelay.replication.events import events_of_frame
from omnirelay.segments.arrow import frames_of_arrow, frames_to_arrow, to_arrow
from omnirelay.segments.lines import decode_lines, encode_lines
from omnirelay.segments.parquet import decode_parquet, encode_parquet, read_table
from omnirelay.segments.schema import arrow_schema
from omnirelay.wire.event_schema import flat_fields, snake
from tests.segment_logs import START_MS, FrameLog, log_of


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def event_json(sequence: int, event_type: str = "Cancelled", **fields: Any) -> bytes:
    return msgspec.json.encode(
        {"eventType": event_type, "sequenceNumber": sequence, "timestamp": START_MS, "sequenceId": 5, **fields}
    )


def test_every_field_of_every_event_has_a_column() -> None:
    names = set(arrow_schema().names)
    for field in flat_fields():
        assert field.column in names or field.column == "sequence_number", field
    assert all(name == snake(name) for name in names)
    assert len(names) == len(arrow_schema().names)


def test_the_columns_of_a_frame_say_what_its_events_say() -> None:
    log = log_of(5)
    heartbeat, enqueue, granted, failed, completed = sorted(
        rows(frames_to_arrow(log.frames, "eu")), key=lambda row: row["sequence"] % 5
    )
    assert enqueue["event_type"] == "Enqueue"
    assert enqueue["payload_resource_id"] == "orders-1"
    assert enqueue["payload_body"] == b"\x00\xff"
    assert enqueue["payload_attributes"] == '{"a":"ü"}'
    assert enqueue["ownership_fence"] is None
    assert enqueue["timestamp"].timestamp() * 1000 == START_MS + 1
    assert (granted["event_type"], granted["ownership_fence"], granted["peer_id"]) == ("LeaseGranted", 2, "w")
    assert granted["expires_at"].timestamp() * 1000 == START_MS + 1 + 9
    assert (failed["error_code"], failed["mode"], failed["failure_metadata"]) == ("E1", "retry", '{"k":"v"}')
    assert completed["result"] == b"done"
    assert heartbeat["progress"] == "0.5"
    for row in (enqueue, granted, failed, completed, heartbeat):
        assert (row["shard"], row["region"], row["queue_pending"], row["queue_active"]) == ("jobs", "eu", 1, 5)
        assert (row["frame_first"], row["frame_last"], row["extra"]) == (1, 5, None)
    assert enqueue["frame"] == log.frames[0].data
    assert enqueue["chain"] == log.frames[0].chain
    assert granted["frame"] is None


def test_columns_are_the_same_whether_types_take_turns_or_come_in_long_runs() -> None:
    log = log_of(1_000)
    in_turns = [event for frame in log.frames for event in events_of_frame(frame, "eu")]
    in_runs = sorted(in_turns, key=lambda event: event.sequence % 5)
    made = rows(to_arrow(in_runs))
    assert [row["sequence"] for row in made] == [event.sequence for event in in_runs]
    assert len({row["event_type"] for row in made}) == 5
    assert rows(to_arrow(in_turns)) == sorted(made, key=lambda row: row["sequence"])


def every_event_type() -> bytes:
    """One event of each type, with every field it must have."""
    samples = {
        "payload": {"resourceType": "t", "resourceId": "r"},
        "ownership": {"sequenceId": 1, "attempt": 1, "leaseId": "l"},
        "error": {"message": "m"},
        "options": {},
        "items": [{"sequenceId": 1, "payload": {"resourceType": "t", "resourceId": "r"}}],
        "sequenceIds": [1, 2],
        "mode": "dead",
        "active": True,
    }
    events = []
    for number, kind in enumerate(get_args(Event), 1):
        event: dict[str, Any] = {"eventType": kind.__name__}
        for field in msgspec.structs.fields(kind):
            if field.required:
                default: Any = "x" if field.type is str else number
                event[field.encode_name] = samples.get(field.encode_name, default)
        event["sequenceNumber"] = number
        events.append(msgspec.json.encode(event))
    return b",".join(events)


def test_every_event_type_becomes_a_row_of_its_own() -> None:
    raws = [bytes(each) for each in msgspec.json.decode(b"[" + every_event_type() + b"]", type=list[msgspec.Raw])]
    log = FrameLog()
    frame = log.commit_raw(*raws)
    found = rows(frames_to_arrow([frame], None))
    assert [row["event_type"] for row in found] == [kind.__name__ for kind in get_args(Event)]
    assert set(EVENT_NUMBERS) == {row["event_type"] for row in found}
    redriven = next(row for row in found if row["event_type"] == "Redriven")
    assert redriven["sequence_ids"] == "[1,2]"
    restored = next(row for row in found if row["event_type"] == "RestoreSnapshot")
    assert msgspec.json.decode(restored["items"])[0]["payload"]["resourceId"] == "r"


def test_a_field_that_nobody_knows_yet_is_kept_as_it_stands_there() -> None:
    log = FrameLog()
    log.commit_raw(event_json(1), event_json(2, reason="why", colour={"deep": [1, None]}, note="ü"), schema=7)
    plain, newer = rows(frames_to_arrow(log.frames, None))
    assert plain["extra"] is None
    assert newer["reason"] == "why"
    assert msgspec.json.decode(newer["extra"]) == {"colour": {"deep": [1, None]}, "note": "ü"}


def test_numbers_that_nobody_knows_keep_their_digits() -> None:
    raw = event_json(1)[:-1] + b',"big":12345678901234567890123,"pi":3.140}'
    log = FrameLog()
    log.commit_raw(raw)
    [row] = rows(frames_to_arrow(log.frames, None))
    assert row["extra"] == '{"big":12345678901234567890123,"pi":3.140}'


def test_a_new_member_of_a_known_object_is_kept() -> None:
    work = {"resourceType": "table", "resourceId": "x", "shelf": 4}
    log = FrameLog()
    log.commit_raw(event_json(1, "Enqueue", payload=work))
    [row] = rows(frames_to_arrow(log.frames, None))
    assert row["payload_resource_id"] == "x"
    assert msgspec.json.decode(row["extra"]) == {"payload": {"shelf": 4}}


def test_a_new_member_inside_a_list_keeps_the_whole_list() -> None:
    items = [{"sequenceId": 1, "payload": {"resourceType": "t", "resourceId": "r"}, "shelf": 4}]
    log = FrameLog()
    log.commit_raw(event_json(1, "RestoreSnapshot", items=items))
    [row] = rows(frames_to_arrow(log.frames, None))
    assert msgspec.json.decode(row["extra"])["items"] == items


@pytest.mark.parametrize("raw", [event_json(1, "Teleported", to="moon"), event_json(1, "Enqueue", payload=7)])
def test_an_event_of_an_unknown_type_or_form_is_kept_whole(raw: bytes) -> None:
    log = FrameLog()
    log.commit_raw(raw)
    [row] = rows(frames_to_arrow(log.frames, None))
    assert row["event_type"] == msgspec.json.decode(raw)["eventType"]
    assert (row["sequence"], row["extra"]) == (1, raw.decode())
    assert row["sequence_id"] is None


def test_events_by_themselves_have_the_same_columns_without_frames() -> None:
    log = log_of(7, 4)
    log.commit_raw(event_json(12, "Teleported"), event_json(13, shade="grey"))
    events = [event for frame in log.frames for event in events_of_frame(frame, "eu")]
    made, framed = to_arrow(events), frames_to_arrow(log.frames, "eu")
    assert made.schema == framed.schema
    for name in made.schema.names:
        if name.startswith("frame") or name == "chain":
            assert made[name].null_count == made.num_rows
        else:
            assert made[name].equals(framed[name]), name


def test_no_events_are_an_empty_batch() -> None:
    assert to_arrow([]).num_rows == 0
    assert to_arrow([]).schema == arrow_schema()


@pytest.mark.parametrize("largest", [300, 900])
@pytest.mark.parametrize("form", ["parquet", "lines"])
def test_frames_come_back_as_they_were(form: str, largest: int) -> None:
    log = log_of(1, 5, largest)
    log.commit(2, jump=1 << 32)
    log.commit_raw(event_json(log.last + 1, "Teleported"), schema=99)
    if form == "parquet":
        assert decode_parquet(encode_parquet(log.frames, "eu")) == log.frames
    else:
        assert decode_lines(encode_lines(log.frames, "eu")) == log.frames


@pytest.mark.parametrize("counts", [(2, 3), (400, 1, 500)])
def test_frames_of_a_batch_are_its_frames(counts: tuple[int, ...]) -> None:
    log = log_of(*counts)
    assert frames_of_arrow(pa.Table.from_batches([frames_to_arrow(log.frames, None)])) == log.frames


def test_what_nobody_knows_stands_beside_its_event_among_many() -> None:
    log = log_of(200, 200)
    log.commit_raw(event_json(401, "Teleported"), event_json(402), event_json(403, shade="grey"))
    found = {row["sequence"]: row["extra"] for row in rows(frames_to_arrow(log.frames, None)) if row["extra"]}
    assert found == {401: event_json(401, "Teleported").decode(), 403: '{"shade":"grey"}'}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_frames_are_found_in_any_chunks_of_a_table(kind: pa.DataType) -> None:
    log = log_of(2, 3, 1, 40)
    table = pa.Table.from_batches([frames_to_arrow(log.frames, None)])
    table = table.set_column(table.column_names.index("frame"), "frame", table["frame"].cast(kind))
    # Cut within a frame, with a chunk that begins none, and one that is empty.
    cuts = [0, 1, 3, 4, 4, 20, 30, table.num_rows]
    pieces = [table.slice(begin, end - begin) for begin, end in pairwise(cuts)]
    assert frames_of_arrow(pa.concat_tables(pieces)) == log.frames


@pytest.mark.parametrize(
    "name", ["frame_first", "frame_last", "frame_epoch", "frame_generation", "frame_time", "chain"]
)
def test_a_frame_without_one_of_its_columns_is_refused_by_name(name: str) -> None:
    table = pa.Table.from_batches([frames_to_arrow(log_of(2, 3).frames, None)])
    column = table[name].to_pylist()
    column[2] = None  # Of the second frame.
    damaged = table.set_column(table.column_names.index(name), name, pa.array(column, table[name].type))
    with pytest.raises(ValueError, match=f"a frame without {name}"):
        frames_of_arrow(damaged)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 100])
def test_what_is_no_segment_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_parquet(data)
    with pytest.raises(ValueError, match=r"."):
        decode_lines(data or b"x")


def test_parquet_lets_readers_skip_by_sequence_and_time() -> None:
    log = FrameLog()
    for _ in range(7):
        log.commit(10_000)
    data = encode_parquet(log.frames, "eu")
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    assert metadata.num_row_groups == 2
    names = [metadata.schema.column(at).name for at in range(metadata.num_columns)]
    first, second = (metadata.row_group(at) for at in range(2))
    for name in ("sequence", "timestamp"):
        low, high = (group.column(names.index(name)).statistics for group in (first, second))
        assert low.max <= high.min  # A frame has one time, and may lie across both.
    assert first.column(0).compression == "ZSTD"
    assert first.sorting_columns[0].column_index == names.index("sequence")
    assert read_table(data, ["sequence"])["sequence"].to_pylist() == list(range(1, 70_001))
