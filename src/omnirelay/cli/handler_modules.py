"""Finding the handlers of `omnirelay work`: what can be wrong with `module:name` is said in a line."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import PurePath
from traceback import extract_tb
from types import ModuleType

from omnirelay.cli.exits import FAILED, Stop, usage
from omnirelay.worker.handlers import Handlers


def find_handlers(registry: str) -> Handlers:
    """The registry that `module:name` stands for; the working directory counts as a place for modules."""
    module_name, _, name = registry.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        raise usage(f"say a module, not a file: {_module_of(module_name)}:{name or 'handlers'} for instance")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise usage(f"say where the handlers are as module:name, not {registry!r}")
    sys.path.insert(0, "")
    module = _imported(module_name)
    found = getattr(module, name, None)
    if isinstance(found, Handlers):
        return found
    if found is not None:
        raise usage(f"{registry} is no Handlers but of type {type(found).__name__}{_those_of(module)}")
    raise usage(f"{module_name} has no Handlers called {name!r}{_those_of(module)}")


def _module_of(file: str) -> str:
    parts = PurePath(file.removesuffix(".py")).parts
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else "jobs"


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from None  # Something that the module itself imports.
        raise usage(f"there is no module {name!r} here or on the path") from None
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from None


def _broken(name: str, error: BaseException) -> Stop:
    """The line of the module at which its import failed. What our own calls are does not help its author."""
    lines = [each for each in extract_tb(error.__traceback__) if not _is_of_import(each.filename)]
    where = f" ({lines[0].filename}, line {lines[0].lineno}: {lines[0].line})" if lines else ""
    return Stop(FAILED, f"{name} cannot be imported: {type(error).__name__}: {error}{where}")


def _is_of_import(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen importlib") or file == sys.modules["importlib"].__file__


def _those_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Handlers)]
    return f"; there is {', '.join(names)}" if names else ""
