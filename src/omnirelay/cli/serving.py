"""`dev` and `serve`: a node in this process."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnirelay.cli.commands import RUNNING, command
from omnirelay.cli.exits import Stop, usage
from omnirelay.cli.options import DEFAULT_NAMESPACE, DEFAULT_URL, ConfigFile
from omnirelay.cli.printing import fields, note, show, stacked

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnirelay.node.node import Node
    from omnirelay.node.settings import NodeSettings

Port = Annotated[int | None, typer.Option("--port", help="HTTP port; 0 takes a free one. [7070]", min=0, max=65535)]


def add_to(app: typer.Typer) -> None:
    command(app, "dev", _DEV, RUNNING)(dev)
    command(app, "serve", _SERVE, RUNNING)(serve)


_DEV = """
    omnirelay dev
    omnirelay dev --ephemeral --port 0
    omnirelay dev --data /tmp/relay --namespace tablelease --namespace filelease
"""


def dev(
    data: Annotated[
        Path | None, typer.Option("--data", help="Directory of the data. [omnirelay-data]", metavar="DIR")
    ] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep everything in memory only.")] = False,
    port: Port = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="A shard to serve; may be repeated. [resourcelease]", metavar="NS"),
    ] = None,
) -> None:
    """Run a node on this machine to try things out. Not for production: no authentication, loopback only."""
    from omnirelay.node.loading import load

    if data is not None and ephemeral:
        raise usage("--data and --ephemeral exclude each other")
    flags: dict[str, object] = {
        "node.host": "127.0.0.1",
        "node.port": port,
        "node.data": data,
        "log.url": "memory:" if ephemeral else None,
    }
    for namespace in namespaces or []:
        flags[f"shards.{namespace}.namespace"] = namespace
    settings = load(None, os.environ, flags).settings
    _run(settings, _introduce, as_json=bool(settings.telemetry.json_logs))


def _introduce(node: Node) -> None:
    namespaces = [component.namespace for component in node.components]
    options = "" if node.url == DEFAULT_URL else f" --url {node.url}"
    if DEFAULT_NAMESPACE not in namespaces:
        options += f" --namespace {shlex.quote(namespaces[0])}"
    data = "in memory: everything is lost at exit" if node.data is None else str(node.data.absolute())
    about = fields(
        [
            ("  url", node.url),
            ("  namespaces", ", ".join(namespaces)),
            ("  docs", f"{node.url}/docs"),
            ("  metrics", f"{node.url}/metrics"),
            ("  data", data),
        ]
    )
    show(
        stacked(
            "OmniRelay dev node is ready. Not for production: no authentication, loopback only.",
            about,
            "Try in another terminal:",
            f'  omnirelay enqueue table sales.orders --body \'{{"op":"compact"}}\'{options}',
            f"  omnirelay lease{options}",
            f"  omnirelay stats --watch{options}",
            "ctrl-C stops the node.",
        )
    )
    sys.stdout.flush()


_SERVE = """
    omnirelay serve --config omnirelay.toml
    omnirelay serve --config omnirelay.toml --port 7171 --data /var/lib/omnirelay
    OMNIRELAY_NODE__PORT=7171 omnirelay serve
"""


def serve(
    config: ConfigFile = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on. [127.0.0.1]", metavar="HOST")
    ] = None,
    port: Port = None,
    data: Annotated[Path | None, typer.Option("--data", help="Directory of the data.", metavar="DIR")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines although nobody has to prove who they are.")
    ] = False,
) -> None:
    """Run a node as a configuration says. Flags go before the environment, and that before the file."""
    from omnirelay.node.loading import load
    from omnirelay.node.settings import is_loopback

    flags: dict[str, object] = {"node.host": host, "node.port": port, "node.data": data}
    settings = load(config, os.environ, flags).settings
    if not is_loopback(settings.node.host):
        if not insecure:
            raise Stop(
                2,
                f"this version has no authentication, so it listens on loopback only and not on {settings.node.host};"
                " put a proxy that authenticates in front, or say --insecure to serve everybody who gets there",
                "node.insecure",
            )
        note(f"warning: everybody who reaches {settings.node.host} may do everything (--insecure)")
    as_json = settings.telemetry.wants_json(stderr_is_terminal=sys.stderr.isatty())
    _run(settings, _announce, as_json=as_json)


def _announce(node: Node) -> None:
    namespaces = ", ".join(component.namespace for component in node.components)
    data = "in memory" if node.data is None else str(node.data.absolute())
    show(f"OmniRelay serves {namespaces} at {node.url}, data {data}")
    sys.stdout.flush()


def _run(settings: NodeSettings, on_ready: Callable[[Node], None], *, as_json: bool) -> None:
    from omnirelay.errors import LogDamaged, LogRegressed
    from omnirelay.node.logs import set_up_logs
    from omnirelay.node.running import run_node

    set_up_logs(settings.node.log_level, as_json=as_json)
    try:
        run_node(settings, on_ready)
    except (LogDamaged, LogRegressed) as error:
        data = shlex.quote(str(settings.node.data))
        error.message += (
            f" (`omnirelay log verify --data {data}` says more, `omnirelay log recover --data {data}` what can be kept)"
        )
        raise
