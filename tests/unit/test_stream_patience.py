"""When a link gives its peer up: not while that still takes what it was sent, however slowly."""

from __future__ import annotations

import asyncio

import pytest

from omnirelay.client.stream_connection import StreamConnection


class Outlet(asyncio.Transport):
    """Keeps what is written until somebody takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.left += len(data)

    def get_write_buffer_size(self) -> int:
        return self.left

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def _link() -> tuple[StreamConnection, Outlet]:
    link, outlet = StreamConnection("ws://node/stream", {}, None, lambda: None), Outlet()
    link.connection_made(outlet)
    outlet.left = 0
    return link, outlet


def _look(link: StreamConnection, *, silent_seconds: float) -> None:
    link._heard_at -= silent_seconds
    if link._congested_since is not None:
        link._congested_since -= silent_seconds
    assert link._timer is not None
    link._timer.cancel()
    link._look_after()
    link._timer.cancel()


async def test_a_silent_peer_is_given_up_and_one_that_still_has_much_to_take_later() -> None:
    link, outlet = _link()
    _look(link, silent_seconds=9)
    assert not outlet.aborted
    _look(link, silent_seconds=2)
    assert outlet.aborted

    link, outlet = _link()
    assert link._room.enter(3 * 1024 * 1024)
    _look(link, silent_seconds=30)
    assert not outlet.aborted
    link._room.leave(3 * 1024 * 1024)
    _look(link, silent_seconds=0)
    assert outlet.aborted


@pytest.mark.parametrize("takes", [1_000, 0])
async def test_a_peer_that_takes_little_at_a_time_is_kept_and_one_that_takes_nothing_is_not(takes: int) -> None:
    link, outlet = _link()
    link._written = outlet.left = 2_000_000
    link.pause_writing()
    _look(link, silent_seconds=0)
    for _ in range(10):
        outlet.left -= takes
        _look(link, silent_seconds=8)
    assert outlet.aborted is (takes == 0)
