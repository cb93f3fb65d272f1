"""The page on configuration against the keys that a node knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omnirelay.node.keys import NOT_YET, SECTIONS
from omnirelay.node.loading import load
from omnirelay.node.toml_text import toml_value

PAGE = (Path(__file__).parents[2] / "docs/reference/configuration.md").read_text()


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_lists_exactly_the_keys_there_are(section: str) -> None:
    found = re.search(rf"^### `\[{section}\]`$(.*?)(?=^### )", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    rows = [line for line in found[1].splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{key.name}` | `{toml_value(key.written(key.default))}` | {key.description} |"
        for key in SECTIONS[section].values()
    ]


def test_the_page_names_what_later_versions_have() -> None:
    assert all(f"`[{name}]`" in PAGE for name in NOT_YET)


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "node.toml"
    path.write_text(example)
    settings = load(path, {}, {}).settings
    assert [shard.name for shard in settings.shards] == ["compaction", "cdc"]
    assert [sink.name for sink in settings.sinks] == ["archive"]


def test_the_variables_mean_what_the_page_says() -> None:
    named = dict(re.findall(r"`(OMNIRELAY_[A-Z]+__[A-Z_]+)=([^`]+)`", PAGE))
    assert len(named) == 3
    settings = load(None, named, {}).settings
    assert settings.node.port == 7171
    assert settings.log.retention_ms == 3 * 86_400_000
    [shard] = [shard for shard in settings.shards if shard.name == "cdc"]
    assert shard.options.lease_duration_ms == 120_000
