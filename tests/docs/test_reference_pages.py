"""The reference page and the protocol page against the code they describe."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnirelay.core.options import QueueOptions
from omnirelay.wire.requests import REQUESTS
from tests.integration.nodes import running_node

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/reference/lease.md").read_text()
PROTOCOL = (ROOT / "docs/protocol.md").read_text()


@pytest.mark.parametrize("verb", [*REQUESTS, "stream"])
def test_the_reference_lists_every_verb_with_its_fields(verb: str) -> None:
    rows = [line for line in REFERENCE.splitlines() if line.startswith("|") and f"`{verb}`" in line.split("|")[1]]
    assert rows, f"{verb} has no row"
    if verb in ("heartbeat", "complete", "fail", "release", "enqueue", "resume", "watch", "stream"):
        return  # Their shared fields stand above the table or in a row of their own.
    fields = {field.encode_name for field in msgspec.structs.fields(REQUESTS[verb])} - {"metadata", "acks", "peerId"}
    assert {name for name in fields if f"`{name}" in rows[0]} == fields


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(QueueOptions)])
def test_the_reference_lists_every_option(name: str) -> None:
    assert f"`{name.removesuffix('_ms')}`" in REFERENCE


def test_the_reference_lists_every_code_that_the_package_raises() -> None:
    raised: set[str] = set()
    for path in (ROOT / "src/omnirelay").rglob("*.py"):
        if "/client/" in str(path) or "/worker/" in str(path) or "/cli/" in str(path):
            continue
        raised |= set(re.findall(r'"((?:error\.|resourcelease\.)[a-z_.]+)"', path.read_text()))
    missing = {code for code in raised if f"`{code}`" not in REFERENCE and not code.endswith(".invalid")}
    # What only the tools of operators answer with, or those who embed see.
    assert missing == {
        "error.log.locked",
        "error.log.schema_too_new",
        "error.log.schema_too_old",
        "error.log.snapshot_failed",
        "error.log.unknown_event",
        "error.lakehouse.keeps_too_little",
        "error.lakehouse.overtaken",
        "error.lakehouse.nothing_to_rebuild",
        "error.lakehouse.progress",
        "error.lakehouse.spark_failed",
        "error.lakehouse.spark_unusable",
        "error.lakehouse.tables_missing",
        "error.segments.bucket_missing",
        "error.segments.damaged",
        "error.segments.fenced",
        "error.segments.none",
        "error.segments.object_missing",
        "error.segments.store_unusable",
        "error.resourcelease.replication.event_required",
        "error.resourcelease.replication.shard_id_missing",
    }


async def test_the_clients_of_the_protocol_page_work() -> None:
    [packed, worker] = re.findall(r"^```python\n(.*?)^```", PROTOCOL, re.MULTILINE | re.DOTALL)
    async with running_node() as node:
        names: dict[str, Any] = {"URL": node.url}
        await asyncio.to_thread(exec, compile(packed, "docs/protocol.md", "exec"), names)
        await asyncio.to_thread(exec, compile(worker, "docs/protocol.md", "exec"), names)
        assert names["done"] == {"success": True}
        names["node"].close()
