"""The tutorial and the how-to pages: their code runs, and does what the text says."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omnirelay import Client, Handlers, ItemSpec, Worker
from omnirelay.core.options import QueueOptions
from tests.integration.nodes import running_node

ROOT = Path(__file__).parents[2]
PAGES = ["docs/tutorial.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/how-to").glob("*.md")))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def module_of(page: str) -> dict[str, Any]:
    """All Python of a page as one module."""
    names: dict[str, Any] = {"__name__": "guide"}
    for block in BLOCK.findall((ROOT / page).read_text()):
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_is_whole(page: str) -> None:
    assert module_of(page)


@pytest.mark.parametrize("page", PAGES)
def test_links_of_the_page_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


async def event_about(client: Client, event_type: str, resource_type: str | None = None) -> dict[str, Any]:
    """The first event of a type in the log, waited for."""
    async with aclosing(client.watch(1, types=[event_type])) as events:
        async for event in events:
            if resource_type is None or event["payload"]["resourceType"] == resource_type:
                return event
    raise AssertionError("the stream ended")


async def test_the_tutorial_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    names = module_of("docs/tutorial.md")
    handlers: Handlers = names["handlers"]
    async with running_node(options=QueueOptions(max_delivery_attempts=3)) as node, Client(node.url) as client:
        worker = Worker(handlers, url=node.url)
        running = asyncio.create_task(worker.run())
        first = await names["enqueue_an_order"](node.url)
        ids = [
            (await client.enqueue("table", "sales.items")).sequence_id,
            (await client.enqueue("view", "v", attributes={"source": "gone"})).sequence_id,
            (await client.enqueue("view", "w")).sequence_id,
            (await client.enqueue("shard", "s")).sequence_id,
            (await client.enqueue("report", "r")).sequence_id,
        ]
        table, gone, view, shard, report = [await client.get(each, wait_ms=20_000) for each in ids]
        assert table.result == b'{"compacted":"sales.items"}'
        assert (gone.state, gone.last_error and gone.last_error.code) == ("dead", "view.no_source")
        assert (view.state, view.attempt) == ("completed", 2)
        assert shard.progress is not None
        assert (shard.state, shard.progress.data) == ("completed", 3)
        assert report.state == "completed"
        assert (await client.get(first, wait_ms=20_000)).state == "completed"
        await event_about(client, "Enqueue", "order.ship")
        stolen = ItemSpec(resource_type="order.pay", resource_id="order-2", attributes={"card": "stolen"})
        [theft] = await client.enqueue_many([stolen])
        await client.get(theft.sequence_id, wait_ms=20_000)
        undo = await event_about(client, "Enqueue", "order-undo.reserve")
        await client.get(undo["sequenceId"], wait_ms=20_000)
        worker.stop()
        await running
    assert "give back what order-2 had reserved" in capsys.readouterr().out


def test_the_tests_of_the_testing_page_pass(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs/how-to/testing.md").read_text())
    (tmp_path / "test_page.py").write_text("\n".join(blocks))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


async def test_a_nightly_job_is_enqueued_once() -> None:
    names = module_of("docs/how-to/idempotency.md")
    async with running_node() as node, Client(node.url) as client:
        assert await names["nightly"](client, "2026-01-31")
        assert not await names["nightly"](client, "2026-01-31")
        assert await names["nightly"](client, "2026-02-01")


async def test_a_cancelled_export_says_why_it_stops(capsys: pytest.CaptureFixture[str]) -> None:
    names = module_of("docs/how-to/cancellation.md")
    asleep = asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()  # A handler that has not begun has nothing to say when it is cancelled.
        await asyncio.sleep(seconds)

    names["asyncio"] = SimpleNamespace(sleep=sleep, CancelledError=asyncio.CancelledError)
    async with running_node() as node, Client(node.url) as client:
        worker = Worker(names["handlers"], url=node.url)
        running = asyncio.create_task(worker.run())
        item = await client.enqueue("export", "e")
        await asleep.wait()
        await client.cancel(item.sequence_id)
        assert (await client.get(item.sequence_id, wait_ms=20_000)).state == "cancelled"
        worker.stop()
        await running
    assert "export of e stopped: cancelled" in capsys.readouterr().out
