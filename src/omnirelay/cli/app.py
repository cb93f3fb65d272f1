"""Every command, and `--version`."""

from __future__ import annotations

from typing import Annotated

import typer

from omnirelay._version import __version__
from omnirelay.cli import (
    benching,
    configuring,
    dead_letters,
    enqueueing,
    handling,
    lakehouse,
    leasing,
    log_backups,
    log_checks,
    log_exports,
    log_recoveries,
    log_restores,
    logs,
    looking,
    moving,
    replicating,
    requesting,
    serving,
    working,
)
from omnirelay.cli.commands import LOOKING, new_group

_HELP = """
Durable leases of work over one ordered log.

Most commands call a node: --url or OMNIRELAY_URL says where it is, --namespace or OMNIRELAY_NAMESPACE which shard.
`omnirelay COMMAND --help` has examples.

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not reachable, 4 not found or nothing there,
5 refused (identity, fence, precondition), 6 damaged data, 130 interrupted (by SIGTERM: 143).
"""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"omnirelay {__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options of the program itself."""


def _build() -> typer.Typer:
    app = new_group(_HELP, sections=True)
    app.callback(
        help=_HELP, epilog="\b\nExamples:\n  omnirelay dev\n  omnirelay enqueue table sales.orders\n  omnirelay stats"
    )(_main)
    for module in (serving, working, enqueueing, leasing, handling, moving, looking):
        module.add_to(app)
    dead_letters.add_to(app)
    replicating.add_to(app)
    log = new_group("Read the log of a shard, check it, export it, back it up, restore it, recover it.")
    logs.add_to(log)
    log_checks.add_to(log)
    log_exports.add_to(log)
    log_backups.add_to(log)
    log_restores.add_to(log)
    log_recoveries.add_to(log)
    app.add_typer(log, name="log", rich_help_panel=LOOKING)
    for tool in (lakehouse, benching, requesting, configuring):
        tool.add_to(app)
    return app


app = _build()
