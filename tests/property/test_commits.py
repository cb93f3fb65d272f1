"""`Commits` are the events of their frames, whoever looks at them and from wherever on."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.events import EVENT_NUMBERS, Event, TimeAdvanced
from omnirelay.log.base import Frame
from omnirelay.log.frame import chain_of, decode_frame, encode_frame, genesis_chain
from omnirelay.replication import commits as commits_module
from omnirelay.replication import runs
from omnirelay.replication.commits import Commits
from omnirelay.replication.done import Done
from omnirelay.replication.events import ReplicatedEvent, events_of_frame, json_of
from omnirelay.replication.made import Made, Run
from omnirelay.replication.making import make
from omnirelay.replication.rows import Row, rows_of
from omnirelay.replication.settings import TABLE
from omnirelay.replication.tables import SqliteSink
from omnirelay.wire.instants import instant
from tests.property.event_strategies import any_stored
from tests.property.strategies import profile

JUMP = 1 << 32


@st.composite
def some_frames(draw: st.DrawFn) -> list[Frame]:
    """Frames that continue each other, some with the jump of a generation inside."""
    frames: list[Frame] = []
    sequence, chain = draw(st.integers(0, 5)), genesis_chain("jobs", "log")
    for at in range(draw(st.integers(1, 4))):
        time_ms = 1_700_000_000_000 + at
        events = []
        for stored in draw(st.lists(any_stored(), min_size=1, max_size=5)):
            jumps = draw(st.integers(0, 9)) == 0
            sequence += JUMP if jumps else 1
            event: dict[str, Any] = {**stored, "sequenceNumber": sequence, "timestamp": time_ms}
            if jumps:
                event = {
                    "eventType": "GenerationStarted",
                    "generation": 2,
                    "reason": "test",
                    "nextSequenceId": sequence,
                    "sequenceNumber": sequence,
                    "timestamp": time_ms,
                }
            events.append(msgspec.json.decode(msgspec.json.encode(event), type=Event))
        frame = encode_frame("jobs", "log", 1, 1, time_ms, events, (at, 1))
        chain = chain_of(chain, frame.data)
        frames.append(msgspec.structs.replace(frame, chain=chain))
    return frames


def one_by_one(frames: list[Frame], after: int) -> list[ReplicatedEvent]:
    events: list[ReplicatedEvent] = []
    for frame in frames:
        events += events_of_frame(frame, "eu", after)
        after = max(after, frame.last)
    return events


@profile(40)
@given(some_frames(), st.data())
def test_commits_are_their_events(frames: list[Frame], data: st.DataObject) -> None:
    numbers = [event.sequence for event in one_by_one(frames, 0)]
    after = data.draw(st.sampled_from([0, *numbers[:-1]]))
    whole = [frame for frame in frames if frame.last > after]
    commits, events = Commits(whole, "eu", after), one_by_one(whole, after)
    assert list(commits) == events
    assert (len(commits), commits.first, commits.last) == (len(events), events[0].sequence, events[-1].sequence)
    assert commits[-1] == events[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits_module, "PIECE_BYTES", data.draw(st.sampled_from([1, 300, 1 << 20])))
        assert all(piece.endswith(b"\n") for piece in commits.pieces())
    assert b"".join(commits.pieces()) == b"".join(text + b"\n" for text in json_of(events))
    assert rows_of(commits) == rows_of(events)
    assert Done.of(commits) == Done.of(events)
    assert Done.of(commits).types == Counter(event.event_type for event in events)

    later = data.draw(st.sampled_from(numbers))
    assert list(commits.behind(later)) == [event for event in events if event.sequence > later]


def rows_of_run(commits: Commits, made: Made, run: Run) -> list[Row]:
    """As `Made` and `Run` say it, without a database."""
    whole = commits.frames[run.piece].data if run.in_frame else made.parts[run.piece]
    text, rows = whole[run.begins : run.ends], []
    for at, place in enumerate(memoryview(made.parts[-1]).cast("q")[run.start : run.stop]):
        begins, number = (place >> 32) - 1, run.first + at
        line = text[begins : begins + (place & 0xFFFFFFFF)].decode()
        line += f"{run.number_behind}{number}" if run.number_behind else ""
        rows.append((number, run.event_type, run.timestamp, run.peer, line + run.ending))
    return rows


@profile(40)
@given(some_frames(), st.integers(1, 20), st.data())
def test_runs_are_the_rows_of_their_events(frames: list[Frame], repeated: int, data: st.DataObject) -> None:
    """Also in the table, where the database makes the rows."""
    events = [event for frame in frames for event in decode_frame(frame, shard="jobs", log_id="log")]
    often = [
        msgspec.structs.replace(event, sequence_number=at)
        for at, event in enumerate(sorted(events * repeated, key=id), 1)
    ]
    again = encode_frame("jobs", "log", 1, 1, 1_700_000_000_000, often, (1, 2))
    after = data.draw(st.integers(0, len(often) - 1))
    for commits in (Commits(frames, "eu", 0), Commits([again], "eu", after)):
        rows = rows_of(commits)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "_ROWS_LEAST", data.draw(st.sampled_from([0, 8])))
            commits.made = made = make("rows", commits)
        if made.runs:
            assert rows == [row for run in made.runs for row in rows_of_run(commits, made, run)]
            assert made.types == Done.of(commits).types
        with tempfile.TemporaryDirectory() as directory:
            sink = SqliteSink(Path(directory))
            sink._open("jobs")
            assert sink._database is not None
            sink._insert(commits)
            sink._insert(commits)  # What is there already is left alone.
            table = sink._database.execute(f"select * from {TABLE} order by sequence_number").fetchall()
            sink._let_go()
        assert table == rows


def test_a_commit_of_a_few_calls_goes_into_a_table_in_runs() -> None:
    """Else nothing above would be of use."""
    frame = encode_frame("jobs", "log", 1, 1, 5, [TimeAdvanced(sequence_number=at, timestamp=5) for at in range(1, 41)])
    number = EVENT_NUMBERS["TimeAdvanced"]
    made = make("rows", Commits([frame], "eu", 10))
    assert made.runs == [Run(11, number, instant(5), None, 0, 30, False, 0, 0, len(made.parts[0]))]
    made = make("rows", Commits([frame], "eu", 0))
    assert [(run.first, run.stop, run.in_frame) for run in made.runs] == [(1, 40, True)]
    assert len(made.parts) == 1, "all of its text stands in the commit"


def test_what_stands_in_the_progress_of_a_lease_is_not_counted_as_an_event() -> None:
    stored = [
        {"eventType": "TimeAdvanced", "sequenceNumber": 1, "timestamp": 5},
        {"eventType": "NewerType", "progress": {"eventType": "TimeAdvanced"}, "sequenceNumber": 2, "timestamp": 5},
    ]
    header = {"shard": "jobs", "logId": "log", "generation": 1, "epoch": 1, "first": 1, "last": 2, "time": 5}
    data = msgspec.json.encode({**header, "schema": 1, "events": stored})
    assert Commits([Frame(1, 2, 2, 1, 1, 5, data)], "eu", 0).types() == {"TimeAdvanced": 1, "NewerType": 1}


@profile(25)
@given(some_frames(), st.data())
def test_commits_can_be_joined(frames: list[Frame], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(frames)))
    first = Commits(frames[:cut], "eu", 0)
    both = first.followed_by(Commits(frames[cut:], "eu", first.last))
    assert list(both) == list(Commits(frames, "eu", 0))
    assert both.size == sum(len(frame.data) for frame in frames)
