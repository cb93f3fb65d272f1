"""`config show|validate|schema`."""

from __future__ import annotations

import os

import typer

from omnirelay.cli.commands import TOOLS, command, new_group
from omnirelay.cli.exits import usage
from omnirelay.cli.options import ConfigFile, Format, Output
from omnirelay.cli.printing import print_answer, print_json, show, table


def add_to(app: typer.Typer) -> None:
    group = new_group("Look at the configuration of a node.")
    command(group, "show", _SHOW)(show_config)
    command(group, "validate", _VALIDATE)(validate)
    command(group, "schema", _SCHEMA)(schema)
    app.add_typer(group, name="config", rich_help_panel=TOOLS)


_SHOW = """
    omnirelay config show
    omnirelay config show --config omnirelay.toml -o json
    OMNIRELAY_NODE__PORT=7171 omnirelay config show
"""


def show_config(
    config: ConfigFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Show every key with its value and where that came from: a default, the file, or the environment."""
    from omnirelay.node.loading import load, show_rows

    rows = show_rows(load(config, os.environ, {}))
    answer = [{"key": key, "value": value, "origin": origin} for key, value, origin in rows]
    print_answer(output, answer, answer, lambda: table(["key", "value", "origin"], rows))


_VALIDATE = """
    omnirelay config validate --config omnirelay.toml
"""


def validate(config: ConfigFile = None) -> None:
    """Check a configuration and name everything that is wrong with it. Ends with 2 if anything is."""
    from omnirelay.node.loading import load

    if config is None:
        raise usage("say which configuration: --config FILE, or OMNIRELAY_CONFIG")
    settings = load(config, os.environ, {}).settings
    show(f"{config} is right: {', '.join(shard.namespace for shard in settings.shards)} on port {settings.node.port}")


_SCHEMA = """
    omnirelay config schema > omnirelay.schema.json
"""


def schema() -> None:
    """Print the JSON Schema of a configuration file, for editors."""
    from omnirelay.node.settings_schema import json_schema

    print_json(json_schema())
