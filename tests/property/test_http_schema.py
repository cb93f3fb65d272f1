"""What the API document says and what the node does, against each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from omnirelay.wire.requests import REQUESTS
from tests.property.http_server import Server
from tests.property.strategies import LONG

load_all_checks()

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
LEGITIMATE = (501, 503, 504)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fitting", "unfitting"])
@pytest.mark.parametrize("verb", sorted(REQUESTS))
def test_answers_are_as_the_api_document_says(server: Server, schema: Any, verb: str, mode: GenerationMode) -> None:
    operation = schema[f"/v1/resourcelease/{verb}"]["GET" if verb == "watch" else "POST"]

    @seed(5)
    @settings(
        max_examples=500 if LONG else 15,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        # Whatever is drawn for the limits of a call, this one is the earliest that matters here.
        response = case.call(headers={"Context-TTL-MS": "60"}, timeout=120)
        assert response.status_code < 500 or response.status_code in LEGITIMATE, response.text
        # To a stream of events the schema of its text does not apply.
        case.validate_response(response, checks=CHECKS[:2] if verb == "watch" else CHECKS)
        if response.status_code >= 400:
            assert {"message", "status", "code"} <= set(json.loads(response.content))

    run()
    server.check_alive()
