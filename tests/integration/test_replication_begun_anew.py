"""Checkpoints of a log that is gone: another one was begun in its place, and its numbers mean other events."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.files import FileSink
from tests.integration.shards import NAMESPACE, soon
from tests.integration.test_replication_following import Recorder, caught_up, following, log_of, memory_shard, work
from tests.integration.test_replication_following import sequences_in as lines_in


async def test_a_sink_without_an_account_does_not_pass_over_the_beginning_of_another_log() -> None:
    checkpoints = Checkpoints(None)
    async with memory_shard() as gone, following(gone, Recorder(), checkpoints) as follower:
        await work(gone)
        await caught_up(follower, gone)
        log_id, come_to = gone.log.log_id, follower.checkpoint
    async with memory_shard() as anew:
        await work(anew, rounds=10)  # By now it has events of all those numbers.
        sink = Recorder()
        async with following(anew, sink, checkpoints) as follower:
            for _ in range(2):
                await soon(follower.wait_state("failed"))
                assert (follower.checkpoint, sink.taken) == (0, [])
                await follower.resume()  # Which is not to say what the receiver should get.
            await soon(follower.wait_state("failed"))
            assert f"event {come_to} of another log, {log_id}" in (follower.last_error or "")
            assert f"replication replay lake --shard {NAMESPACE}" in (follower.last_error or "")
            await follower.reset(0)
            await caught_up(follower, anew)
        async with following(anew, sink, checkpoints) as follower:
            await work(anew)
            await caught_up(follower, anew)
        assert [event.sequence for event in sink.taken] == [event.sequence for event in await log_of(anew)]
    await checkpoints.close()


async def test_what_was_left_out_of_another_log_is_not_left_out_of_this_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(None)
    async with memory_shard() as gone, following(gone, FileSink(tmp_path / "gone"), checkpoints) as follower:
        await work(gone)
        await follower.pause()
        await work(gone)
        await follower.reset(gone.last_sequence)
        await follower.resume()
        await work(gone)
        await caught_up(follower, gone)
    async with memory_shard() as anew:
        await work(anew, rounds=10)
        async with following(anew, FileSink(tmp_path / "anew"), checkpoints) as follower:
            await caught_up(follower, anew)
        assert lines_in(tmp_path / "anew") == [event.sequence for event in await log_of(anew)]
    await checkpoints.close()


async def test_a_checkpoint_that_does_not_say_of_which_log_it_is_counts_for_the_one_there_is(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.db"
    async with memory_shard() as shard:
        await work(shard)
        with sqlite3.connect(path) as database:
            database.execute(
                "create table checkpoints (sink text not null, shard text not null, sequence integer not null,"
                " updated_ms integer not null, paused integer not null default 0,"
                " skipped_to integer not null default 0, primary key (sink, shard)) without rowid"
            )
            database.execute("insert into checkpoints values ('lake', ?, 3, 1, 0, 0)", (NAMESPACE,))
        checkpoints, sink = Checkpoints(path), Recorder()
        async with following(shard, sink, checkpoints) as follower:
            await caught_up(follower, shard)
        assert sink.taken[0].sequence == 4
        assert (await checkpoints.load("lake", NAMESPACE)).log_id == shard.log.log_id
        await checkpoints.close()
