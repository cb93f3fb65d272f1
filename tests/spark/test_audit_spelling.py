"""Columns that were made of frames spell these frames, and columns that say anything else do not."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.events import Event
from omnirelay.errors import LogDamaged
from omnirelay.lakehouse.audit_spelling import spell_their_frames
from omnirelay.log.base import Frame
from omnirelay.log.frame import encode_frame
from omnirelay.segments.agreement import column_differences
from omnirelay.segments.arrow import frames_of_arrow, frames_to_arrow
from omnirelay.segments.schema import arrow_schema
from omnirelay.wire.event_schema import event_types
from tests.property.event_strategies import any_stored, stored
from tests.property.test_segment_agreement import log_with
from tests.segment_logs import LOG_ID, SHARD, FrameLog, log_of

Document = dict[str, Any]
_read: Any = msgspec.json.Decoder(Event).decode


def as_a_node_writes(events: list[Document], per_frame: int) -> list[Frame]:
    frames = []
    for at in range(0, len(events), per_frame):
        documents = [{**each, "sequenceNumber": at + 1 + n} for n, each in enumerate(events[at : at + per_frame])]
        of_frame = [_read(msgspec.json.encode(each)) for each in documents]
        frames.append(encode_frame(SHARD, LOG_ID, 1, 1, 5, of_frame, (at, 0) if at % 2 else None))
    return frames


def table_of(frames: list[Frame], region: str | None = None) -> pa.Table:
    return pa.Table.from_batches([frames_to_arrow(frames, region)], schema=arrow_schema())


def is_spelled(table: pa.Table) -> bool:
    try:
        frames = frames_of_arrow(table)
    except ValueError:
        return False  # Before a frame there are none.
    return spell_their_frames(table, frames, SHARD, LOG_ID)


def agrees(table: pa.Table) -> bool:
    """What making the columns of the frames again comes to."""
    try:
        return not list(column_differences(table, table_of(frames_of_arrow(table))))
    except (LogDamaged, ValueError):
        return False  # It cannot even be read.


written = st.builds(as_a_node_writes, st.lists(any_stored(), min_size=1, max_size=8), per_frame=st.integers(1, 4))
strange = st.builds(
    log_with,
    st.lists(any_stored() | any_stored().map(lambda each: {**each, "colour": "red"}), min_size=1, max_size=6),
    per_frame=st.integers(1, 4),
).map(lambda log: log.frames)
"""As no node spells them: with what might be left out, and with what this version does not know."""


@given(written, st.none() | st.sampled_from(["eu", ""]))
def test_columns_of_what_a_node_writes_spell_it(frames: list[Frame], region: str | None) -> None:
    assert is_spelled(table_of(frames, region))


@pytest.mark.parametrize("event_type", event_types(), ids=lambda each: each.name)
@given(st.data())
def test_every_type_of_event_is_spelled(event_type: Any, data: st.DataObject) -> None:
    events = data.draw(st.lists(stored(event_type), min_size=1, max_size=4))
    assert is_spelled(table_of(as_a_node_writes(events, 3)))


@given(written | strange, st.data())
def test_no_column_that_was_changed_is_taken_for_what_the_frames_say(frames: list[Frame], data: st.DataObject) -> None:
    table = table_of(frames)
    name = data.draw(st.sampled_from(arrow_schema().names))
    values = table[name].to_pylist()
    row = data.draw(st.integers(0, len(values) - 1))
    values[row] = data.draw(_other_values(table.schema.field(name).type) | st.sampled_from([None, *values]))
    at = table.schema.get_field_index(name)
    forged = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    assert agrees(forged) or not is_spelled(forged)


def _other_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_binary(kind):
        return st.binary(max_size=3)
    if pa.types.is_string(kind):
        # Also what would be read as more than it is, if it were put between others as it stands.
        return st.text(max_size=3) | st.sampled_from(['x","peerId":"y', "null", "{}", '{"a":1}', "[ 1]", "1,2", " 1"])
    return st.integers(0, 9)


@pytest.mark.parametrize(
    ("column", "value", "in_frame"),
    [
        ("payload_attributes", "null", b'"attributes":null'),
        ("payload_attributes", '{"a":"1","a":"2"}', b'"attributes":{"a":"1","a":"2"}'),
        ("payload_attributes", '{"a":"1"},"weight":7', b'"attributes":{"a":"1"},"weight":7'),
    ],
)
def test_what_a_column_repeats_of_a_frame_is_read_as_the_frame_is(column: str, value: str, in_frame: bytes) -> None:
    payload = b'{"resourceType":"t","resourceId":"r",' + in_frame + b"}"
    log = FrameLog()
    log.commit_raw(b'{"eventType":"Enqueue","sequenceId":1,"payload":%b,"sequenceNumber":1,"timestamp":1}' % payload)
    table = table_of(log.frames)
    at = table.schema.get_field_index(column)
    forged = table.set_column(at, table.schema.field(at), pa.array([value], pa.string()))
    assert not agrees(forged)
    assert not is_spelled(forged)


@pytest.mark.parametrize("name", ["frame_first", "frame_time", "sequence", "event_type", "progress", "shard"])
def test_a_column_that_is_missing_or_of_another_type_is_not_spelled(name: str) -> None:
    frames = log_of(5, 1).frames
    table = table_of(frames)
    at = table.schema.get_field_index(name)
    texts = pa.array([str(each) for each in table[name].to_pylist()], pa.large_string())
    nulls = table.set_column(at, table.schema.field(at), pa.nulls(table.num_rows, table.schema.field(at).type))
    for other in (table.drop_columns([name]), table.set_column(at, name, texts), nulls):
        assert spell_their_frames(table, frames, SHARD, LOG_ID)
        assert not spell_their_frames(other, frames, SHARD, LOG_ID)


def test_frames_of_another_log_or_another_shard_are_not_spelled() -> None:
    frames = log_of(3, 2).frames
    table = table_of(frames)
    assert spell_their_frames(table, frames, SHARD, LOG_ID)
    assert not spell_their_frames(table, frames, SHARD, "log-2")
    assert not spell_their_frames(table, frames, "another", LOG_ID)
    assert not spell_their_frames(table, frames[:1], SHARD, LOG_ID)
    assert not spell_their_frames(table.slice(0, 0), [], SHARD, LOG_ID)
