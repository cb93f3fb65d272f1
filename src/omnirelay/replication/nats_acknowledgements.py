"""Answers of a JetStream stream to messages that are sent without waiting for each other.

The library has the same, but answers that are errors get lost there, and whoever waits for them waits for ever.
"""

from __future__ import annotations

import asyncio

import msgspec

from omnirelay.replication.extras import extra

with extra("nats"):
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError


class _Error(msgspec.Struct):
    description: str = "an error without a description"


class _Answer(msgspec.Struct):
    error: _Error | None = None
    seq: int = 0
    duplicate: bool = False


_read_answer = msgspec.json.Decoder(_Answer).decode


class Acknowledgements:
    """Of one connection after the other, and of one delivery at a time."""

    def __init__(self) -> None:
        self._inbox = ""
        self._sent = 0
        self._first = 0
        self._missing = 0
        self._all_taken: asyncio.Future[None] | None = None
        self.first_left_out: int | None = None
        """Of what the stream recognised by its id, and so did not take in again: the lowest number it has there."""

    async def listen(self, connection: Client) -> None:
        self._inbox = connection.new_inbox()
        await connection.subscribe(f"{self._inbox}.*", cb=self._take)

    def expect(self, count: int) -> asyncio.Future[None]:
        """Done when the next `count` messages are acknowledged, failed as soon as one of them is refused."""
        self._first = self._sent + 1
        self._missing = count
        self.first_left_out = None
        self._all_taken = asyncio.get_running_loop().create_future()
        # When sending fails nobody is left to ask for it.
        self._all_taken.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._all_taken

    def next_reply(self) -> str:
        """The subject that the answer to the next message is to come under."""
        self._sent += 1
        return f"{self._inbox}.{self._sent}"

    def lose(self) -> None:
        """No answers come any more."""
        self._fail("the connection was lost")

    def _fail(self, why: str) -> None:
        if self._all_taken is not None and not self._all_taken.done():
            self._all_taken.set_exception(NatsError(why))

    async def _take(self, message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        if number < self._first or self._all_taken is None or self._all_taken.done():
            return  # It belongs to a delivery that was given up.
        if (message.headers or {}).get("Status") == "503":
            self._fail("no stream takes the subject")
            return
        answer = _read_answer(message.data)
        if answer.error is not None:
            self._fail(answer.error.description)
            return
        if answer.duplicate:
            self.first_left_out = min(answer.seq, self.first_left_out or answer.seq)
        self._missing -= 1
        if not self._missing:
            self._all_taken.set_result(None)
