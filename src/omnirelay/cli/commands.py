"""Registering commands: every one has examples, a place in the help, and ends as `exits` says."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup

from omnirelay.cli.exits import FAILED, INTERRUPTED, Stop, exit_of_error
from omnirelay.cli.stopping import Interrupted
from omnirelay.errors import OmniRelayError

F = TypeVar("F", bound=Callable[..., None])

RUNNING = "Run a node"
WORKING = "Put work in and take it out"
HANDLING = "Handle items and the queue"
LOOKING = "Look"
TOOLS = "Tools"
PANELS = (RUNNING, WORKING, HANDLING, LOOKING, TOOLS)


class Sections(TyperGroup):
    """A group whose help lists its commands under headings, in the order in which they are used."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                rows.setdefault(panel if isinstance(panel, str) else "Commands", []).append(
                    (name, command.get_short_help_str(limit=formatter.width - 20))
                )
        for panel in [*PANELS, "Commands"]:
            if panel in rows:
                with formatter.section(panel):
                    formatter.write_dl(rows[panel])


def new_group(help_text: str | None, *, sections: bool = False) -> typer.Typer:
    """A group of commands. Plain help: it needs no rich, so it is there at once, and examples stay as written."""
    return typer.Typer(
        help=help_text,
        cls=Sections if sections else None,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=sections,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(app: typer.Typer, name: str, examples: str, panel: str | None = None) -> Callable[[F], F]:
    """Register a function as the command `name`. `examples` has one call a line."""
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    epilog = f"\b\nExamples:\n{lines}"

    def register(function: F) -> F:
        app.command(name, epilog=epilog, rich_help_panel=panel, no_args_is_help=False)(guarded(function))
        return function

    return register


def guarded(function: F) -> F:
    """Run a command so that whatever ends it becomes one line on stderr and an exit code, never a traceback."""

    # Read once, here: typer would evaluate every annotation of every command four times at each start.
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    parameters = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            function(*arguments, **options)
            sys.stdout.flush()
        except Stop as stop:
            complain(stop.message, stop.code)
            raise typer.Exit(stop.exit_code) from None
        except OmniRelayError as error:
            complain(error.message, error.code)
            raise typer.Exit(exit_of_error(error)) from None
        except KeyboardInterrupt as interrupted:
            raise typer.Exit(interrupted.exit_code if isinstance(interrupted, Interrupted) else INTERRUPTED) from None
        except BrokenPipeError:
            close_stdout()
            raise typer.Exit(FAILED) from None

    run.__annotations__ = hints
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def complain(message: str, code: str | None = None) -> None:
    if message:
        head, *more = message.split("\n")
        if more:  # Several problems: the code once, then all of them.
            head = "\n".join(["", *(f"  {line}" for line in [head, *more])])
            print(f"error{'' if code is None else f' ({code})'}:{head}", file=sys.stderr)
        else:
            print(f"error: {head}{'' if code is None else f' ({code})'}", file=sys.stderr)


def close_stdout() -> None:
    """Nobody reads it any more. Python would complain about that when it flushes at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
