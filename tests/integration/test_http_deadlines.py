"""How long a call over HTTP may take: what headers and waitMs say, and what comes when the time is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import pytest_asyncio

from omnirelay.core.options import QueueOptions
from omnirelay.log import MemoryLog
from omnirelay.node.node import Node
from tests.integration.nodes import Http, running_node
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}
NAMESPACES = [f"shard{number}" for number in range(60)]
VERBS = [
    *("enqueue", "lease", "heartbeat", "complete", "fail", "release", "get", "drain", "restore", "cancel", "pause"),
    *("resume", "deadletters", "edit", "redrive", "purge", "stats", "peek", "why"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shards() -> AsyncIterator[Iterator[tuple[Node, str]]]:
    async with running_node(None, *NAMESPACES, options=QueueOptions(capacity=1, high_watermark=10)) as node:
        yield iter([(node, namespace) for namespace in NAMESPACES])


@pytest_asyncio.fixture(loop_scope="module")
async def http(shards: Iterator[tuple[Node, str]]) -> AsyncIterator[Http]:
    async with Http(*next(shards)) as http:
        yield http


def in_ms(ms: float) -> str:
    return (datetime.now(UTC) + timedelta(milliseconds=ms)).isoformat()


async def timed(call: Callable[[], Awaitable[httpx.Response]]) -> tuple[httpx.Response, float]:
    """The answer, and how long it took from before its limit was written down.

    On a machine that stands still for so long a call is late when it arrives, and is refused: then it is made again.
    """
    while True:
        started = time.monotonic()
        response = await asyncio.wait_for(call(), PATIENCE_S)
        if response.status_code != 504:
            return response, (time.monotonic() - started) * 1000


@pytest.mark.parametrize(
    "headers",
    [
        {"Rpc_Ttl_Ms": "300"},
        {"Rpc_Ttl_Ms": "300.75"},
        {"rpc_ttl_ms": "3e2"},
        {"Context_TTL_MS": "300"},
        {"Rpc_Ttl_Ms": "60000", "Context_TTL_MS": "300"},
        {"Rpc_Ttl_Ms": "300", "Context_TTL_MS": "60000", "Rpc_Deadline": "2100-01-01T00:00:00Z"},
        {"Rpc_Ttl_Ms": "soon", "Context_TTL_MS": "300", "Rpc_Deadline": "never"},
    ],
)
async def test_a_lease_waits_until_just_before_the_earliest_limit_and_is_then_empty(
    http: Http, headers: dict[str, str]
) -> None:
    response, took_ms = await timed(lambda: http.post("lease", {}, **headers))
    assert (response.status_code, response.json()) == (200, {})
    assert took_ms > 150


@pytest.mark.parametrize("suffix", ["+00:00", "Z", ""])
async def test_a_deadline_is_an_instant_and_utc_when_it_does_not_say(http: Http, suffix: str) -> None:
    def call() -> Awaitable[httpx.Response]:
        at = in_ms(400).removesuffix("+00:00") + "7"  # Seven digits of a second, as others write them.
        return http.post("lease", {"maxItems": 2}, Rpc_Deadline=at + suffix)

    response, took_ms = await timed(call)
    assert (response.status_code, response.json()) == (200, {"leases": []})
    assert took_ms > 200


async def test_the_earliest_of_deadline_and_time_to_live_counts(http: Http) -> None:
    response, took_ms = await timed(lambda: http.post("lease", {}, Rpc_Ttl_Ms="60000", Rpc_Deadline=in_ms(300)))
    assert (response.status_code, response.json()) == (200, {})
    assert took_ms > 150


@pytest.mark.parametrize("verb", VERBS)
async def test_a_call_whose_deadline_has_passed_on_arrival_does_nothing(http: Http, verb: str) -> None:
    for headers in ({"Rpc_Ttl_Ms": "0"}, {"Context_TTL_MS": "-5"}, {"Rpc_Deadline": in_ms(-1)}):
        response = await http.post(verb, {**ITEM, "sequenceId": 1, "all": True}, **headers)
        assert (response.status_code, response.json()["code"]) == (504, "deadline-exceeded")
        assert response.headers["rpc-status"] == "DeadlineExceeded"
    assert (await http.call("stats"))["stats"]["pendingCount"] == 0
    metrics = (await http.client.get("/metrics")).text.splitlines()
    [counted] = [line for line in metrics if f'::{verb}"' in line and "DeadlineExceeded" in line]
    assert counted.endswith(" 3.0")


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "-inf", "1e999", "12ms", "0x10", "١٢x"])
async def test_a_limit_that_cannot_be_read_limits_nothing(http: Http, value: str) -> None:
    raw = [(name, value.encode()) for name in (b"Rpc-Ttl-Ms", b"Context-TTL-MS", b"Rpc-Deadline")]
    url = f"/v1/{http.namespace}/lease"
    response = await http.client.post(url, json={"waitMs": 1}, headers=httpx.Headers(raw, encoding="utf-8"))
    assert (response.status_code, response.json()) == (200, {})


@pytest.mark.parametrize(
    "headers",
    [{"Rpc_Ttl_Ms": "100000000"}, {"Rpc_Ttl_Ms": "1e300"}, {"Rpc_Deadline": "9999-12-31T23:59:59.9999999+00:00"}],
)
async def test_a_deadline_that_is_far_away_is_as_good_as_none(http: Http, headers: dict[str, str]) -> None:
    waiting = asyncio.ensure_future(http.post("lease", {}, **headers))
    enqueued = await http.post("enqueue", ITEM, **headers)
    assert enqueued.status_code == 200
    assert (await asyncio.wait_for(waiting, PATIENCE_S)).json()["sequenceId"] == enqueued.json()["sequenceId"]


@pytest.mark.parametrize("ttl_ms", ["500", "640.5"])
async def test_a_short_deadline_is_no_error_either(http: Http, ttl_ms: str) -> None:
    for _ in range(2):
        response, _ = await timed(lambda: http.post("lease", {}, Rpc_Ttl_Ms=ttl_ms))
        assert (response.status_code, response.json()) == (200, {})


async def test_waiting_is_never_longer_than_the_deadline(http: Http) -> None:
    response, took_ms = await timed(lambda: http.post("lease", {"waitMs": 60_000}, Rpc_Ttl_Ms="300"))
    assert (response.status_code, response.json()) == (200, {})
    assert took_ms > 150


async def test_a_lease_without_any_limit_waits_for_work(http: Http) -> None:
    waiting = asyncio.ensure_future(http.call("lease", {}))
    await http.call("lease", {"waitMs": 1})
    assert not waiting.done()
    await http.call("enqueue", ITEM)
    assert (await asyncio.wait_for(waiting, PATIENCE_S))["attempt"] == 1


async def test_an_enqueue_without_room_is_refused_at_once_without_a_deadline_and_just_before_it_with_one(
    http: Http,
) -> None:
    await http.call("enqueue", ITEM)
    at_once = await asyncio.wait_for(http.post("enqueue", ITEM), PATIENCE_S)
    assert at_once.status_code == 429
    response, took_ms = await timed(lambda: http.post("enqueue", ITEM, Rpc_Ttl_Ms="300"))
    assert (response.status_code, response.json()["code"]) == (429, "error.resourcelease.backpressure")
    assert took_ms > 150


async def test_an_enqueue_that_waits_comes_in_when_there_is_room(http: Http) -> None:
    await http.call("enqueue", ITEM)
    lease = await http.call("lease", {"waitMs": 0})
    waiting = asyncio.ensure_future(http.call("enqueue", ITEM, Rpc_Ttl_Ms=str(PATIENCE_MS)))
    await http.call("lease", {"waitMs": 1})
    assert not waiting.done()
    await http.call("complete", {"ownershipToken": lease["ownershipToken"]})
    assert (await waiting)["duplicate"] is False


async def test_get_answers_with_what_is_there_when_its_time_is_over(http: Http) -> None:
    sequence_id = (await http.call("enqueue", ITEM))["sequenceId"]
    response, took_ms = await timed(
        lambda: http.post("get", {"sequenceId": sequence_id, "waitMs": 60_000}, Rpc_Ttl_Ms="300")
    )
    assert response.json()["item"]["state"] == "ready"
    assert took_ms > 150
    waiting = asyncio.ensure_future(http.call("get", {"sequenceId": sequence_id, "waitMs": 60_000}))
    lease = await http.call("lease", {"waitMs": 0})
    await http.call("complete", {"ownershipToken": lease["ownershipToken"]})
    assert (await asyncio.wait_for(waiting, PATIENCE_S))["item"]["state"] == "completed"


async def test_a_log_slower_than_the_deadline_makes_a_lease_empty_and_takes_nothing() -> None:
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", ITEM)
        log = node.components[0].shard().log
        assert isinstance(log, MemoryLog)
        for _ in range(6):
            log.fail_next_append("definite")
        response, _ = await timed(lambda: http.post("lease", {}, Rpc_Ttl_Ms="150"))
        assert (response.status_code, response.json()) == (200, {})
        while (response := await http.post("lease", {"waitMs": 10_000})).status_code == 503:
            assert response.json()["code"] == "error.resourcelease.log_unavailable"
        assert response.json()["attempt"] == 1


async def test_a_watch_ends_at_its_deadline(http: Http) -> None:
    url = f"/v1/{http.namespace}/watch"
    late = await http.client.get(url, headers={"Rpc-Ttl-Ms": "0"})
    assert (late.status_code, late.json()["code"]) == (504, "deadline-exceeded")
    followed, _ = await timed(lambda: http.client.get(url, headers={"Rpc-Ttl-Ms": "200"}))
    assert followed.status_code == 200
    assert "event: error\n" in followed.text
    assert "deadline-exceeded" in followed.text
