"""The API document: OpenAPI 3.1, made from the types that requests are read with and answers are written from."""

from __future__ import annotations

from typing import Any

import msgspec

from omnirelay._version import __version__
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.procedures import Procedure
from omnirelay.rpc.statuses import HTTP_STATUS
from omnirelay.wire.answers import ErrorBody

_REF = "#/components/schemas/{name}"

_HEADERS = {
    "Rpc-Caller": "Who is calling; owns what it leases when the body names no peer.",
    "Rpc-Ttl-Ms": "Milliseconds the caller waits for the answer. `Context-TTL-MS` means the same.",
    "Rpc-Deadline": "The instant until which the caller waits (ISO-8601).",
}


def openapi_document(dispatcher: Dispatcher) -> dict[str, Any]:
    # A duplex procedure has no place in OpenAPI; its messages are described in the protocol page.
    procedures = [each for each in dispatcher.procedures.values() if each.shape != "duplex"]
    types: list[Any] = [ErrorBody]
    for procedure in procedures:
        types += [procedure.request, *procedure.answers]
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    for schema in components.values():
        # Readers pass over fields they do not know, on both sides; only the types of requests say otherwise.
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
    schema_of = dict(zip(unique, schemas, strict=True))
    paths: dict[str, Any] = {}
    for procedure in procedures:
        namespace, _, verb = procedure.name.partition("::")
        method = "get" if procedure.shape == "server-stream" else "post"
        paths[f"/v1/{namespace}/{verb}"] = {method: _operation(procedure, schema_of)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OmniRelay",
            "version": __version__,
            "description": "A lease mesh for lakehouse services. Every procedure `ns::verb` is also served by a POST "
            "to any path with the header `Rpc-Procedure: ns::verb`.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(procedure: Procedure, schema_of: dict[Any, Any]) -> dict[str, Any]:
    namespace, _, verb = procedure.name.partition("::")
    operation: dict[str, Any] = {
        "operationId": f"{namespace}.{verb}",
        "tags": [namespace],
        "summary": procedure.summary,
        "responses": {
            "200": {"description": "Done.", "content": _content(procedure, schema_of)},
            **{str(status): _refused(status, schema_of) for status in sorted({*HTTP_STATUS.values(), 413} - {200})},
        },
    }
    if procedure.shape == "server-stream":
        operation["parameters"] = [
            {"name": "from", "in": "query", "schema": {"type": "integer", "minimum": 1}},
            {
                "name": "types",
                "in": "query",
                "schema": {"type": "string"},
                "description": "Event types, comma-separated.",
            },
            {"name": "untilCaughtUp", "in": "query", "schema": {"type": "boolean"}},
        ]
        return operation
    operation["parameters"] = [
        {"name": name, "in": "header", "schema": {"type": "string"}, "description": text}
        for name, text in _HEADERS.items()
    ]
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": schema_of[procedure.request]}},
    }
    return operation


def _content(procedure: Procedure, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if procedure.shape == "server-stream":
        return {"text/event-stream": {"schema": {"type": "string"}}}
    schemas = [schema_of[kind] for kind in procedure.answers]
    if len(schemas) == 1:
        return {"application/json": {"schema": schemas[0]}}
    # `{}`: a lease call that got nothing.
    return {"application/json": {"schema": {"anyOf": [*schemas, {"type": "object", "maxProperties": 0}]}}}


def _refused(status: int, schema_of: dict[Any, Any]) -> dict[str, Any]:
    return {"description": "Refused.", "content": {"application/json": {"schema": schema_of[ErrorBody]}}}
