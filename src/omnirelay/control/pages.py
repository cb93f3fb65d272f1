"""Every page of a process, ready to be handed to its HTTP application."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from omnirelay.control.docs_page import HTML, docs_page
from omnirelay.control.health import JSON, Health
from omnirelay.control.introspection import Introspection
from omnirelay.control.openapi import openapi_document
from omnirelay.control.prometheus import Metrics
from omnirelay.replication.replication import Replication
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent
from omnirelay.telemetry.meters import CallMeter
from omnirelay.transport.http import Page, QueriedPage


def control_pages(
    dispatcher: Dispatcher,
    components: Sequence[ResourceLeaseComponent],
    calls: CallMeter,
    about: Callable[[], dict[str, Any]] = dict,
    replication: Replication | None = None,
) -> dict[str, Page | QueriedPage]:
    health = Health(dispatcher, components, replication)

    async def openapi() -> tuple[int, str, bytes]:
        return 200, JSON, msgspec.json.encode(openapi_document(dispatcher))

    async def docs() -> tuple[int, str, bytes]:
        return 200, HTML, docs_page(openapi_document(dispatcher))

    async def sinks(query: Mapping[str, str]) -> tuple[int, str, bytes]:
        status = [] if replication is None else replication.status(query.get("sink"), query.get("shard"))
        return 200, JSON, msgspec.json.encode({"sinks": status})

    return {
        "/healthz": Page(health.live),
        "/readyz": Page(health.ready),
        "/metrics": Page(Metrics(dispatcher, components, calls, replication).page),
        "/omnirelay/introspect": Page(Introspection(dispatcher, components, about).page),
        "/omnirelay/control/replication": QueriedPage(sinks, frozenset(("sink", "shard"))),
        "/openapi.json": Page(openapi),
        "/docs": Page(docs),
        "/": Page(docs),
    }
