"""A node that stops gives back what its streams were pushed and had not begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.nodes import Http, running_node
from tests.integration.stream_peers import ITEM, peer_of

pytestmark = pytest.mark.usefixtures("stream_form")


async def test_a_node_that_stops_takes_back_what_was_not_begun(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, peer_of(node.url) as peer, Http(node) as http:
        await peer.open(credit=2)
        await http.call("enqueue", {"items": [ITEM, ITEM]})
        leases = await peer.told("leases")
        while len(leases) < 2:
            leases += await peer.told("leases")
        await peer.send({"begin": [leases[0]["ownershipToken"]]})
        await peer.call("stats")
        await node.stop()
    async with running_node(tmp_path) as node, Http(node) as http:
        begun = await http.call("get", {"sequenceId": leases[0]["sequenceId"]})
        given_back = await http.call("get", {"sequenceId": leases[1]["sequenceId"]})
    assert begun["item"]["state"] == "leased"
    assert (given_back["item"]["state"], given_back["item"]["attempt"]) == ("ready", 1)
