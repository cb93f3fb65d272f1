"""What a browser sends on behalf of another site is refused: a node without authentication serves its user only."""

from __future__ import annotations

import pytest

from tests.integration.nodes import Http, running_node


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example", "Host": "evil.example"}, 403),
        ({"Sec_Fetch_Site": "same-origin", "Host": "evil.example:7070"}, 403),
        ({"Host": "node.internal:7070"}, 200),
    ],
)
async def test_pages_of_other_sites_and_of_made_up_names_are_refused(headers: dict[str, str], status: int) -> None:
    async with running_node() as node, Http(node) as http:
        response = await http.post("stats", **headers)
        assert response.status_code == status, response.text


async def test_the_page_of_the_node_itself_may_call_it() -> None:
    async with running_node() as node, Http(node) as http:
        assert (await http.post("stats", Origin=node.url, Sec_Fetch_Site="same-origin")).status_code == 200
