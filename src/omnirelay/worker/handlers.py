"""Handlers by resource type, as plain functions.

    handlers = Handlers()

    @handlers.handle("table")
    async def compact(job: Job) -> dict[str, int]:
        return {"files": await compact_table(job.resource_id)}

A registry connects nothing and starts nothing: importing a module of handlers has no effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from omnirelay.client.arguments import as_delay
from omnirelay.errors import InvalidArgument
from omnirelay.worker.job import Job

FailMode = Literal["retry", "release", "dead"]
Handler: TypeAlias = Callable[[Job], Any] | Callable[[Job], Awaitable[Any]]
H = TypeVar("H", bound=Callable[[Any], Any])


class Retry(Exception):
    """Raise it to have the item tried again, after `delay_ms` or the shard's own delay. Burns the attempt."""

    def __init__(self, reason: str = "", *, delay_ms: int | None = None, error_code: str | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = as_delay("delay_ms", delay_ms)
        self.error_code = error_code


class Release(Exception):
    """Raise it to hand the item back unharmed: not now, not here. Does not burn the attempt."""

    def __init__(self, reason: str = "", *, delay_ms: int | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = as_delay("delay_ms", delay_ms)


class GiveUp(Exception):
    """Raise it when trying again is of no use: the item becomes a dead letter."""

    def __init__(self, reason: str = "", *, error_code: str | None = None) -> None:
        super().__init__(reason)
        self.error_code = error_code


class Registered(msgspec.Struct, frozen=True):
    pattern: str
    call: Callable[[Job], Any]
    is_async: bool
    on_error: Mapping[type[BaseException], FailMode]


class Handlers:
    """Which function handles which resource type; patterns are globs, the first that fits is taken."""

    def __init__(self) -> None:
        self._registered: list[Registered] = []

    def handle(
        self, *patterns: str, on_error: Mapping[type[BaseException], FailMode] | None = None
    ) -> Callable[[H], H]:
        """Register a function. `on_error` says what an exception means: `retry` (the default), `release` or `dead`."""
        for pattern in patterns:
            if not isinstance(pattern, str) or not pattern:
                raise InvalidArgument(
                    f'name resource types, as in @handlers.handle("table"), not {pattern!r}', field="patterns"
                )
        if not patterns:
            raise InvalidArgument("name at least one resource type", field="patterns")
        _check_modes(on_error or {})

        def register(function: H) -> H:
            if not callable(function):
                raise InvalidArgument(f"a handler is a function, not {function!r}", field="function")
            if isgeneratorfunction(function) or isasyncgenfunction(function):
                raise InvalidArgument(
                    f"{function.__qualname__} is a generator: calling it would run nothing of it", field="function"
                )
            for pattern in patterns:
                self._registered.append(Registered(pattern, function, _is_async(function), dict(on_error or {})))
            return function

        return register

    @property
    def patterns(self) -> list[str]:
        return [each.pattern for each in self._registered]

    def find(self, resource_type: str) -> Registered | None:
        for each in self._registered:
            if fnmatchcase(resource_type, each.pattern):
                return each
        return None


def _check_modes(on_error: Mapping[Any, Any]) -> None:
    given: Any = on_error
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f'on_error says what each class of exception means, as in {{KeyError: "dead"}}, not {given!r}',
            field="on_error",
        )
    for kind, mode in on_error.items():
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise InvalidArgument(f"on_error is by class of exception, not by {kind!r}", field="on_error")
        if mode not in get_args(FailMode):
            modes = ", ".join(get_args(FailMode))
            raise InvalidArgument(f"on_error[{kind.__name__}] must be one of {modes}, not {mode!r}", field="on_error")


def _is_async(function: Any) -> bool:
    """Also of an object that is called like a function."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
