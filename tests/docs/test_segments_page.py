"""The page about segments: its configuration is loaded, its table is the schema, and its program runs."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from omnirelay.node.loading import load
from omnirelay.segments import errors
from omnirelay.segments.schema import column_rows
from tests.integration.nodes import Http
from tests.integration.test_replication_node import ITEM, caught_up, node_with
from tests.patience import PATIENCE_S

DOCS = Path(__file__).parents[2] / "docs" / "replication"
PAGE = (DOCS / "segments.md").read_text()


def code(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def run_program(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code("python")]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_the_page_has_the_columns_that_segments_have() -> None:
    rows = re.findall(r"^\| `\w+` \| .*$", PAGE, re.MULTILINE)
    assert rows == column_rows()


def test_the_page_lists_every_code() -> None:
    source = Path(errors.__file__).parent
    codes = {code for path in source.glob("*.py") for code in re.findall(r'"(error\.segments\.\w+)"', path.read_text())}
    assert codes == set(re.findall(r"^\| `(error\.segments\.\w+)` \|", PAGE, re.MULTILINE))


async def test_what_the_page_configures_is_what_its_program_reads(tmp_path: Path) -> None:
    config = tmp_path / "omnirelay.toml"
    config.write_text(code("toml"))
    [sink] = load(config, {}, {}).settings.sinks
    quick = msgspec.structs.replace(sink.follow, linger_ms=0)
    async with node_with(msgspec.structs.replace(sink, follow=quick), data=tmp_path) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 3})
        await caught_up(node)
    done = await asyncio.to_thread(run_program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "chain unbroken" in done.stdout
    assert "rows as Arrow" in done.stdout
    assert "Enqueue" in done.stdout


def test_the_settings_of_the_page_of_sinks_load(tmp_path: Path) -> None:
    page = (DOCS / "sinks.md").read_text()
    [snippet] = re.findall(r"^## `objects`\n\n```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    config = tmp_path / "omnirelay.toml"
    config.write_text(snippet)
    [sink] = load(config, {}, {}).settings.sinks
    assert (sink.url, sink.format, sink.retention_ms) == ("s3://lake/leases", "parquet", 90 * 86_400_000)
    assert sink.options["region"] == "eu-central-1"
    assert (sink.follow.batch_events, sink.follow.linger_ms) == (50_000, 5_000)
    assert sink.follow.required
    for value in ("`batch_events = 50000`", '`batch_bytes = "32MiB"`', '`linger = "5s"`', '`timeout = "2m"`'):
        assert value in page
    assert (sink.follow.batch_bytes, sink.follow.timeout_ms) == (32 * 1024 * 1024, 120_000)
