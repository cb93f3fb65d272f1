"""Following the log over HTTP: server-sent events."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from omnirelay.core.events import EVENT_NUMBERS
from tests.integration.http_sockets import Wire, request_bytes, until
from tests.integration.nodes import Http, running_node
from tests.patience import PATIENCE_S

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}
INSTANT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$")

Event = tuple[int, dict[str, Any]]


def events_in(text: str) -> list[Event]:
    """Without what tells that the stream is whole."""
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields and fields.get("event") != "end":
            assert set(fields) == {"id", "data"}, fields
            events.append((int(fields["id"]), json.loads(fields["data"])))
    return events


async def history(http: Http, query: str = "from=1", **headers: str) -> list[Event]:
    """The events there are, to the end of the log."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"/v1/{http.namespace}/watch?untilCaughtUp=true&{query}"
    response = await asyncio.wait_for(http.client.get(url, headers=named), PATIENCE_S)
    assert response.status_code == 200, response.text
    return events_in(response.text)


@asynccontextmanager
async def following(http: Http, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[Event]]:
    """Events as they come."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.client.stream("GET", f"/v1/{http.namespace}/watch?{query}", headers=named) as response:
        assert response.status_code == 200

        async def events() -> AsyncIterator[Event]:
            text = ""
            async for part in response.aiter_text():
                text += part
                while "\n\n" in text:
                    block, _, text = text.partition("\n\n")
                    for event in events_in(block + "\n\n"):
                        yield event

        yield events()


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(events) for _ in range(count)]


async def one_life(http: Http) -> None:
    """Enqueued, leased, kept, completed."""
    await http.call("enqueue", ITEM)
    token = (await http.call("lease", {"waitMs": 0, "peerId": "w"}))["ownershipToken"]
    await http.call("heartbeat", {"ownershipToken": token, "progress": {"fraction": 0.5}})
    await http.call("complete", {"ownershipToken": token})


async def test_a_watch_gives_every_event_in_order_with_its_sequence_as_id() -> None:
    async with running_node() as node, Http(node) as http:
        await one_life(http)
        events = await history(http)
        assert [number for number, _ in events] == list(range(1, len(events) + 1))
        assert all(event["sequenceNumber"] == number for number, event in events)
        assert all(INSTANT.match(event["timestamp"]) for _, event in events)
        kinds = [event["eventType"] for _, event in events]
        assert kinds[-4:] == ["Enqueue", "LeaseGranted", "Heartbeat", "Completed"]
        granted = events[-3][1]
        assert granted["peerId"] == "w"
        assert granted["ownership"]["fence"] == granted["sequenceNumber"]
        assert INSTANT.match(granted["expiresAt"])
        assert events[-2][1]["progress"] == {"fraction": 0.5}
        assert events[-4][1]["payload"] == ITEM["payload"]


async def test_the_response_is_an_event_stream_nobody_buffers() -> None:
    async with running_node() as node, Http(node) as http:
        url = "/v1/resourcelease/watch"
        async with http.client.stream("GET", url, headers={"Rpc-Service": "catalog"}) as response:
            assert response.headers["content-type"] == "text/event-stream"
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["rpc-transport"] == "http"
            assert response.headers["rpc-protocol"] == "HTTP/1.1"
            assert response.headers["rpc-encoding"] == "json"
            assert response.headers["rpc-service"] == "catalog"


async def test_a_watch_over_the_first_http_says_once_what_becomes_of_the_connection() -> None:
    async with running_node() as node:
        wire = await Wire.connect(node)
        await wire.send(b"GET /v1/resourcelease/watch?untilCaughtUp=true HTTP/1.0\r\nHost: localhost\r\n\r\n")
        head, _, _ = (await wire.until_closed()).partition(b"\r\n\r\n")
        assert [line for line in head.split(b"\r\n") if line.startswith(b"connection:")] == [b"connection: close"]
        wire.close()


async def test_a_watch_begins_where_it_is_told_and_without_that_with_what_comes_next() -> None:
    async with running_node() as node, Http(node) as http:
        await one_life(http)
        last = (await history(http))[-1][0]
        assert [number for number, _ in await history(http, f"from={last - 1}")] == [last - 1, last]
        assert await history(http, "") == []
        assert await history(http, f"from={last + 1}") == []
        async with following(http) as events:
            answer = await http.call("enqueue", ITEM)
            [(number, event)] = await take(events, 1)
            assert (number, event["sequenceId"]) == (last + 1, answer["sequenceId"])


async def test_a_watch_goes_on_behind_the_last_event_a_reader_saw() -> None:
    async with running_node() as node, Http(node) as http:
        await one_life(http)
        everything = await history(http)
        seen = everything[2][0]
        assert await history(http, "from=1", Last_Event_ID=str(seen)) == everything[3:]
        assert await history(http, "FROM=1", Last_Event_ID=str(seen)) == everything[3:]
        assert await history(http, "from=1", Last_Event_ID="what") == everything


async def test_a_last_event_id_that_no_log_has_is_refused() -> None:
    async with running_node() as node, Http(node) as http:
        for last in ("9" * 20, "9" * 5_000, str((1 << 63) - 1)):
            response = await http.client.get("/v1/resourcelease/watch", headers={"Last-Event-ID": last})
            assert (response.status_code, response.json()["code"]) == (400, "resourcelease.from.invalid")


async def test_a_watch_of_some_types_shows_only_those() -> None:
    async with running_node() as node, Http(node) as http:
        await one_life(http)
        queries = ("types=LeaseGranted,completed", "Types=leasegranted%2CCompleted", "types=LeaseGranted,+Completed")
        for query in queries:
            kinds = [event["eventType"] for _, event in await history(http, f"from=1&{query}")]
            assert kinds == ["LeaseGranted", "Completed"]
        async with following(http, "types=Completed") as events:
            await one_life(http)
            await one_life(http)
            assert [event["eventType"] for _, event in await take(events, 2)] == ["Completed", "Completed"]


@pytest.mark.parametrize("types", ["Enqueued", "Completed,Enqueued", "Completed,", ","])
async def test_a_watch_of_types_that_do_not_exist_is_refused(types: str) -> None:
    async with running_node() as node, Http(node) as http:
        response = await http.client.get(f"/v1/resourcelease/watch?from=1&untilCaughtUp=true&types={types}")
        assert (response.status_code, response.json()["code"]) == (400, "resourcelease.types.invalid")
        assert all(each in response.json()["message"] for each in EVENT_NUMBERS)


async def test_a_watch_follows_from_the_past_into_the_present_without_gap() -> None:
    async with running_node() as node, Http(node) as http:
        await one_life(http)
        async with following(http, "from=1") as events:
            writing = asyncio.gather(*(one_life_of(http, number) for number in range(50)))
            seen = await take(events, 200)
            assert [number for number, _ in seen] == list(range(1, 201))
            await writing


async def one_life_of(http: Http, number: int) -> None:
    await http.call("enqueue", {"payload": {"resourceType": "table", "resourceId": f"t{number}"}})
    lease = await http.call("lease", {"waitMs": 15_000})
    await http.call("complete", {"ownershipToken": lease["ownershipToken"]})
    await http.call("enqueue", {**ITEM, "delayMs": 60_000})


async def test_the_request_may_be_wrong() -> None:
    async with running_node() as node, Http(node) as http:
        for query, code in (
            ("from=0", "resourcelease.from.invalid"),
            ("from=abc", "resourcelease.from.invalid"),
            ("from=1.5", "resourcelease.from.invalid"),
            ("untilCaughtUp=perhaps", "resourcelease.untilCaughtUp.invalid"),
        ):
            response = await http.client.get(f"/v1/resourcelease/watch?{query}")
            assert (response.status_code, response.json()["code"]) == (400, code), query
        refused = await http.client.get("/v1/resourcelease/watch", headers={"Accept": "application/json"})
        assert refused.status_code == 406
        posted = await http.post("watch")
        assert posted.status_code == 501


async def test_any_path_will_do_for_a_watch_too() -> None:
    async with running_node() as node, Http(node) as http:
        await one_life(http)
        headers = {"Rpc-Procedure": "resourcelease::watch", "Accept": "text/event-stream"}
        response = await http.client.get("/yarpc/v1?from=1&untilCaughtUp=true", headers=headers)
        assert [event["eventType"] for _, event in events_in(response.text)][-1] == "Completed"


async def test_what_the_log_no_longer_holds_is_out_of_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A disk that is slower than this makes it an error in a stream that has begun.
    monkeypatch.setattr("omnirelay.transport.sse.FIRST_SECONDS", PATIENCE_S)
    async with running_node(tmp_path) as node, Http(node) as http:
        shard = node.components[0].shard()
        for _ in range(2):
            await one_life(http)
            await shard.snapshot()
        await one_life(http)
        anchor = await shard.trim(retention_ms=0)
        assert anchor.sequence > 1
        response = await http.client.get("/v1/resourcelease/watch?from=1")
        assert (response.status_code, response.json()["code"]) == (400, "error.log.trimmed")
        assert response.headers["rpc-status"] == "OutOfRange"
        assert (await history(http, f"from={anchor.sequence + 1}"))[0][0] == anchor.sequence + 1


async def test_a_reader_that_hangs_up_is_forgotten() -> None:
    async with running_node() as node, Http(node) as http:
        before = len(asyncio.all_tasks())
        wires = [await Wire.connect(node) for _ in range(50)]
        for wire in wires:
            await wire.send(request_bytes("/v1/resourcelease/watch", method="GET"))
            assert (await wire.head()).status == 200
        assert node.dispatcher.active == 50
        for number, wire in enumerate(wires):
            wire.reset() if number % 2 else wire.close()
        await until(lambda: node.dispatcher.active == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before + 2)
        await one_life(http)


async def test_a_watch_ends_when_the_node_stops() -> None:
    async with running_node() as node, Http(node) as http:
        reading = asyncio.ensure_future(http.client.get("/v1/resourcelease/watch?from=1"))
        await until(lambda: node.dispatcher.active == 1)
        await node.stop()
        response = await asyncio.wait_for(reading, PATIENCE_S)
        assert response.status_code == 200


async def test_a_reader_that_does_not_read_holds_nobody_up() -> None:
    async with running_node() as node, Http(node) as http:
        wire = await Wire.connect(node)
        await wire.send(request_bytes("/v1/resourcelease/watch?from=1", method="GET"))
        body = "A" * 200_000
        for number in range(40):
            item = {"payload": {"resourceType": "t", "resourceId": f"r{number}", "body": body}}
            assert (await asyncio.wait_for(http.call("enqueue", item), PATIENCE_S))["duplicate"] is False
        wire.reset()
        await until(lambda: node.dispatcher.active == 0)


async def test_two_readers_see_the_same(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Http(node) as http, Http(node) as other:
        await one_life(http)
        one, two = await asyncio.gather(history(http), history(other))
        assert one == two
