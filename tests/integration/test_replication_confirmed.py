"""What sinks have confirmed: the log has to have it, and may let go of nothing else."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from omnirelay.errors import LogRegressed
from omnirelay.log import SqliteLog
from omnirelay.replication.confirmed import CHECKPOINT_FILE, check_confirmed, confirmed_by_sinks, give_up_confirmed
from omnirelay.replication.owners import Newest
from tests.integration.nodes import Http
from tests.integration.shards import soon
from tests.integration.test_replication_following import QUICK, Recorder, following, log_of, memory_shard, work
from tests.integration.test_replication_following import caught_up as caught_up_with
from tests.integration.test_replication_node import ITEM, caught_up, node_with, sink

SHARD = "resourcelease"


async def put_back(tmp_path: Path) -> tuple[Path, int]:
    """A node's data with an older copy of its log, witness included, and the last event that its sink has got."""
    data = tmp_path / "data"
    async with node_with(sink("lake", "file"), data=data) as node:
        async with Http(node) as http:
            await http.call("enqueue", ITEM)
        await caught_up(node)
    shutil.copytree(data / SHARD, tmp_path / "older")
    async with node_with(sink("lake", "file"), data=data) as node:
        async with Http(node) as http:
            await http.call("enqueue", {"items": [ITEM] * 20})
        await caught_up(node)
        last = node.components[0].shard().last_sequence
    shutil.rmtree(data / SHARD)
    (tmp_path / "older").rename(data / SHARD)
    return data, last


async def test_a_log_that_ends_before_what_a_sink_has_got_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    data, last = await put_back(tmp_path)
    before = (data / SHARD / "leases.db").read_bytes()
    with pytest.raises(ExceptionGroup) as refused:
        async with node_with(sink("lake", "file"), data=data):
            raise AssertionError("it serves")
    [error] = refused.value.exceptions
    assert isinstance(error, LogRegressed)
    assert f"the sink lake has got event {last}, the log ends at" in error.message
    assert (data / SHARD / "leases.db").read_bytes() == before


async def test_fences_lie_above_what_sinks_had_got_once_the_loss_is_accepted(tmp_path: Path) -> None:
    data, last = await put_back(tmp_path)
    with pytest.raises(LogRegressed) as refused:
        check_confirmed(data, SHARD)
    await asyncio.to_thread(give_up_confirmed, data, SHARD, refused.value)
    check_confirmed(data, SHARD)
    async with node_with(sink("lake", "file"), data=data) as node:
        async with Http(node) as http:
            lease = await http.call("lease", {"peerId": "late"})
        assert lease["ownershipToken"]["fence"] > last + 2**32
        # It still has what never happened.
        [follower] = node.replication.find()
        await soon(follower.wait_state("failed"))
    check_confirmed(data, SHARD)


async def test_sinks_are_no_witnesses_of_another_log_nor_while_their_account_cannot_be_read(tmp_path: Path) -> None:
    data, _ = await put_back(tmp_path)
    checkpoints = data / "replication.db"
    checkpoints.rename(tmp_path / "kept")
    for left in data.glob("replication.db-*"):
        left.unlink()
    checkpoints.write_bytes(b"no database" * 100)
    async with node_with(data=data):
        pass
    shutil.copy(tmp_path / "kept", checkpoints)
    shutil.rmtree(data / SHARD)
    async with node_with(data=data) as node:
        assert isinstance(node.components[0].shard().log, SqliteLog)


class Holding(Recorder):
    """A target that says how far it reaches."""

    holds = 0
    newest: Newest | None = None

    async def open(self, shard: str) -> int | None:
        await super().open(shard)
        return self.holds


def test_an_account_that_was_not_begun_yet_knows_of_nothing(tmp_path: Path) -> None:
    """A crash may come between making the file and making its tables."""
    (tmp_path / CHECKPOINT_FILE).touch()
    assert confirmed_by_sinks(tmp_path, SHARD) == []


async def test_the_log_keeps_what_a_required_sink_lacks_while_its_target_holds_something_else() -> None:
    target = Holding()
    target.holds = 10_000
    required = msgspec.structs.replace(QUICK, required=True)
    async with memory_shard() as shard:
        await work(shard)
        async with following(shard, target, settings=required) as follower:
            await soon(follower.wait_state("failed"))
            assert "holds events up to 10000" in (follower.last_error or "")
            assert follower.needs_from() == 1
            status = follower.status()
            assert (status.checkpoint, status.lag_events) == (0, shard.last_sequence)
            target.holds = 0  # Somebody has emptied it.
            await follower.resume()
            await caught_up_with(follower, shard)
        assert [event.sequence for event in target.taken] == [event.sequence for event in await log_of(shard)]


async def test_nor_does_it_let_go_because_of_another_event_under_the_same_number() -> None:
    target = Holding()
    target.holds = 3
    target.newest = Newest(3, "Enqueue", "1999-01-01T00:00:00.000+00:00")
    async with memory_shard() as shard:
        await work(shard)
        async with following(shard, target, settings=msgspec.structs.replace(QUICK, required=True)) as follower:
            await soon(follower.wait_state("failed"))
            assert "holds another event 3" in (follower.last_error or "")
            assert follower.needs_from() == 1
