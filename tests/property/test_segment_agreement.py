"""Lines of segments say what their frames say, whatever is in the log; what was changed in them is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.segments.agreement import line_differences
from omnirelay.segments.lines import decode_lines, encode_lines, split_lines
from omnirelay.wire.instants import instant
from tests.property.event_strategies import any_stored, of_a_newer_version
from tests.segment_logs import FrameLog

Document = dict[str, Any]


def log_with(events: list[Document], per_frame: int) -> FrameLog:
    log = FrameLog()
    for at in range(0, len(events), per_frame):
        texts = []
        for number, event in enumerate(events[at : at + per_frame], start=at + 1):
            texts.append(msgspec.json.encode({**event, "sequenceNumber": number}))
        log.commit_raw(*texts)
    return log


def packed(lines: list[bytes]) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(b"".join(line + b"\n" for line in lines))
    return bytes(out.getvalue())


def rewritten(data: bytes, at: int, change: Callable[[Document], None]) -> bytes:
    lines = split_lines(data)
    document = msgspec.json.decode(lines[at])
    change(document)
    lines[at] = msgspec.json.encode(document)
    return packed(lines)


logs = st.builds(
    log_with, st.lists(any_stored() | of_a_newer_version(), min_size=1, max_size=6), per_frame=st.integers(1, 4)
)
regions = st.none() | st.sampled_from(["eu", "région", ""])


@given(logs, regions)
def test_what_was_written_agrees_with_its_frames(log: FrameLog, region: str | None) -> None:
    data = encode_lines(log.frames, region)
    assert list(line_differences(data, decode_lines(data))) == []


@given(logs, regions, st.data())
def test_a_line_that_was_changed_is_named(log: FrameLog, region: str | None, data: st.DataObject) -> None:
    written = encode_lines(log.frames, region)
    lines = split_lines(written)
    at = data.draw(st.integers(0, len(lines) - 1))
    members = set(msgspec.json.decode(lines[at])) - {"frame", "chain"}
    name = data.draw(st.sampled_from(sorted(members)))
    how = data.draw(st.sampled_from(["change", "remove", "add"]))

    def change(document: Document) -> None:
        if how == "change":
            document[name] = {"forged": document[name]}
        elif how == "remove":
            del document[name]
        else:
            document["forged by hand"] = 1

    forged = rewritten(written, at, change)
    [found] = line_differences(forged, decode_lines(forged))
    assert found.sequence == at + 1
    assert f"the line of event {at + 1}" in found.what


def test_what_a_line_says_of_the_queue_and_the_shard_is_compared_and_its_region_is_not() -> None:
    log = FrameLog()
    log.commit(3)
    data = encode_lines(log.frames, "eu")
    for name, value, ok in (
        ("shard.id", "another", False),
        ("shard.id", None, False),
        ("owner", "somebody", False),
        ("region", "us", True),
        ("clock.skew", "3", True),  # As a later version may tell.
    ):

        def change(document: Document, name: str = name, value: str | None = value) -> None:
            document["metadata"] = {**document["metadata"], name: value}

        forged = rewritten(data, 1, change)
        assert (list(line_differences(forged, decode_lines(forged))) == []) is ok, name


def test_an_instant_that_only_another_version_knows_is_no_difference() -> None:
    ms = 1_700_000_000_123
    events: list[Document] = [{"eventType": "Teleported", "arrivesAt": ms, "timestamp": ms} for _ in range(2)]
    data = encode_lines(log_with(events, 2).frames, None)
    for value, ok in ((instant(ms), True), (instant(ms + 1), False), (ms + 1, False)):
        forged = rewritten(data, 1, lambda document, value=value: document.update(arrivesAt=value))  # type: ignore[misc]
        assert (list(line_differences(forged, decode_lines(forged))) == []) is ok, value
    # A known one is text in every version.
    forged = rewritten(data, 1, lambda document: document.update(timestamp=ms))
    assert [each.sequence for each in line_differences(forged, decode_lines(forged))] == [2]
