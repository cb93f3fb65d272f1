"""What sinks write is made in other processes, and nothing comes of it but speed: they may be lost at any time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import get_args

import msgspec
import pytest

from omnirelay.core.events import TimeAdvanced
from omnirelay.errors import LogDamaged
from omnirelay.log.frame import chain_of, encode_frame, genesis_chain
from omnirelay.replication import workshop as workshop_module
from omnirelay.replication.commits import Commits
from omnirelay.replication.made import Form
from omnirelay.replication.making import make, takes_long_to_begin
from omnirelay.replication.replication import Replication
from omnirelay.replication.settings import TABLE, FollowSettings, SinkSettings
from omnirelay.replication.workshop import Workshop
from omnirelay.segments.connecting import connect
from omnirelay.segments.reader import SegmentReader
from omnirelay.testing.clock import FakeClock
from tests.integration.shards import NAMESPACE, Place, frames_of, soon
from tests.integration.test_replication_following import in_table, log_of, work
from tests.patience import PATIENCE_S

FORMS: tuple[Form, ...] = get_args(Form)


def some_commits(count: int = 40, after: int = 0) -> Commits:
    frames, chain = [], genesis_chain("jobs", "log")
    for start in range(1, count, 10):
        events = [TimeAdvanced(sequence_number=at, timestamp=5 + start) for at in range(start, start + 10)]
        frame = encode_frame("jobs", "log", 1, 1, 5 + start, events, (1, 2))
        chain = chain_of(chain, frame.data)
        frames.append(msgspec.structs.replace(frame, chain=chain))
    return Commits(frames, "eu", after)


@asynccontextmanager
async def working(workers_max: int = 1, worth_bytes: int = 0) -> AsyncIterator[Workshop]:
    workshop = Workshop(workers_max=workers_max, worth_bytes=worth_bytes)
    try:
        yield workshop
    finally:
        await workshop.close()


def is_running(pid: int) -> bool:
    """A process that has ended and that nobody has asked about does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def ended(pid: int) -> None:
    """Return when it has, whoever is its parent."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(process, over.set)
    try:
        await over.wait()
    finally:
        asyncio.get_running_loop().remove_reader(process)
        os.close(process)


async def test_a_process_lets_callers_go_first_from_its_start_on() -> None:
    """Not only once it has imported all it needs: that takes a processor for a fifth of a second."""
    async with working() as workshop:
        making = asyncio.create_task(workshop.make("lines", some_commits()))
        niceness: set[int] = set()
        while not making.done():
            niceness |= {os.getpriority(os.PRIO_PROCESS, pid) for pid in workshop.pids}
            await asyncio.sleep(0)
        await making
        assert niceness == {os.getpriority(os.PRIO_PROCESS, 0) + 10}


@pytest.mark.parametrize("form", FORMS)
async def test_another_process_makes_the_same(form: Form) -> None:
    async with working() as workshop:
        for after in (0, 17):
            commits = some_commits(after=after)
            made = await soon(workshop.make(form, commits))
            assert len(workshop.pids) == 1
            expected = make(form, some_commits(after=after))
            assert (list(made.parts), made.types, list(made.runs)) == (
                list(expected.parts),
                expected.types,
                list(expected.runs),
            )


async def test_little_is_made_here() -> None:
    async with working(worth_bytes=1 << 20) as workshop:
        commits = some_commits()
        assert list((await workshop.make("lines", commits)).parts) == list(commits.pieces())
        assert workshop.pids == []


async def test_as_many_processes_work_as_there_may_be() -> None:
    async with working(workers_max=2) as workshop:
        made = await soon(asyncio.gather(*(workshop.make("lines", some_commits(after=at)) for at in range(5))))
        assert [list(each.parts) for each in made] == [list(some_commits(after=at).pieces()) for at in range(5)]
        assert len(set(workshop.pids)) == 2


@pytest.mark.parametrize(("form", "processes"), [("lines", 2), ("rows", 1)])
async def test_one_process_is_enough_for_what_takes_longer_to_be_written(form: Form, processes: int) -> None:
    async with working(workers_max=2) as workshop:
        await soon(asyncio.gather(*(workshop.make(form, some_commits(after=at)) for at in range(3))))
        assert len(set(workshop.pids)) == processes


async def test_without_callers_nobody_waits_for_a_process_that_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    never_ready = tmp_path / "python"
    never_ready.write_text("#!/bin/sh\nexec cat\n")
    never_ready.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(never_ready))
    workshop = Workshop(workers_max=1, worth_bytes=0, is_called=lambda: False)
    try:
        pids: list[int] = []
        while not pids:
            made = await soon(workshop.make("lines", some_commits()))
            assert list(made.parts) == list(some_commits().pieces())
            pids = workshop.pids
        await soon(workshop.make("lines", some_commits()))
        assert workshop.pids == pids
    finally:
        await workshop.close()


def test_arrow_is_not_used_here_for_the_first_time_if_it_would_import_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    assert takes_long_to_begin("parquet")
    assert not takes_long_to_begin("rows")
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    assert not takes_long_to_begin("parquet")


async def test_what_a_lost_process_had_to_make_is_made_here(caplog: pytest.LogCaptureFixture) -> None:
    async with working() as workshop:
        await workshop.make("lines", some_commits())
        [pid] = workshop.pids
        os.kill(pid, signal.SIGKILL)
        made = await soon(workshop.make("lines", some_commits(after=5)))
        assert list(made.parts) == list(some_commits(after=5).pieces())
        assert workshop.pids == []
        # And for a while no other one is tried.
        assert (await soon(workshop.make("lines", some_commits()))).types == {"TimeAdvanced": 40}
        assert workshop.pids == []
    assert "workshop_lost" in caplog.text


async def test_without_an_interpreter_everything_is_made_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for executable in ("", str(tmp_path / "nothing")):
        monkeypatch.setattr(sys, "executable", executable)
        async with working() as workshop:
            assert (await soon(workshop.make("lines", some_commits()))).types == {"TimeAdvanced": 40}
            assert workshop.pids == []


async def test_no_thread_stays_behind_processes_that_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr(workshop_module, "_PAUSE_S", 0.0)
    monkeypatch.setattr(sys, "executable", "")
    async with working(workers_max=2) as workshop:
        for _ in range(8):
            await soon(workshop.make("lines", some_commits()))
    for thread in set(threading.enumerate()) - before:
        if thread.name == "omnirelay-workshop":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


async def test_a_process_of_another_version_makes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node may be upgraded while it runs, and goes on as what it is until it is started again."""
    monkeypatch.setattr(workshop_module, "__version__", "0.0.1")
    async with working() as workshop:
        assert (await soon(workshop.make("lines", some_commits()))).types == {"TimeAdvanced": 40}
        assert workshop.pids == []
    assert "workshop_lost" in caplog.text


async def test_a_process_that_prints_before_it_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('somebody wants to be seen in every process')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    async with working() as workshop:
        assert (await soon(workshop.make("lines", some_commits()))).types == {"TimeAdvanced": 40}
        assert workshop.pids == []
    assert "workshop_lost" in caplog.text


async def test_what_python_passes_over_in_its_path_keeps_no_process_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])
    async with working() as workshop:
        await soon(workshop.make("lines", some_commits()))
        assert len(workshop.pids) == 1


async def test_bytes_that_are_no_frame_are_refused_here_and_by_name() -> None:
    commits = some_commits()
    broken = msgspec.structs.replace(commits.frames[0], data=b"{}")
    async with working() as workshop:
        with pytest.raises(LogDamaged):
            await soon(workshop.make("rows", Commits([broken], "eu", 0)))


async def test_whoever_is_cancelled_leaves_no_answer_for_the_next() -> None:
    async with working() as workshop:
        await workshop.make("lines", some_commits())
        [pid] = workshop.pids
        os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.create_task(workshop.make("lines", some_commits()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        made = await soon(workshop.make("lines", some_commits(after=9)))
        assert list(made.parts) == list(some_commits(after=9).pieces())
        assert pid not in workshop.pids
        await soon(ended(pid))


async def test_a_process_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with working() as workshop:
        await workshop.make("lines", some_commits())
        [pid] = workshop.pids
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(workshop_module, "_ANSWER_S", 0.0)
        assert (await soon(workshop.make("lines", some_commits()))).types == {"TimeAdvanced": 40}
        assert workshop.pids == []
        await soon(ended(pid))


async def test_processes_without_work_are_ended_and_come_back_with_work() -> None:
    async with working() as workshop:
        await workshop.make("lines", some_commits())
        [pid] = workshop.pids
        workshop._end_idle()
        await soon(ended(pid))
        assert workshop.pids == []
        await workshop.make("lines", some_commits())
        assert len(workshop.pids) == 1


async def test_a_process_that_never_got_work_is_ended_when_another_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop_module, "_ANSWER_S", 0.0)
    monkeypatch.setattr(workshop_module, "_IDLE_S", 0.0)
    async with working(workers_max=2) as workshop:
        await soon(workshop.make("lines", some_commits()))
        await soon(asyncio.gather(*workshop._tasks))
        assert workshop.pids == []


async def test_a_closed_workshop_has_no_process_and_still_works() -> None:
    async with working() as workshop:
        await workshop.make("lines", some_commits())
        [pid] = workshop.pids
        await soon(workshop.close())
        assert not is_running(pid)
        assert (await workshop.make("lines", some_commits())).types == {"TimeAdvanced": 40}
        assert workshop.pids == []


NODE = """
import asyncio
from omnirelay.replication.workshop import Workshop
from tests.integration.test_replication_workshop import some_commits

async def main():
    workshop = Workshop(workers_max=1, worth_bytes=0)
    await workshop.make("lines", some_commits())
    print(*workshop.pids, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_no_process_outlives_a_node_that_is_killed() -> None:
    node = await asyncio.create_subprocess_exec(sys.executable, "-c", NODE, stdout=asyncio.subprocess.PIPE)
    assert node.stdout is not None
    pid = int(await soon(node.stdout.readline()))
    assert is_running(pid)
    node.kill()
    await node.wait()
    await soon(ended(pid))


@pytest.mark.parametrize("kind", ["file", "sqlite", "parquet", "jsonl"])
async def test_sinks_that_are_fed_from_other_processes_hold_the_whole_log(kind: str, tmp_path: Path) -> None:
    settings = SinkSettings(
        name="lake",
        kind="objects" if kind in ("parquet", "jsonl") else kind,
        format="jsonl" if kind == "jsonl" else "parquet",
        path=str(tmp_path / "lake"),
        compact_at=0,
        follow=FollowSettings(batch_events=5, linger_ms=0),
    )
    async with await Place("sqlite", tmp_path).open(FakeClock()) as shard:
        await work(shard, rounds=6)
        replication = Replication([settings], tmp_path, durable=True)
        replication.workshop = Workshop(workers_max=2, worth_bytes=0)
        replication.follow(shard)
        [follower] = replication.followers
        await soon(follower.wait_confirmed(shard.last_sequence))
        assert (follower.failures, follower.events.total()) == (0, shard.last_sequence)
        pids = replication.workshop.pids
        assert pids
        await replication.stop()
        assert not any(map(is_running, pids))
        expected = [event.json() for event in await log_of(shard)]
        if kind == "file":
            [path] = (tmp_path / "lake" / NAMESPACE).iterdir()
            assert path.read_bytes().splitlines() == expected
        elif kind == "sqlite":
            rows = in_table(
                tmp_path / "lake" / f"{NAMESPACE}.db", f"select event_json from {TABLE} order by sequence_number"
            )
            assert [row.encode() for row in rows] == expected
        else:
            reader = SegmentReader(await connect(str(tmp_path / "lake")), NAMESPACE)
            assert [frame async for frame in reader.frames()] == await frames_of(shard.log)
