"""A lease queue inside other people's applications: several shards, a mount in Starlette, a service of its own."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from omnirelay.control.pages import control_pages
from omnirelay.errors import InvalidArgument
from omnirelay.rpc.calls import Call, Reply
from omnirelay.rpc.dispatcher import Dispatcher, Proceed
from omnirelay.service.component import ResourceLeaseComponent, ResourceLeaseOptions
from omnirelay.telemetry.meters import CallMeter
from omnirelay.transport.http import HttpInbound
from tests.integration.http_sockets import until
from tests.integration.nodes import Http, running_node
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}


async def test_several_shards_of_a_node_have_a_log_each_and_share_nothing(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, "tablelease", "streamlease") as node,
        Http(node, "tablelease") as tables,
        Http(node, "streamlease") as streams,
    ):
        await tables.call("enqueue", ITEM)
        assert await streams.call("lease", {"waitMs": 0}) == {}
        assert (await tables.call("lease", {"waitMs": 0}))["attempt"] == 1
        assert (await tables.client.post("/v1/resourcelease/stats", json={})).status_code == 501
        named = await tables.client.post("/", json={}, headers={"Rpc-Procedure": "tablelease::stats"})
        assert named.json()["stats"]["activeLeaseCount"] == 1
        ready = (await tables.client.get("/readyz")).json()
        assert [shard["shard"] for shard in ready["shards"]] == ["tablelease", "streamlease"]
    for namespace in ("tablelease", "streamlease"):
        assert (tmp_path / namespace / "leases.db").exists()


@asynccontextmanager
async def client_of(application: object, **how: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application, **how)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_a_component_mounted_in_a_starlette_application_is_served_below_its_path() -> None:
    dispatcher = Dispatcher("catalog")
    seen: list[str] = []

    async def noted(call: Call, proceed: Proceed) -> Reply:
        seen.append(call.meta.procedure)
        return await proceed(call)

    dispatcher.use(noted)
    leases = ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(namespace="tablelease"))
    inbound = HttpInbound(dispatcher, pages=control_pages(dispatcher, [leases], CallMeter()))

    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    @asynccontextmanager
    async def lifespan(application: Starlette) -> AsyncIterator[None]:
        async with leases:
            yield

    application = Starlette(routes=[Route("/hello", hello), Mount("/queue", inbound)], lifespan=lifespan)
    async with lifespan(application), client_of(application) as client:
        assert (await client.get("/hello")).text == "hello"
        assert (await client.post("/queue/v1/tablelease/enqueue", json=ITEM)).status_code == 200
        lease = (await client.post("/queue/v1/tablelease/lease", json={})).json()
        done = await client.post(
            "/queue/any/path",
            json={"ownershipToken": lease["ownershipToken"]},
            headers={"Rpc-Procedure": "tablelease::complete"},
        )
        assert done.json() == {"success": True}
        assert (await client.get("/queue/readyz")).status_code == 200
        assert (await client.get("/queue/nothing")).status_code == 404
        assert (await client.post("/v1/tablelease/stats", json={})).status_code == 404
        watched = await client.get("/queue/v1/tablelease/watch?from=1&untilCaughtUp=true")
        assert '"eventType":"Completed"' in watched.text
    assert seen == ["tablelease::enqueue", "tablelease::lease", "tablelease::complete"]


async def test_an_application_behind_a_proxy_with_a_prefix_is_served() -> None:
    dispatcher = Dispatcher()
    async with ResourceLeaseComponent(dispatcher), client_of(HttpInbound(dispatcher), root_path="/prefix") as client:
        assert (await client.post("/prefix/v1/resourcelease/stats", json={})).status_code == 200
        assert (await client.post("/v1/resourcelease/stats", json={})).status_code == 200


async def test_the_lifespan_of_an_application_starts_and_stops_the_component() -> None:
    dispatcher = Dispatcher()
    leases = ResourceLeaseComponent(dispatcher)
    application = HttpInbound(dispatcher, on_startup=leases.start, on_shutdown=leases.stop)
    said: list[str] = []
    told: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def send(message: object) -> None:
        said.append(message["type"])  # type: ignore[index]

    living = asyncio.ensure_future(application({"type": "lifespan"}, told.get, send))
    await told.put({"type": "lifespan.startup"})
    async with client_of(application) as client:
        await until(lambda: bool(said))
        assert (await client.post("/v1/resourcelease/stats", json={})).status_code == 200
    await told.put({"type": "lifespan.shutdown"})
    await living
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert leases.starting == "it has stopped"


async def test_a_startup_that_fails_is_told_to_the_server() -> None:
    async def fail() -> None:
        raise InvalidArgument("no such directory")

    said: list[dict[str, str]] = []
    application = HttpInbound(Dispatcher(), on_startup=fail)

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: object) -> None:
        said.append(message)  # type: ignore[arg-type]

    await application({"type": "lifespan"}, receive, send)
    assert said == [{"type": "lifespan.startup.failed", "message": "no such directory"}]


async def test_the_example_of_an_embedded_service_runs() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "uvicorn", "examples.embedded_service:application", "--log-level", "warning"),
            *("--fd", str(listener.fileno())),
            cwd=ROOT,
            pass_fds=[listener.fileno()],
        )
        try:
            # The socket listens already, so the first call waits until the service is up.
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
                first = await client.post("/v1/tables/compact", json={"table": "sales.orders"})
                assert first.status_code == 200, first.text
                again = await client.post("/v1/tables/compact", json={"Table": "sales.orders", "unknown": 1})
                assert again.json() == first.json() == {"sequenceId": 1}
                lease = (await client.post("/v1/tablelease/lease", json={"peerId": "me"})).json()
                assert (lease["payload"]["resourceId"], lease["ownerPeerId"]) == ("sales.orders", "me")
                refused = await client.post("/v1/tables/compact", json={})
                assert refused.status_code == 400
        finally:
            server.terminate()
            await asyncio.wait_for(server.wait(), PATIENCE_S)
