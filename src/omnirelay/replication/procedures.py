"""What operators call: `replication::status`, `pause`, `resume` and `reset`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from omnirelay.replication.following import Follower
from omnirelay.replication.replication import Replication
from omnirelay.replication.status import FollowStatus
from omnirelay.rpc.calls import RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.wire.requests import ID_MAX, Incoming

NAMESPACE: Final = "replication"


class StatusRequest(Incoming):
    sink: str | None = None
    """None: all."""
    shard: str | None = None
    """None: all."""


class SinkRequest(Incoming):
    sink: str
    shard: str | None = None
    """None: of every shard it follows."""


class ResetRequest(SinkRequest, kw_only=True):
    sequence: Annotated[int, Meta(ge=0, le=ID_MAX)]
    """Everything behind this event is delivered again. Required: who forgets it does not mean the whole log."""


class SinksAnswer(msgspec.Struct):
    sinks: list[FollowStatus]


def serve_replication(dispatcher: Dispatcher, replication: Replication) -> None:
    """Register the procedures."""

    async def status(meta: RequestMeta, request: StatusRequest) -> SinksAnswer:
        return _answer(replication.find(request.sink, request.shard))

    async def pause(meta: RequestMeta, request: SinkRequest) -> SinksAnswer:
        followers = replication.find(request.sink, request.shard)
        # At once: each waits for a delivery under way.
        await asyncio.gather(*(follower.pause() for follower in followers))
        return _answer(followers)

    async def resume(meta: RequestMeta, request: SinkRequest) -> SinksAnswer:
        followers = replication.find(request.sink, request.shard)
        for follower in followers:
            await follower.resume()
        return _answer(followers)

    async def reset(meta: RequestMeta, request: ResetRequest) -> SinksAnswer:
        followers = replication.find(request.sink, request.shard)
        for follower in followers:
            await follower.check_reset(request.sequence)  # All or none.
        await asyncio.gather(*(follower.reset(request.sequence) for follower in followers))
        return _answer(followers)

    answers = (SinksAnswer,)
    dispatcher.unary(
        f"{NAMESPACE}::status",
        status,
        request=StatusRequest,
        answers=answers,
        summary="How far each sink has come, and why it does not go on when it does not.",
    )
    dispatcher.unary(
        f"{NAMESPACE}::pause",
        pause,
        request=SinkRequest,
        answers=answers,
        summary="Deliver nothing to a sink until it is resumed.",
    )
    dispatcher.unary(
        f"{NAMESPACE}::resume",
        resume,
        request=SinkRequest,
        answers=answers,
        summary="Go on with a sink that was paused or has failed.",
    )
    dispatcher.unary(
        f"{NAMESPACE}::reset",
        reset,
        request=ResetRequest,
        answers=answers,
        summary="Deliver again to a sink everything behind an event.",
    )


def _answer(followers: list[Follower]) -> SinksAnswer:
    return SinksAnswer([follower.status() for follower in followers])
