"""A page for people: every procedure with its fields, and a form to call it. Needs no network beyond this node."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

HTML = "text/html; charset=utf-8"

_EXAMPLES: dict[str, Any] = {
    "enqueue": {"payload": {"resourceType": "table", "resourceId": "sales.orders", "attributes": {"tenant": "a"}}},
    "lease": {"peerId": "me", "waitMs": 0},
    "get": {"sequenceId": 1},
    "cancel": {"sequenceId": 1},
    "why": {"sequenceId": 1},
    "pause": {"resourceType": "table", "reason": "maintenance"},
    "resume": {"resourceType": "table"},
    "peek": {"state": "ready"},
    # Whoever presses the button to see what happens must not empty a shard.
    "drain": {"maxItems": 1},
    "replication::pause": {"sink": "NAME"},
    "replication::resume": {"sink": "NAME"},
    "replication::reset": {"sink": "NAME", "shard": "NAME", "sequence": 0},
}
"""What a form begins with, by verb; the procedures of sinks share verbs with those of shards."""


def docs_page(document: dict[str, Any]) -> bytes:
    """The page for an API document of `openapi_document`."""
    schemas = document["components"]["schemas"]
    sections = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            sections.append(_section(path, method, operation, schemas))
    sections += [_type(name, schema, schemas) for name, schema in schemas.items() if "properties" in schema]
    template = files("omnirelay.control").joinpath("docs_page.html").read_text(encoding="utf-8")
    page = template.replace("{{version}}", escape(document["info"]["version"]))
    return page.replace("{{sections}}", "\n".join(sections)).encode()


def _section(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    namespace, verb = path.split("/")[2:4]
    head = f'<h2 id="{escape(operation["operationId"])}"><code>{escape(namespace)}::{escape(verb)}</code></h2>'
    text = f"<p>{escape(operation['summary'])}</p>"
    if method == "get":
        return f"<section>{head}{text}<pre>curl -N http://HOST{escape(path)}</pre></section>"
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    body = json.dumps(_EXAMPLES.get(f"{namespace}::{verb}") or _EXAMPLES.get(verb, {}))
    form = (
        f'<form data-path="{escape(path)}"><textarea name="body" rows="4" spellcheck="false">{escape(body)}</textarea>'
        '<button>Call</button><pre class="answer" hidden></pre></form>'
    )
    return f"<section>{head}{text}{_fields(schema, schemas)}{form}</section>"


def _type(name: str, schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    about = schema.get("description", "").split("\n")[0]
    head = f'<section id="type-{escape(name)}"><h3>{escape(name)}</h3><p>{escape(about)}</p>'
    return f"{head}{_fields(schema, schemas)}</section>"


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    resolved = _resolved(schema, schemas)
    required = set(resolved.get("required", ()))
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{_kind(kind)}</td>"
        f"<td>{'required' if name in required else escape(_default(kind))}</td></tr>"
        for name, kind in resolved.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else "<p>No fields: send <code>{}</code>.</p>"


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def _kind(schema: dict[str, Any]) -> str:
    """What a value is, as HTML: types that have fields of their own are links."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("contentEncoding") == "base64":
        return "base64"
    return escape(str(schema.get("format") or schema.get("type") or "any"))


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    return "" if value is None else f"default {json.dumps(value)}"
