"""One caller's mistake is that caller's alone: the shard and everyone else go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from omnirelay.core.answers import CompleteAnswer
from omnirelay.core.commands import CompleteItem, ExpireLeases, FailItem
from omnirelay.core.events import RestoredItem
from omnirelay.core.payload import Caller, NewItem, OwnershipToken
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.engine.ids import lease_ids
from omnirelay.engine.shard import Shard
from omnirelay.errors import Internal, InvalidArgument, LogOutcomeUnknown, OmniRelayError
from omnirelay.testing.clock import FakeClock
from tests.integration.shards import WORKER, Place, enqueued, item, items, kinds_of, soon

Call = Callable[[Shard, OwnershipToken], Awaitable[object]]

nothing = cast(Any, None)
"""For arguments that may not be missing."""

wrong = cast(Any, "wrong")


def restored(**fields: Any) -> RestoredItem:
    return RestoredItem(sequence_id=900, payload=item().payload, **fields)


WRONG: dict[str, Call] = {
    "enqueue without a caller": lambda shard, token: shard.enqueue(item(), caller=nothing),
    "enqueue without an item": lambda shard, token: shard.enqueue([nothing]),
    "enqueue without a payload": lambda shard, token: shard.enqueue(NewItem(payload=nothing)),
    "lease without a caller": lambda shard, token: shard.lease(nothing),
    "heartbeat without a caller": lambda shard, token: shard.heartbeat(token, caller=nothing),
    "heartbeat without a token": lambda shard, token: shard.heartbeat(nothing),
    "heartbeat with a wrong progress": lambda shard, token: shard.heartbeat(token, progress=wrong),
    "complete with a wrong result": lambda shard, token: shard.complete(token, result=wrong),
    "complete with wrong follow-ups": lambda shard, token: shard.complete(token, follow_ups=wrong),
    "fail with wrong metadata": lambda shard, token: shard.fail(token, metadata=wrong),
    "cancel without a caller": lambda shard, token: shard.cancel(token.sequence_id, caller=nothing),
    "cancel of a list": lambda shard, token: shard.cancel(cast(Any, [1])),
    "restore of a wrong error": lambda shard, token: shard.restore([restored(last_error="wrong")]),
    "restore of a wrong token": lambda shard, token: shard.restore([restored(last_ownership_token="wrong")]),
    "restore of a wrong progress": lambda shard, token: shard.restore([restored(progress="wrong")]),
    "restore of a wrong request key": lambda shard, token: shard.restore([restored(request_key="wrong")]),
    "restore of a wrong digest": lambda shard, token: shard.restore([restored(payload_digest=5)]),
    "purge of a list in a list": lambda shard, token: shard.purge(sequence_ids=cast(Any, [[1]])),
    "dead letters after a word": lambda shard, token: shard.dead_letters(after=wrong),
    "peek after a word": lambda shard, token: shard.peek(after=wrong, max_items=wrong),
    "acknowledgement of a token": lambda shard, token: shard.acknowledge(cast(Any, [token])),
    "acknowledgement of a set": lambda shard, token: shard.acknowledge(cast(Any, {1})),
    "acknowledgement of a number": lambda shard, token: shard.acknowledge(cast(Any, 1)),
    "acknowledgement by the engine's own command": lambda shard, token: shard.acknowledge(cast(Any, [ExpireLeases()])),
    "get by a wrong caller": lambda shard, token: shard.get(request_id="r", caller=wrong),
    "get by a number": lambda shard, token: shard.get(request_id=cast(Any, 5)),
    "enqueue of a number": lambda shard, token: shard.enqueue(cast(Any, 3)),
    "complete with a number of follow-ups": lambda shard, token: shard.complete(token, follow_ups=cast(Any, 3)),
    "restore of a number": lambda shard, token: shard.restore(cast(Any, 3)),
    "redrive of a number": lambda shard, token: shard.redrive(sequence_ids=cast(Any, 3)),
    "redrive of no selection": lambda shard, token: shard.redrive_fitting(wrong),
    "purge of a number": lambda shard, token: shard.purge(sequence_ids=cast(Any, 3)),
    "tail from a word": lambda shard, token: anext(shard.tail(wrong)),
    "tail from nowhere": lambda shard, token: anext(shard.tail(cast(Any, float("nan")))),
    "the state after a word": lambda shard, token: shard.state_at(wrong),
    "options of another type": lambda shard, token: shard.change_options(wrong),
}


async def check_unharmed(shard: Shard) -> None:
    """The shard serves, and its log gives the state it serves from."""
    assert shard.failure is None, f"the shard was given up: {shard.failure!r}"
    await soon(shard.enqueue(item("afterwards")))
    assert digest(await shard.state_at(shard.last_sequence)) == digest(shard.state)


@pytest.mark.parametrize("name", WRONG)
async def test_a_call_with_wrong_types_fails_for_its_caller_alone(name: str) -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    await enqueued(shard, *items(3))
    dead, lease = await shard.lease(WORKER, max_items=2)
    await shard.fail(dead.token, mode="dead")
    before = len(await kinds_of(shard.log))

    async def wrong_call() -> None:
        await WRONG[name](shard, lease.token)

    mine, others = await soon(asyncio.gather(wrong_call(), shard.enqueue(item("other")), return_exceptions=True))
    assert isinstance(mine, OmniRelayError), f"it was taken, or is no error of ours: {mine!r}"
    assert not isinstance(others, BaseException)
    await check_unharmed(shard)
    assert (await kinds_of(shard.log))[before:] == ["Enqueue", "Enqueue"]
    await shard.close()


async def test_giving_back_what_is_no_lease_is_refused_and_harms_nobody() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    await enqueued(shard, *items(1))
    [lease] = await shard.lease(WORKER)
    for given in ([lease.token], 5):
        with pytest.raises(InvalidArgument, match="leases"):
            shard.undelivered(cast(Any, given))
    await check_unharmed(shard)
    await shard.close()


async def test_acknowledgements_may_come_as_any_collection() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    await enqueued(shard, *items(2))
    leases = await shard.lease(WORKER, max_items=2)
    commands = {lease.sequence_id: CompleteItem(lease.token) for lease in leases}
    outcomes = await soon(shard.acknowledge(cast(Any, commands.values())))
    assert [type(each) for each in outcomes] == [CompleteAnswer, CompleteAnswer]
    await check_unharmed(shard)
    await shard.close()


class Bomb(dict[str, str]):
    """What no check knows of: it goes off when it is looked at."""

    def __len__(self) -> int:
        raise ZeroDivisionError


async def test_a_fault_that_changed_nothing_is_answered_to_its_caller_alone(caplog: pytest.LogCaptureFixture) -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    await enqueued(shard, *items(2))
    first, second = await shard.lease(WORKER, max_items=2)

    def fails(state: State, now_ms: int) -> None:
        raise ZeroDivisionError

    async def reads() -> None:
        await shard._writer.read(fails)

    calls: list[Awaitable[Any]] = [
        shard.acknowledge(
            [CompleteItem(first.token), FailItem(second.token, metadata=Bomb()), CompleteItem(second.token)]
        ),
        reads(),
        shard.enqueue(item("other")),
    ]
    outcomes: list[Any] = await soon(asyncio.gather(*calls, return_exceptions=True))
    acknowledged, read, others = outcomes
    assert [type(each) for each in acknowledged] == [CompleteAnswer, Internal, CompleteAnswer]
    assert isinstance(read, Internal)
    assert not isinstance(others, BaseException)
    assert "call_failed" in caplog.text
    await check_unharmed(shard)
    await shard.close()


async def test_a_fault_behind_the_first_change_of_a_call_gives_the_shard_up() -> None:
    """Half a call is in the state then, and nobody may build on it."""
    few = lease_ids()
    left = [few(), few()]
    shard = await Place("memory", Path()).open(FakeClock(), ids=left.pop)
    await enqueued(shard, *items(3))
    with pytest.raises(LogOutcomeUnknown):
        await soon(shard.lease(WORKER, max_items=3))
    assert isinstance(shard.given_up, LogOutcomeUnknown)
    await shard.close()


NOT_TEXT = Caller(principal="\ud800")
"""Half a character: no encoder takes it."""

UNENCODABLE: dict[str, Call] = {
    "enqueue": lambda shard, token: shard.enqueue(item(), caller=NOT_TEXT),
    "lease": lambda shard, token: shard.lease(NOT_TEXT),
    "complete": lambda shard, token: shard.complete(token, caller=NOT_TEXT, follow_ups=items(2)),
    "cancel": lambda shard, token: shard.cancel(token.sequence_id, caller=NOT_TEXT),
    "drain": lambda shard, token: shard.drain(caller=NOT_TEXT),
    "restore": lambda shard, token: shard.restore([restored()], caller=NOT_TEXT),
    "edit": lambda shard, token: shard.edit(1, item().payload, caller=NOT_TEXT),
    "redrive": lambda shard, token: shard.redrive(everything=True, caller=NOT_TEXT),
    "purge": lambda shard, token: shard.purge(everything=True, caller=NOT_TEXT),
}


@pytest.mark.parametrize("name", UNENCODABLE)
async def test_a_principal_that_cannot_be_written_down_never_ends_the_shard(name: str) -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    await enqueued(shard, *items(3))
    dead, held = await shard.lease(WORKER, max_items=2)
    await shard.fail(dead.token, mode="dead")
    [mine] = await soon(asyncio.gather(UNENCODABLE[name](shard, held.token), return_exceptions=True))
    assert isinstance(mine, Exception)
    await check_unharmed(shard)
    await shard.close()


async def test_a_request_key_as_large_as_a_frame_never_ends_the_shard() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    huge = restored(request_key=b"k" * (9 << 20), payload_digest=b"d" * 16)
    [mine] = await soon(asyncio.gather(shard.restore([huge]), return_exceptions=True))
    assert isinstance(mine, Exception)
    await check_unharmed(shard)
    await shard.close()
