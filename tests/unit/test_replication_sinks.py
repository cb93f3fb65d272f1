"""The sinks by themselves: what they make of events that come again, out of order, or not at all."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.errors import Unavailable
from omnirelay.log.base import Frame
from omnirelay.replication import write_ahead
from omnirelay.replication.commits import Commits
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.files import FileSink
from omnirelay.replication.memory import MemorySink
from omnirelay.replication.settings import TABLE
from omnirelay.replication.sinks import ReplicationSink, SinkGap, SinkUnusable, TargetChanged
from omnirelay.replication.tables import SqliteSink
from omnirelay.replication.threads import OneThread
from omnirelay.testing.sinks import SHARD, SinkConformance, made_event, made_events
from tests.patience import PATIENCE_S

# -- every sink ----------------------------------------------------------------------------------


def lines_of(directory: Path) -> list[dict[str, Any]]:
    lines = []
    for path in sorted((directory / SHARD).glob("*.jsonl")):
        lines += [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    return lines


class TestFileSink(SinkConformance):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return FileSink(directory, rotate_bytes=2_000)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return [line["sequenceNumber"] for line in lines_of(directory)]


class TestFileSinkWithoutAccount(TestFileSink):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return FileSink(directory, keeps_all=False)


class TestSqliteSink(SinkConformance):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return SqliteSink(directory)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return [row[0] for row in rows_of(directory, "sequence_number")]


class TestMemorySink(SinkConformance):
    sinks: dict[Path, MemorySink] = {}  # noqa: RUF012

    def make_sink(self, directory: Path) -> ReplicationSink:
        return self.sinks.setdefault(directory, MemorySink())

    async def read_back(self, directory: Path) -> Sequence[int]:
        return [event.sequence for event in self.sinks[directory].events]


def rows_of(directory: Path, columns: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(directory / f"{SHARD}.db")
    try:
        return connection.execute(f"select {columns} from {TABLE} order by sequence_number").fetchall()
    finally:
        connection.close()


# -- sinks that rebuild a state ------------------------------------------------------------------

EVENTS = made_events(12)


@given(st.lists(st.lists(st.sampled_from(EVENTS), max_size=8), max_size=40))
def test_a_checkpointing_sink_ends_in_the_same_state_whatever_is_delivered(
    deliveries: list[list[ReplicatedEvent]],
) -> None:
    async def run() -> None:
        sink = MemorySink()
        for delivery in deliveries:
            with suppress(SinkGap):
                await sink.apply(delivery)
            # What it has is always the beginning of the log: nothing twice, nothing left out.
            assert sink.events == EVENTS[: len(sink.events)]
        while len(sink.events) < len(EVENTS):  # Whoever delivers comes back with what is missing.
            await sink.apply(EVENTS[max(0, len(sink.events) - 2) : len(sink.events) + 3])
        assert sink.events == EVENTS
        assert await sink.open(SHARD) == EVENTS[-1].sequence

    asyncio.run(run())


async def test_a_new_generation_does_not_hide_a_gap() -> None:
    sink = MemorySink()
    await sink.apply(EVENTS[:5])
    with pytest.raises(SinkGap, match="follows 12"):
        await sink.apply(EVENTS[12:])
    assert sink.events == EVENTS[:5]


async def test_a_log_that_lost_what_a_sink_has_is_not_followed_over_its_jump() -> None:
    sink = MemorySink()
    await sink.apply(EVENTS[:8])
    # Restored from event 5, it goes on far above: its numbers alone look as if nothing were missing.
    with pytest.raises(SinkGap, match="came after 8, but in the log it follows 5"):
        await sink.apply([msgspec.structs.replace(EVENTS[12], previous=5)])
    assert sink.events == EVENTS[:8]


# -- events --------------------------------------------------------------------------------------


def frame_of(*events: dict[str, Any], **more: Any) -> Frame:
    numbers = [event["sequenceNumber"] for event in events]
    header = {
        "shard": SHARD,
        "logId": "x",
        "generation": 1,
        "epoch": 1,
        "first": numbers[0],
        "last": numbers[-1],
        "time": 5,
        "schema": 99,
        "events": list(events),
        **more,
    }
    return Frame(numbers[0], numbers[-1], len(events), 1, 1, 5, msgspec.json.encode(header))


def test_events_of_a_frame_know_what_was_before_them() -> None:
    frame = frame_of(
        {"eventType": "GenerationStarted", "sequenceNumber": 1000, "timestamp": 5},
        {"eventType": "Enqueue", "sequenceNumber": 1001, "timestamp": 5},
        pending=7,
        active=2,
    )
    assert [(e.sequence, e.previous) for e in events_of_frame(frame, "eu", 10)] == [(1000, 10), (1001, 1000)]
    [event] = events_of_frame(frame, "eu", 1000)
    assert (event.sequence, event.previous, event.pending, event.active, event.region) == (1001, 1000, 7, 2, "eu")


def test_unknown_types_and_fields_pass_byte_for_byte() -> None:
    raw = (
        b'{"eventType":"Teleported","sequenceNumber":3,"timestamp":1700000000000,"schemaVersion":9,'
        b'"big":12345678901234567890123,"pi":3.140,"who":{"timestamp":5},"metadata":{"a":"b","n":[1]},"principal":null}'
    )
    frame = frame_of({"eventType": "Enqueue", "sequenceNumber": 3, "timestamp": 5})
    data = frame.data.replace(b'{"eventType":"Enqueue","sequenceNumber":3,"timestamp":5}', raw)
    [event] = events_of_frame(msgspec.structs.replace(frame, data=data), "eu", 2)
    assert event.data == raw
    assert event.event_type == "Teleported"
    text = event.json()
    assert b'"big":12345678901234567890123' in text
    assert b'"pi":3.140' in text
    document = msgspec.json.decode(text)
    assert document["who"] == {"timestamp": 5}
    assert document["timestamp"].startswith("2023-11-14T")
    assert document["schemaVersion"] == 9
    assert document["metadata"] == {"a": "b", "n": [1], "shard.id": SHARD, "region": "eu", "rpc.principal": None}


@pytest.mark.parametrize("metadata", [b"[1]", b'"text"', b"7"])
def test_metadata_of_another_form_is_left_as_it_is(metadata: bytes) -> None:
    event = made_event(1)
    data = b'{"eventType":"X","sequenceNumber":1,"timestamp":5,"metadata":%b}' % metadata
    document = msgspec.json.decode(msgspec.structs.replace(event, data=data).json())
    assert document["metadata"] == msgspec.json.decode(metadata)


def test_a_document_says_how_deep_the_queue_was() -> None:
    document = msgspec.json.decode(made_event(1).json())
    assert document["metadata"] == {
        "shard.id": SHARD,
        "region": "local",
        "queue.pending": "3",
        "queue.active": "1",
    }
    assert document["schemaVersion"] == 1


# -- files ---------------------------------------------------------------------------------------


async def test_a_torn_last_line_is_cut_off_and_comes_again(tmp_path: Path) -> None:
    conformance = TestFileSink()
    await conformance.deliver(tmp_path, EVENTS[:3])
    [path] = (tmp_path / SHARD).glob("*.jsonl")
    whole = path.read_bytes()
    for torn in (whole[:-1], whole + b'{"sequenceNumber":4', whole[: whole.rindex(b"\n", 0, -1) + 1]):
        path.write_bytes(torn)
        known = await conformance.deliver(tmp_path, EVENTS[:5])
        assert known == (3 if torn.startswith(whole) else 2)
        assert [line["sequenceNumber"] for line in lines_of(tmp_path)] == [1, 2, 3, 4, 5]


async def test_a_file_whose_only_line_is_torn_goes(tmp_path: Path) -> None:
    (tmp_path / SHARD).mkdir()
    (tmp_path / SHARD / f"{1:020d}.jsonl").write_bytes(b'{"sequ')
    assert await TestFileSink().deliver(tmp_path, EVENTS[:2]) == 0
    assert [line["sequenceNumber"] for line in lines_of(tmp_path)] == [1, 2]


async def test_files_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    conformance = TestFileSink()
    await conformance.deliver(tmp_path, EVENTS[:3])
    [own] = (tmp_path / SHARD).glob("*.jsonl")
    line = own.read_bytes().splitlines(keepends=True)[0]
    others = {"copy-of-monday.jsonl": line, "notes.jsonl": b"my notes", "zero.jsonl": b"", f"x{1:020d}.jsonl": line}
    for name, data in others.items():
        (tmp_path / SHARD / name).write_bytes(data)
    assert await conformance.deliver(tmp_path, EVENTS[:5]) == 3
    assert [msgspec.json.decode(each)["sequenceNumber"] for each in own.read_bytes().splitlines()] == [1, 2, 3, 4, 5]
    assert {name: (tmp_path / SHARD / name).read_bytes() for name in others} == others


async def test_a_file_with_something_else_under_a_name_of_ours_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / SHARD).mkdir()
    path = tmp_path / SHARD / f"{1:020d}.jsonl"
    path.write_text("my notes\n")
    sink = FileSink(tmp_path)
    with pytest.raises(SinkUnusable, match="is not an event"):
        await sink.open(SHARD)
    await sink.close()
    assert path.read_text() == "my notes\n"


async def test_a_directory_that_cannot_be_made_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for sink in (FileSink(tmp_path / "file" / "x"), SqliteSink(tmp_path / "file" / "x")):
        with pytest.raises(SinkUnusable, match="cannot write to"):
            await sink.open(SHARD)
        await sink.close()


@pytest.mark.parametrize("kind", [FileSink, SqliteSink])
async def test_a_target_that_cannot_be_opened_for_the_moment_is_tried_again(
    kind: Callable[[Path], ReplicationSink], tmp_path: Path
) -> None:
    sink = kind(tmp_path / "new")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # As when a node has more connections than it may.
    try:
        with pytest.raises(Unavailable, match="Too many open files"):
            await sink.open(SHARD)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await sink.open(SHARD) == 0
    await sink.close()


async def test_files_are_rolled_by_size_and_named_after_their_first_event(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, rotate_bytes=1)
    await sink.open(SHARD)
    for at in range(0, 6, 2):
        await sink.apply(EVENTS[at : at + 2])
    await sink.close()
    assert sorted(path.name for path in (tmp_path / SHARD).iterdir()) == [f"{first:020d}.jsonl" for first in (1, 3, 5)]


async def test_what_a_failed_write_left_is_not_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FileSink(tmp_path)
    await sink.open(SHARD)
    await sink.apply(EVENTS[:2])
    real = os.write

    def half(file: int, data: memoryview) -> int:
        if len(data) < 500:
            raise OSError(28, "No space left on device")
        return real(file, data[:500])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            await sink.apply(EVENTS[2:6])
    await sink.apply(EVENTS[2:8])
    await sink.close()
    assert [line["sequenceNumber"] for line in lines_of(tmp_path)] == list(range(1, 9))


async def test_a_delivery_that_was_given_up_does_not_run_beside_its_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(tmp_path)
    await sink.open(SHARD)
    gate = threading.Event()
    real = os.fsync

    def slow(file: int) -> None:
        gate.wait(PATIENCE_S)
        real(file)

    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await sink.apply(EVENTS[:3])
    again = asyncio.create_task(sink.apply(EVENTS[:5]))
    gate.set()
    await again
    await sink.close()
    assert [line["sequenceNumber"] for line in lines_of(tmp_path)] == [1, 2, 3, 4, 5]


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"sequenceNumber":99}\n')


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.read_bytes().index(b"\n") + 1])


def replaced(path: Path) -> None:
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize("change", [Path.unlink, grown, shortened, replaced])
async def test_a_file_that_changed_under_its_sink_takes_nothing_more(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    sink = FileSink(tmp_path)
    await sink.open(SHARD)
    await sink.apply(EVENTS[:3])
    [path] = (tmp_path / SHARD).glob("*.jsonl")
    change(path)
    left = path.read_bytes() if path.exists() else b""
    for _ in range(2):  # It stays so until the sink is opened again.
        with pytest.raises(TargetChanged, match=path.name):
            await sink.apply(EVENTS[3:5])
    assert (path.read_bytes() if path.exists() else b"") == left
    known = await sink.open(SHARD)
    assert known == (msgspec.json.decode(left.splitlines()[-1])["sequenceNumber"] if left else 0)
    await sink.close()


async def test_a_file_that_goes_during_a_delivery_makes_it_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(tmp_path)
    await sink.open(SHARD)
    await sink.apply(EVENTS[:3])
    [path] = (tmp_path / SHARD).glob("*.jsonl")
    real = os.fsync

    def removing(file: int) -> None:
        real(file)
        path.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", removing)
        with pytest.raises(TargetChanged, match="removed"):
            await sink.apply(EVENTS[3:5])
    assert await sink.open(SHARD) == 0
    await sink.close()


async def test_lines_without_an_account_that_went_are_asked_for_again(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, keeps_all=False)
    assert await sink.open(SHARD) is None
    await sink.apply(EVENTS[:3])
    assert await sink.open(SHARD) is None
    shutil.rmtree(tmp_path / SHARD)
    with pytest.raises(TargetChanged):
        await sink.apply(EVENTS[3:5])
    assert await sink.open(SHARD) == 0
    await sink.close()


@pytest.mark.parametrize("change", [Path.unlink, replaced, lambda path: Path(f"{path}-wal").unlink()])
async def test_a_table_whose_file_changed_takes_nothing_more(tmp_path: Path, change: Callable[[Path], None]) -> None:
    sink = SqliteSink(tmp_path)
    await sink.open(SHARD)
    await sink.apply(EVENTS[:3])
    change(tmp_path / f"{SHARD}.db")
    for _ in range(2):
        with pytest.raises(TargetChanged, match=SHARD):
            await sink.apply(EVENTS[3:5])
    await sink.close()


async def test_two_sinks_do_not_write_to_one_directory_at_once(tmp_path: Path) -> None:
    first, second = FileSink(tmp_path), FileSink(tmp_path)
    first.of_log("a")
    second.of_log("b")
    await first.open(SHARD)
    with pytest.raises(Unavailable, match="another sink writes"):
        await second.open(SHARD)
    await first.apply(EVENTS[:2])
    with pytest.raises(SinkUnusable, match="id a"):
        await second.open(SHARD)
    await first.close()
    with pytest.raises(SinkUnusable, match="id a"):
        await second.open(SHARD)
    shutil.rmtree(tmp_path / SHARD)
    assert await second.open(SHARD) == 0
    await second.close()


async def test_a_directory_that_was_emptied_is_anybodys(tmp_path: Path) -> None:
    for log_id in ("a", "b"):
        sink = FileSink(tmp_path)
        sink.of_log(log_id)
        assert await sink.open(SHARD) == 0
        await sink.apply(EVENTS[:2])
        await sink.close()
        shutil.rmtree(tmp_path / SHARD)


def rolling(directory: Path) -> FileSink:
    """A file for every delivery."""
    sink = FileSink(directory, rotate_bytes=1)
    sink.of_log("a")
    return sink


async def test_a_file_that_is_missing_between_others_is_noticed(tmp_path: Path) -> None:
    sink = rolling(tmp_path)
    await sink.open(SHARD)
    for at in range(4):
        await sink.apply(EVENTS[at : at + 1])
    await sink.close()
    files = sorted((tmp_path / SHARD).iterdir())
    files[0].unlink()  # Old ones may go.
    assert await sink.open(SHARD) == 4
    kept = files[2].read_bytes()
    files[2].unlink()
    for _ in range(2):
        with pytest.raises(
            SinkUnusable, match=f"{files[1].name} ends with 2, and the next file begins with 4; put back"
        ):
            await sink.open(SHARD)
    files[2].write_bytes(kept)
    assert await sink.open(SHARD) == 4
    await sink.close()


async def test_gaps_that_the_sink_was_told_to_leave_are_none(tmp_path: Path) -> None:
    sink = rolling(tmp_path)
    for event in (*EVENTS[:2], EVENTS[5], *EVENTS[11:]):  # Some are skipped, and at the end a generation begins.
        await sink.open(SHARD)
        await sink.apply([event])
    assert await sink.open(SHARD) == EVENTS[-1].sequence
    await sink.close()


async def test_gaps_of_a_directory_that_nobody_owned_are_left_as_they_are(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, rotate_bytes=1)
    await sink.open(SHARD)
    for at in (0, 4, 5):
        await sink.apply(EVENTS[at : at + 1])
    await sink.close()
    for at in (6, 7):
        sink = rolling(tmp_path)
        assert await sink.open(SHARD) == at
        await sink.apply(EVENTS[at : at + 1])
        await sink.close()
    sorted((tmp_path / SHARD).iterdir())[2].unlink()
    with pytest.raises(SinkUnusable, match="ends with 5, and the next file begins with 7"):
        await sink.open(SHARD)
    await sink.close()


async def test_of_two_logs_that_open_a_table_one_gets_it(tmp_path: Path) -> None:
    first, second = SqliteSink(tmp_path), SqliteSink(tmp_path)
    for sink, log_id in ((first, "a"), (second, "b")):
        sink.of_log(log_id)
        assert await sink.open(SHARD) == 0
    await first.apply(EVENTS[:3])
    with pytest.raises(SinkUnusable, match="id a"):
        await second.apply(EVENTS[3:6])
    with pytest.raises(SinkUnusable, match="id a"):
        await second.open(SHARD)
    await first.apply(EVENTS[3:4])
    await first.close()
    await second.close()
    assert [row[0] for row in rows_of(tmp_path, "sequence_number")] == [1, 2, 3, 4]


async def test_calls_of_one_thread_come_one_after_the_other() -> None:
    thread = OneThread("test")
    seen: list[int] = []
    await asyncio.gather(*(thread.run(lambda n=n: seen.append(n)) for n in range(50)))  # type: ignore[misc]
    assert seen == list(range(50))
    thread.close()
    await thread.run(lambda: seen.append(50))
    thread.close()
    assert seen[-1] == 50


async def test_a_thread_that_could_not_be_started_is_started_with_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread = OneThread("test")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError):
            await thread.run(lambda: 1)
    async with asyncio.timeout(PATIENCE_S):
        assert await thread.run(lambda: 2) == 2
    thread.close()


HANGING = """
import asyncio, threading
from omnirelay.replication.threads import OneThread

async def main():
    thread, begun = OneThread("test"), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang():
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()

    call = asyncio.create_task(thread.run(hang))
    await begun.wait()
    call.cancel()
    thread.close()

asyncio.run(main())
"""


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    command = [sys.executable, "-c", HANGING]
    done = subprocess.run(command, check=False, timeout=PATIENCE_S, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# -- tables --------------------------------------------------------------------------------------


async def test_the_table_has_the_layout_that_readers_know(tmp_path: Path) -> None:
    await TestSqliteSink().deliver(tmp_path, EVENTS[:7])
    connection = sqlite3.connect(tmp_path / f"{SHARD}.db")
    columns = connection.execute(f"select name, type, \"notnull\", pk from pragma_table_info('{TABLE}')").fetchall()
    indexes = connection.execute("select name from sqlite_master where type = 'index'").fetchall()
    connection.close()
    assert columns == [
        ("sequence_number", "INTEGER", 0, 1),
        ("event_type", "INTEGER", 1, 0),
        ("timestamp", "TEXT", 1, 0),
        ("peer_id", "TEXT", 0, 0),
        ("event_json", "TEXT", 1, 0),
    ]
    assert indexes == [(f"IX_{TABLE}_EventType",)]
    first, *_, unknown = rows_of(tmp_path, "event_type, timestamp, peer_id, event_json")
    assert first[:3] == (EVENT_NUMBERS["Enqueue"], "2023-11-14T22:13:20.001+00:00", "worker-1")
    assert msgspec.json.decode(first[3])["sequenceNumber"] == 1
    assert unknown[0] == 0
    assert msgspec.json.decode(unknown[3])["addedLater"] == {"nested": [1, 2.5, None, "ü"]}


_OURS = "sequence_number integer primary key, event_type integer not null, timestamp text not null, event_json text"


def with_table(directory: Path, columns: str) -> SqliteSink:
    database = sqlite3.connect(directory / f"{SHARD}.db")
    database.execute(f"create table T ({columns})")
    database.close()
    return SqliteSink(directory, table="T")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("sequence_number integer primary key, kind text not null", "no column event_type, timestamp, peer_id"),
        (f"{_OURS}, peer_id text not null", "peer_id must not be null"),
        (f"{_OURS}, peer_id text, shard text not null", "shard must not be null"),
        (f"{_OURS.replace(' primary key', '')}, peer_id text", "(?i)on conflict"),
    ],
)
async def test_a_table_that_cannot_take_events_is_refused_at_once(tmp_path: Path, columns: str, said: str) -> None:
    sink = with_table(tmp_path, columns)
    with pytest.raises(SinkUnusable, match=said):
        await sink.open(SHARD)
    await sink.close()


async def test_a_table_may_have_columns_of_its_own_in_any_order(tmp_path: Path) -> None:
    sink = with_table(tmp_path, f"shard text, {_OURS}, seen integer not null default 7, peer_id text")
    assert await sink.open(SHARD) == 0
    await sink.apply(EVENTS[:3])
    await sink.close()
    database = sqlite3.connect(tmp_path / f"{SHARD}.db")
    assert database.execute("select sequence_number, seen, peer_id from T").fetchall() == [
        (sequence, 7, "worker-1") for sequence in (1, 2, 3)
    ]
    database.close()


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
async def test_texts_are_the_same_in_files_of_any_encoding(tmp_path: Path, encoding: str) -> None:
    database = sqlite3.connect(tmp_path / f"{SHARD}.db")
    database.execute(f"pragma encoding = '{encoding}'")
    database.execute("create table Other (x)")
    database.close()
    event = {"eventType": "TimeAdvanced", "note": "ü\u2028", "timestamp": 5}
    commits = Commits([frame_of(*({**event, "sequenceNumber": at} for at in range(1, 21)))], "eu", 0)
    sink = SqliteSink(tmp_path)
    await sink.open(SHARD)
    await sink.prepare(commits)
    await sink.apply(commits)
    await sink.close()
    assert [row[0].encode() for row in rows_of(tmp_path, "event_json")] == [event.json() for event in commits]


@pytest.mark.parametrize("page_bytes", [4_096, 16_384])
async def test_a_file_of_an_earlier_version_is_gone_on_with(tmp_path: Path, page_bytes: int) -> None:
    """They had smaller pages, which a file keeps for good."""
    event = {"eventType": "TimeAdvanced", "timestamp": 5}
    commits = Commits([frame_of(*({**event, "sequenceNumber": at} for at in range(1, 41)))], "eu", 0)
    half = [
        (each.sequence, EVENT_NUMBERS["TimeAdvanced"], "1970-01-01T00:00:00.005+00:00", None, each.json().decode())
        for each in commits
    ][:20]
    database = sqlite3.connect(tmp_path / f"{SHARD}.db", isolation_level=None)
    database.execute(f"pragma page_size = {page_bytes}")
    database.execute("pragma journal_mode = wal")
    database.execute(
        f'create table "{TABLE}" (sequence_number integer primary key, event_type integer not null,'
        " timestamp text not null, peer_id text, event_json text not null)"
    )
    database.execute(f'create index "IX_{TABLE}_EventType" on "{TABLE}" (event_type)')
    database.execute(
        "create table OmniRelayOwners (table_name text primary key, shard text not null, log_id text not null)"
        " without rowid"
    )
    database.execute("insert into OmniRelayOwners values (?, ?, ?)", (TABLE.lower(), SHARD, "log"))
    database.executemany(f'insert into "{TABLE}" values (?, ?, ?, ?, ?)', half)
    database.close()
    sink = SqliteSink(tmp_path)
    sink.of_log("log")
    assert await sink.open(SHARD) == 20
    await sink.prepare(commits)  # All of it, as after a reset: what is there is recognised.
    await sink.apply(commits)
    await sink.close()
    assert [row[0].encode() for row in rows_of(tmp_path, "event_json")] == [each.json() for each in commits]
    connection = sqlite3.connect(tmp_path / f"{SHARD}.db")
    assert connection.execute("pragma page_size").fetchall() == [(page_bytes,)]
    connection.close()


async def test_the_log_of_a_table_that_grows_on_and_on_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 1 << 20
    monkeypatch.setattr(write_ahead, "WORTH_BYTES", 1 << 18)
    monkeypatch.setattr(write_ahead, "MOST_BYTES", most)
    event = {"eventType": "TimeAdvanced", "timestamp": 5, "note": "x" * 10_000}
    path = tmp_path / f"{SHARD}.db"
    sink, sizes = SqliteSink(tmp_path), []
    await sink.open(SHARD)
    for first in range(1, 1_001, 50):
        events = ({**event, "sequenceNumber": at} for at in range(first, first + 50))
        await sink.apply(Commits([frame_of(*events, first=first)], "eu", first - 1))
        sizes.append(path.with_name(f"{path.name}-wal").stat().st_size)
    assert max(sizes) < 2 * most
    assert path.stat().st_size > 8 * most
    await sink.close()
    assert [row[0] for row in rows_of(tmp_path, "sequence_number")] == list(range(1, 1_001))
    assert os.listdir(tmp_path) == [path.name]


async def test_rows_that_a_table_refuses_are_not_passed_over(tmp_path: Path) -> None:
    sink = with_table(tmp_path, f"{_OURS}, peer_id text, unique (event_type)")
    await sink.open(SHARD)
    with pytest.raises(SinkUnusable, match="refuses events"):
        await sink.apply(EVENTS[:3])
    await sink.close()


async def test_another_event_under_the_same_number_is_not_passed_over(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path)
    await sink.open(SHARD)
    await sink.apply(EVENTS[:3])
    other = msgspec.structs.replace(EVENTS[2], timestamp=5)
    with pytest.raises(SinkUnusable, match="another event 3"):
        await sink.apply([other, EVENTS[3]])
    await sink.close()
    assert [row[0] for row in rows_of(tmp_path, "sequence_number")] == [1, 2, 3]


async def test_a_table_may_be_called_by_a_word_of_sql(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path, table="select")
    assert await sink.open(SHARD) == 0
    await sink.apply(EVENTS[:3])
    assert await sink.open(SHARD) == 3
    await sink.close()


async def test_a_file_that_is_no_database_is_unusable(tmp_path: Path) -> None:
    (tmp_path / f"{SHARD}.db").write_bytes(b"my notes, which are long enough to be looked at" * 100)
    sink = SqliteSink(tmp_path)
    with pytest.raises(SinkUnusable, match="holds something else"):
        await sink.open(SHARD)
    await sink.close()


@pytest.mark.parametrize("name", ["", "a b", "x;drop", "1st", "a" * 64, "omnirelayowners"])
def test_a_name_that_is_none_for_a_table_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SinkUnusable):
        SqliteSink(tmp_path, table=name)
