"""The pages of a node: health, metrics, introspection, the API document and its page."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from omnirelay.control.pages import control_pages
from omnirelay.core.options import QueueOptions
from omnirelay.errors import OmniRelayError
from omnirelay.log import MemoryLog
from omnirelay.node.node import Node
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent, ResourceLeaseOptions
from omnirelay.telemetry import catalogue
from omnirelay.telemetry.meters import CallMeter
from omnirelay.transport.http import HttpInbound
from tests.integration.nodes import Http, running_node

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest_asyncio.fixture(loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running_node(options=QueueOptions(high_watermark=100, low_watermark=50)) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def http(node: Node) -> AsyncIterator[Http]:
    async with Http(node) as http:
        yield http


# -- health --------------------------------------------------------------------------------------


async def test_a_node_that_serves_is_alive_and_ready(http: Http) -> None:
    live = await http.client.get("/healthz")
    assert (live.status_code, live.json()["status"], live.json()["mode"]) == (200, "ok", "live")
    ready = await http.client.get("/readyz")
    assert ready.status_code == 200
    assert ready.headers["content-type"] == "application/json"
    report = ready.json()
    assert (report["status"], report["issues"], report["draining"], report["activeRequests"]) == ("ok", [], False, 0)
    [shard] = report["shards"]
    assert (shard["shard"], shard["ready"], shard["pending"], shard["active"]) == ("resourcelease", True, 0, 0)


async def test_a_node_that_drains_is_alive_and_not_ready(node: Node, http: Http) -> None:
    node.dispatcher.draining = True
    assert (await http.client.get("/healthz")).status_code == 200
    ready = await http.client.get("/readyz")
    assert ready.status_code == 503
    assert "draining" in ready.json()["issues"]


async def test_a_component_that_recovers_is_not_ready_and_says_so(tmp_path: Path) -> None:
    dispatcher = Dispatcher()
    component = ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(data=tmp_path))
    application = HttpInbound(dispatcher, pages=control_pages(dispatcher, [component], CallMeter()))
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        before = await client.get("/readyz")
        assert before.status_code == 503
        assert before.json()["issues"] == ["resourcelease: waiting to be started"]
        refused = await client.post("/v1/resourcelease/stats", json={})
        assert (refused.status_code, refused.json()["code"]) == (503, "error.resourcelease.no_leader")
        assert refused.headers["retry-after"] == "1"
        seen = []
        starting = asyncio.ensure_future(component.start())
        await asyncio.sleep(0)
        while not starting.done():
            seen.append((await client.get("/readyz")).json()["issues"])
            await asyncio.sleep(0)
        await starting
        assert seen[0] == ["resourcelease: recovering from the log"]
        assert (await client.get("/readyz")).status_code == 200
        metrics = await client.get("/metrics")
        assert 'omnirelay_resourcelease_up{shard="resourcelease"} 1.0' in metrics.text
        await component.stop()
        assert (await client.get("/readyz")).json()["issues"] == ["resourcelease: it has stopped"]
        assert 'omnirelay_resourcelease_up{shard="resourcelease"} 0.0' in (await client.get("/metrics")).text


async def test_a_component_whose_log_cannot_be_opened_says_why_and_lets_go_of_it(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Http(node) as http:
        await http.call("enqueue", ITEM)
        dispatcher = Dispatcher()
        second = ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(data=tmp_path))
        with pytest.raises(OmniRelayError) as caught:
            await second.start()
        assert caught.value.code == "error.log.locked"
        assert second.starting == caught.value.message
    database = tmp_path / "resourcelease" / "leases.db"
    whole = database.read_bytes()
    database.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    for _ in range(2):
        with pytest.raises(OmniRelayError) as caught:
            await second.start()
        assert caught.value.code != "error.log.locked"
    database.write_bytes(whole)
    await second.start()
    await second.stop()


async def test_a_log_that_cannot_be_written_makes_the_node_unready_until_it_can(node: Node, http: Http) -> None:
    log = node.components[0].shard().log
    assert isinstance(log, MemoryLog)
    for _ in range(5):
        log.fail_next_append("definite")
    enqueue = asyncio.ensure_future(http.call("enqueue", ITEM))
    while (ready := await http.client.get("/readyz")).status_code == 200:
        pass
    assert ready.status_code == 503
    [issue] = ready.json()["issues"]
    assert issue.startswith("resourcelease: ")
    assert ready.json()["shards"][0]["code"] == "error.resourcelease.log_unavailable"
    assert 'omnirelay_resourcelease_up{shard="resourcelease"} 0.0' in (await http.client.get("/metrics")).text
    assert (await http.client.get("/healthz")).status_code == 200
    await enqueue
    assert (await http.client.get("/readyz")).status_code == 200


async def test_a_shard_that_was_given_up_is_unready_and_asks_for_a_restart(node: Node, http: Http) -> None:
    log = node.components[0].shard().log
    assert isinstance(log, MemoryLog)
    log.fail_next_append("unknown-lost")
    assert (await http.post("enqueue", ITEM)).status_code == 503
    ready = await http.client.get("/readyz")
    assert (ready.status_code, ready.json()["shards"][0]["ready"]) == (503, False)
    live = await http.client.get("/healthz")
    assert (live.status_code, live.json()["status"], live.json()["mode"]) == (503, "unavailable", "live")
    [issue] = live.json()["issues"]
    assert issue.startswith("resourcelease: given up until a restart: a flush failed")


async def test_one_shard_of_several_that_was_taken_over_is_enough_to_ask_for_a_restart() -> None:
    dispatcher = Dispatcher()
    components = [ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(namespace=name)) for name in ("a", "b")]
    application = HttpInbound(dispatcher, pages=control_pages(dispatcher, components, CallMeter()))
    transport = httpx.ASGITransport(application)
    async with components[0], components[1], httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        log = components[1].shard().log
        assert isinstance(log, MemoryLog)
        await log.reopen().acquire("another node")
        assert (await client.get("/healthz")).status_code == 200, "nobody has noticed yet"
        assert (await client.post("/v1/b/enqueue", json=ITEM)).json()["code"] == "error.log.fenced"
        live = await client.get("/healthz")
        assert live.status_code == 503
        [issue] = live.json()["issues"]
        assert issue.startswith("b: given up until a restart: ")
        await components[1].stop()
        assert (await client.get("/healthz")).status_code == 200


# -- introspection -------------------------------------------------------------------------------


async def test_introspection_lists_what_the_node_is_made_of(node: Node, http: Http) -> None:
    report = (await http.client.get("/omnirelay/introspect")).json()
    assert (report["service"], report["status"], report["mode"]) == ("node", "Running", "node")
    unary = {each["name"] for each in report["procedures"]["unary"]}
    assert {"resourcelease::enqueue", "resourcelease::lease", "resourcelease::why"} <= unary
    assert {"name": "resourcelease::watch", "encoding": "json"} in report["procedures"]["stream"]
    [component] = report["components"]
    assert (component["name"], component["log"]) == ("resourcelease", "memory")
    assert report["node"]["url"] == node.url
    assert report["middleware"]["inboundUnary"] == ["metered"]


# -- metrics -------------------------------------------------------------------------------------


async def samples(http: Http) -> Samples:
    response = await http.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def of_shard(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted({"shard": "resourcelease", **labels}.items()))


async def test_every_metric_of_the_catalogue_is_exported_with_its_kind_and_help(http: Http) -> None:
    await http.call("stats")
    response = await http.client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    for metric in catalogue.ALL:
        family = families[metric.exported]
        assert (family.type, family.documentation) == (metric.kind, metric.help), metric.name
    assert "process_resident_memory_bytes" in families


async def test_metrics_are_right_after_a_known_workload(http: Http) -> None:
    await http.call("enqueue", {"items": [ITEM] * 4})
    await http.call("enqueue", {**ITEM, "delayMs": 60_000})
    leases = (await http.call("lease", {"waitMs": 0, "maxItems": 3}))["leases"]
    tokens = [lease["ownershipToken"] for lease in leases]
    await http.call("complete", {"ownershipToken": tokens[0]})
    await http.call("fail", {"ownershipToken": tokens[1], "mode": "dead"})
    await http.post("complete", {"ownershipToken": {**tokens[2], "fence": 1}})
    await http.call("pause", {"tenant": "a"})
    seen = await samples(http)
    prefix = "omnirelay_resourcelease_"
    for name, value in {
        "pending": 2,
        "ready": 1,
        "delayed": 1,
        "active": 1,
        "dead_letters": 1,
        "backpressure_active": 0,
        "pauses": 1,
        "up": 1,
        "dead_lettered_total": 1,
        "expiries_total": 0,
        "wait_seconds_count": 3,
        "lease_seconds_count": 2,
        "attempts_count": 1,
        "attempts_sum": 1,
    }.items():
        assert seen[of_shard(prefix + name)] == value, name
    for kind, count in {
        "Enqueue": 5,
        "LeaseGranted": 3,
        "Completed": 1,
        "Failed": 1,
        "DeadLettered": 1,
        "Paused": 1,
    }.items():
        assert seen[of_shard(f"{prefix}events_total", event_type=kind)] == count
    stats = (await http.call("stats"))["stats"]
    assert seen[of_shard(f"{prefix}last_sequence")] == stats["lastSequence"]
    assert seen[of_shard(f"{prefix}live_bytes")] == stats["liveBytes"]
    frames = seen[of_shard("omnirelay_log_frame_events_count")]
    assert frames >= 6
    assert seen[of_shard("omnirelay_log_commit_seconds_count")] >= frames

    def calls(verb: str, status: str) -> float:
        labels = {"procedure": f"resourcelease::{verb}", "transport": "http", "status": status}
        return seen["omnirelay_rpc_requests_total", tuple(sorted(labels.items()))]

    assert calls("enqueue", "Ok") == 2
    assert calls("complete", "Ok") == 1
    assert calls("complete", "FailedPrecondition") == 1
    durations = tuple(sorted({"procedure": "resourcelease::complete", "transport": "http"}.items()))
    assert seen["omnirelay_rpc_duration_seconds_count", durations] == 2
    assert seen["omnirelay_rpc_active", ()] == 0


async def test_backpressure_shows_in_the_metrics(http: Http) -> None:
    await http.call("enqueue", {"items": [ITEM] * 100})
    seen = await samples(http)
    assert seen[of_shard("omnirelay_resourcelease_backpressure_active")] == 1
    assert seen[of_shard("omnirelay_resourcelease_backpressure_transitions_total", to="closed")] == 1
    assert seen[of_shard("omnirelay_resourcelease_backpressure_transitions_total", to="open")] == 0


async def test_no_caller_can_make_the_metrics_grow(http: Http) -> None:
    async def workload(start: int) -> int:
        for number in range(start, start + 20):
            item = {
                "payload": {
                    "resourceType": f"type{number}",
                    "resourceId": f"id{number}",
                    "attributes": {"tenant": str(number)},
                }
            }
            await http.call("enqueue", item, Rpc_Caller=f"caller{number}")
            lease = await http.call("lease", {"waitMs": 0, "peerId": f"peer{number}"})
            await http.call(
                "fail", {"ownershipToken": lease["ownershipToken"], "errorCode": f"code{number}", "mode": "dead"}
            )
            await http.client.post(f"/v1/ns{number}/verb{number}", json={})
            await http.client.post("/", json={}, headers={"Rpc-Procedure": f"p{number}"})
            await http.client.get(f"/page{number}")
        return len(await samples(http))

    await workload(0)
    await samples(http)
    assert await workload(100) == await workload(200)


# -- the API document ----------------------------------------------------------------------------


async def document_of(http: Http) -> dict[str, Any]:
    response = await http.client.get("/openapi.json")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    document: dict[str, Any] = response.json()
    return document


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [each for inner in value.values() for each in references(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in references(inner)]
    return []


async def test_the_api_document_lists_every_procedure_and_hangs_together(node: Node, http: Http) -> None:
    document = await document_of(http)
    assert document["openapi"] == "3.1.0"
    described = [each for each in node.dispatcher.procedures.values() if each.shape != "duplex"]
    assert set(document["paths"]) == {f"/v1/{each.name.replace('::', '/')}" for each in described}
    for path, methods in document["paths"].items():
        [(method, operation)] = methods.items()
        assert method == ("get" if path.endswith("/watch") else "post")
        assert operation["summary"]
        assert {"200", "400", "404", "412", "413", "429", "503", "504"} <= set(operation["responses"])
    identifiers = [methods[method]["operationId"] for methods in document["paths"].values() for method in methods]
    assert len(identifiers) == len(set(identifiers))
    schemas = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas


async def test_every_schema_of_the_api_document_is_a_schema(http: Http) -> None:
    document = await document_of(http)
    for name in document["components"]["schemas"]:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        assert jsonschema_rs.meta.is_valid(document["components"]["schemas"][name]), name
        jsonschema_rs.Draft202012Validator(schema)


async def test_requests_and_answers_are_as_the_api_document_says(http: Http) -> None:
    document = await document_of(http)

    def validator(verb: str, part: str) -> Any:
        operation = document["paths"][f"/v1/resourcelease/{verb}"]["post"]
        content = operation["requestBody"] if part == "request" else operation["responses"][part]
        schema = content["content"]["application/json"]["schema"]
        return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})

    async def call(verb: str, body: Any, status: int = 200) -> Any:
        response = await http.post(verb, body)
        assert response.status_code == status, response.text
        if status == 200:
            validator(verb, "request").validate(body)
        validator(verb, str(status)).validate(response.json())
        return response.json()

    await call("enqueue", {**ITEM, "unknown": True})
    await call("enqueue", {"items": [ITEM, {**ITEM, "priority": 3}]})
    lease = await call("lease", {"waitMs": 0, "peerId": "w"})
    assert await call("lease", {"waitMs": 0, "tenants": ["none"]}) == {}
    assert await call("lease", {"waitMs": 0, "tenants": ["none"], "maxItems": 2}) == {"leases": []}
    token = lease["ownershipToken"]
    await call("heartbeat", {"ownershipToken": token, "progress": {"fraction": 0.5, "data": {"a": [1]}}})
    await call("fail", {"ownershipToken": token, "reason": "no"})
    page = await call("lease", {"waitMs": 0, "maxItems": 5})
    assert any("progress" in each for each in page["leases"])
    tokens = [each["ownershipToken"] for each in page["leases"]]
    await call("release", {"acks": [{"ownershipToken": tokens[0]}]})
    await call("complete", {"ownershipToken": tokens[1], "result": "QQ==", "followUps": [ITEM]})
    await call("complete", {"ownershipToken": {**tokens[1], "attempt": 9}}, status=412)
    await call("fail", {"ownershipToken": tokens[2], "mode": "dead"})
    await call("get", {"sequenceId": tokens[1]["sequenceId"]})
    await call("get", {"sequenceId": 999}, status=404)
    await call("deadletters", {})
    await call("edit", {"sequenceId": tokens[2]["sequenceId"], "payload": ITEM["payload"]})
    await call("redrive", {"all": True})
    await call("purge", {"all": True})
    await call("pause", {"reason": "x"})
    await call("why", {"sequenceId": tokens[0]["sequenceId"]})
    await call("stats", {})
    await call("resume", {})
    await call("peek", {"state": "completed"})
    drained = await call("drain", {})
    await call("restore", {"items": drained["items"]})
    await call("cancel", {"sequenceId": drained["items"][0]["sequenceId"]})


# -- the page for people -------------------------------------------------------------------------


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.targets += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset", "data")]


async def test_the_page_needs_no_other_site(http: Http) -> None:
    for path in ("/docs", "/"):
        response = await http.client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        links = _Links()
        links.feed(response.text)
        assert all(target.startswith(("/", "#")) and not target.startswith("//") for target in links.targets)
        assert not {"iframe", "img", "link"} & set(links.tags)
        assert re.findall(r"https?://[^\s<\"']+", response.text.replace("http://HOST", "")) == []
        assert "@import" not in response.text


async def test_the_page_shows_every_procedure_and_its_links_lead_somewhere(node: Node, http: Http) -> None:
    text = (await http.client.get("/docs")).text
    for procedure in node.dispatcher.procedures.values():
        if procedure.shape != "duplex":
            assert f"<code>{procedure.name}</code>" in text
    links = _Links()
    links.feed(text)
    for target in links.targets:
        if target.startswith("/"):
            assert (await http.client.get(target)).status_code == 200, target
    for example in re.findall(r"<textarea[^>]*>(.*?)</textarea>", text):
        json.loads(example.replace("&quot;", '"'))


async def test_forms_begin_with_requests_of_their_procedures_that_do_little_harm(node: Node, http: Http) -> None:
    text = (await http.client.get("/docs")).text
    forms = re.findall(r'data-path="/v1/([^"]+)"><textarea[^>]*>(.*?)</textarea>', text)
    examples = {path.replace("/", "::"): json.loads(example.replace("&quot;", '"')) for path, example in forms}
    for name, example in examples.items():
        fields = {each.encode_name for each in msgspec.structs.fields(node.dispatcher.find(name).request)}
        assert set(example) <= fields, name
    assert examples[f"{http.namespace}::drain"] == {"maxItems": 1}
    assert "resourceType" in examples[f"{http.namespace}::pause"]
    assert "sink" in examples["replication::pause"]
