"""What a connection that leases are pushed over says, and what it hears of that."""

from __future__ import annotations

from omnirelay.client.stream_connection import StreamConnection
from omnirelay.core.payload import OwnershipToken
from omnirelay.wire.answers import Lease
from omnirelay.worker.kept import acknowledgement
from tests.integration.http_sockets import until
from tests.integration.nodes import Http, running_node
from tests.integration.stream_peers import ITEM
from tests.patience import PATIENCE_MS


class Noted:
    """A peer that only keeps what it hears."""

    def __init__(self) -> None:
        self.held: list[Lease] = []
        self.marks: list[int] = []

    def leases(self, leases: list[Lease], not_before: float) -> None:
        self.held += leases

    def cancel(self, tokens: list[OwnershipToken]) -> None: ...

    def lost(self, tokens: list[OwnershipToken]) -> None: ...

    def taken_in(self, mark: int) -> None:
        self.marks.append(mark)


async def test_only_what_has_no_answer_of_its_own_is_asked_about() -> None:
    """A ping for every message took the node as long as an acknowledgement."""
    peer = Noted()
    async with running_node() as node, Http(node) as http:
        connection = await StreamConnection.open(node.url, "resourcelease", {}, pushed=peer)
        opened = connection.say(open={"peerId": "peer", "credit": 1})
        await until(lambda: peer.marks == [opened])
        for number in range(3):
            await http.call("enqueue", ITEM)
            await until(lambda number=number: len(peer.held) == number + 1)  # type: ignore[misc]
            token = peer.held[number].ownership_token
            await connection.acknowledge(acknowledgement("complete", token, "peer"), PATIENCE_MS)
            connection.say(credit=1)
        assert peer.marks == [opened]
        await http.call("enqueue", ITEM)
        await until(lambda: len(peer.held) == 4)
        begun = connection.say(begin=[peer.held[3].ownership_token])
        await until(lambda: len(peer.marks) == 2)
        assert peer.marks == [opened, begun]
        await connection.aclose()
