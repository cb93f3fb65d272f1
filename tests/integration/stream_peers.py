"""Streams spoken by hand: for what the client of this package never says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from omnirelay.wire.forms import SUBPROTOCOL
from tests.patience import PATIENCE_S

# The library's own limits would end a stream on a machine that stands still for a while.
_PATIENT: dict[str, Any] = {"open_timeout": PATIENCE_S, "ping_interval": None, "close_timeout": PATIENCE_S}

Message = dict[str, Any]
FORMS = {"json": None, "msgpack": [Subprotocol(SUBPROTOCOL)]}
"""By name: the subprotocols that a peer asks for which speaks this form."""
form_spoken = "json"
"""What peers speak that are not told otherwise; the fixture `stream_form` sets it to one after the other."""
ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}


def stream_url(url: str, namespace: str = "resourcelease") -> str:
    return f"{url.replace('http', 'ws', 1)}/v1/{namespace}/stream"


class Peer:
    """One stream. Messages that came before the one that is waited for are kept for later."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.packs = socket.subprotocol == SUBPROTOCOL
        self.inbox: list[Message] = []
        self._last_id = 0

    async def send(self, *messages: Message) -> None:
        """One message as itself, many as an array."""
        message = messages[0] if len(messages) == 1 else messages
        await self.socket.send(msgspec.msgpack.encode(message) if self.packs else json.dumps(message))

    async def open(self, credit: int = 0, peer_id: str | None = "peer", **more: Any) -> None:
        await self.send({"open": {"peerId": peer_id, "credit": credit, **more}})

    async def first(self, fits: Callable[[Message], bool]) -> Message:
        """The first message that fits, whether it is here already or still to come."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for index, message in enumerate(self.inbox):
                    if fits(message):
                        return self.inbox.pop(index)
                self.inbox += self._read(await self.socket.recv())

    @staticmethod
    def _read(data: str | bytes) -> list[Message]:
        """Bytes are read as JSON has them, so that a test need not know which form it speaks."""
        read = json.loads(data) if isinstance(data, str) else msgspec.to_builtins(msgspec.msgpack.decode(data))
        return read if isinstance(read, list) else [read]

    async def told(self, name: str) -> Any:
        """What the next message with this field has in it."""
        return (await self.first(lambda message: name in message))[name]

    async def answered(self, call_id: int | str) -> Message:
        return await self.first(lambda message: message.get("id") == call_id)

    async def ask(self, **message: Any) -> Message:
        """Send a message with an id of its own, and wait for what comes back under it."""
        self._last_id += 1
        await self.send({"id": self._last_id, **message})
        return await self.answered(self._last_id)

    async def call(self, verb: str, request: Any = None, **more: Any) -> Any:
        """The answer of a call; fails the test when it is a refusal."""
        answer = await self.ask(call={"verb": verb, "request": {} if request is None else request, **more})
        assert "error" not in answer, answer
        return answer.get("answer")

    async def refused(self, **message: Any) -> Any:
        """The error of a message that must not be taken."""
        answer = await self.ask(**message)
        return answer["error"]

    async def acknowledge(self, *acks: Message) -> list[Message]:
        results: list[Message] = (await self.ask(acks=list(acks)))["results"]
        return results

    async def leases(self, count: int) -> list[Message]:
        """The next pushed leases, exactly so many."""
        leases: list[Message] = []
        while len(leases) < count:
            leases += await self.told("leases")
        assert len(leases) == count, leases
        return leases

    async def round_trip(self) -> None:
        """What was sent before has been taken in; what the node said in answer is in the inbox."""
        await self.call("stats")

    def waiting(self, name: str) -> list[Any]:
        """What has come under this name and was not looked at."""
        return [message[name] for message in self.inbox if name in message]

    async def closed(self) -> tuple[int | None, str]:
        """Wait for the end; its code and reason. What still came is in the inbox."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while True:
                    self.inbox += self._read(await self.socket.recv())
            except ConnectionClosed:
                return self.socket.close_code, self.socket.close_reason or ""

    async def close(self) -> None:
        await self.socket.close()

    def drop(self) -> None:
        """Go without a word, as a process that dies does."""
        self.socket.transport.abort()


def token_of(lease: Message) -> Message:
    token: Message = lease["ownershipToken"]
    return token


def ack(verb: str, lease: Message, **fields: Any) -> Message:
    return {"verb": verb, "ownershipToken": token_of(lease), **fields}


async def connected(url: str, namespace: str = "resourcelease", form: str | None = None, **options: Any) -> Peer:
    """A new stream to the node at this address."""
    socket = await connect(
        stream_url(url, namespace),
        max_size=None,
        compression=None,
        proxy=None,
        **{**_PATIENT, "subprotocols": FORMS[form or form_spoken], **options},
    )
    return Peer(socket)


@asynccontextmanager
async def peer_of(
    url: str, namespace: str = "resourcelease", form: str | None = None, **options: Any
) -> AsyncIterator[Peer]:
    peer = await connected(url, namespace, form, **options)
    try:
        yield peer
    finally:
        await peer.close()
