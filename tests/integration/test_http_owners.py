"""Who may acknowledge: the token is enough, but a caller that names itself must be the owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.nodes import Http, running_node

ITEM = {"payload": {"resourceType": "t", "resourceId": "a"}}


async def leased(http: Http, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    await http.call("enqueue", ITEM)
    lease = await http.call("lease", {**body, "waitMs": 0}, **headers)
    return {"ownershipToken": lease["ownershipToken"]}


@pytest.mark.parametrize(
    ("body", "lease_headers", "more", "headers", "status"),
    [
        ({"peerId": "a"}, {}, {}, {}, 200),
        ({"peerId": "a"}, {}, {"peerId": "a"}, {}, 200),
        ({"peerId": "a"}, {}, {"peerId": "b"}, {}, 403),
        ({"peerId": "a"}, {}, {}, {"Rpc_Caller": "b"}, 403),
        ({"peerId": "a"}, {}, {}, {"X_Peer_Id": "b"}, 403),
        ({}, {"Rpc_Caller": "a"}, {}, {"Rpc_Caller": "a"}, 200),
        ({}, {"Rpc_Caller": "a"}, {}, {"Rpc_Caller": "b"}, 403),
        ({"peerId": "a"}, {"Rpc_Caller": "service"}, {}, {"Rpc_Caller": "service"}, 200),
        ({"peerId": "a"}, {"Rpc_Caller": "service"}, {"peerId": "b"}, {"Rpc_Caller": "service"}, 403),
        ({"peerId": "a"}, {"Rpc_Caller": "service"}, {}, {"Rpc_Caller": "other"}, 403),
    ],
)
async def test_a_caller_that_names_itself_must_be_the_owner(
    body: dict[str, Any], lease_headers: dict[str, str], more: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    async with running_node() as node, Http(node) as http:
        token = await leased(http, body, **lease_headers)
        single = await http.post("heartbeat", {**token, **more}, **headers)
        assert single.status_code == status, single.text
        batch = await http.call("complete", {"acks": [{**token, **more}]}, **headers)
        assert batch["results"][0]["success"] == (status == 200)
        if status == 403:
            assert single.json()["code"] == "error.resourcelease.not_owner"
            assert batch["results"][0]["errorCode"] == "error.resourcelease.not_owner"


async def test_a_service_may_end_what_it_leased_under_another_name_before_a_restart(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Http(node) as http:
        token = await leased(http, {"peerId": "a"}, Rpc_Caller="service")
    async with running_node(tmp_path) as node, Http(node) as http:
        await http.call("complete", token, Rpc_Caller="service")


def files_below(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.rglob("*") if path.is_file()]


async def test_what_a_caller_sends_to_prove_itself_is_kept_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A token in the log would be there for everybody who may read it, for years."""
    secret = "eyJhbGciOiJub25lIn0"
    claims = {
        "Authorization": f"Bearer {secret}",
        "X_Client_Principal": secret,
        "X_Mtls_Subject": f"CN={secret}",
        "Rpc_Header_Rpc.principal": secret,
    }
    async with running_node(tmp_path) as node, Http(node) as http:
        token = await leased(http, {"peerId": "a"}, **claims)
        await http.call("heartbeat", token, **claims)
        answered = [
            (await http.post("get", {"sequenceId": 1}, **claims)).text,
            (await http.post("complete", {**token, "peerId": "b"}, **claims)).text,
            (await http.post("complete", token, **claims)).text,
            (await http.client.get("/metrics")).text,
            (await http.client.get("/omnirelay/introspect")).text,
        ]
    assert '"ownerPeerId":"a"' in answered[0]
    stored = files_below(tmp_path)
    assert any(b"LeaseGranted" in data for data in stored)
    assert not [data for data in stored if secret.encode() in data]
    assert not [text for text in [*answered, caplog.text] if secret in text]
