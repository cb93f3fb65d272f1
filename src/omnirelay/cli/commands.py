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

from omnirelay.cli.exits import CANNOT_WRITE, DONE, FAILED, INTERRUPTED, Stop, exit_of_error
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
        code = code_of(lambda: function(*arguments, **options))
        # Also after a command that failed: what it printed before may not fit where it goes either.
        unwritten = code_of(sys.stdout.flush)
        if code or unwritten:
            raise typer.Exit(code or unwritten)

    run.__annotations__ = hints
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def code_of(work: Callable[[], object]) -> int:
    """Do it, and say with which exit code it ended; what was wrong is on stderr then."""
    try:
        work()
    except Stop as stop:
        complain(stop.message, stop.code)
        return stop.exit_code
    except OmniRelayError as error:
        complain(error.message, error.code)
        return exit_of_error(error)
    except KeyboardInterrupt as interrupted:
        return interrupted.exit_code if isinstance(interrupted, Interrupted) else INTERRUPTED
    except BrokenPipeError:
        close_stdout()
        return FAILED
    except OSError as error:
        close_stdout()  # It may be what failed, and would fail again when Python flushes it at the end.
        where = "" if error.filename is None else f"{error.filename}: "
        what = "cannot write: " if error.errno in CANNOT_WRITE else ""
        complain(f"{what}{where}{error.strerror or error}")
        return FAILED
    return DONE


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
