"""The logs in a node's data directory, opened for reading only: the node may be running."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from omnirelay.cli.exits import nothing, usage
from omnirelay.cli.options import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from omnirelay.log.sqlite import SqliteLog

T = TypeVar("T")

DEFAULT_DATA = Path("omnirelay-data")
DATABASE = "leases.db"


def namespaces_in(data: Path) -> list[str]:
    """Names of the logs below a directory. Raises Stop when there is none."""
    names = sorted(path.parent.name for path in data.glob(f"*/{DATABASE}")) if data.is_dir() else []
    if not names:
        # A log's own directory, or its file.
        deeper = data / DATABASE if data.is_dir() else data
        place = data.absolute().parent if data.is_dir() else data.absolute().parent.parent
        where = place if deeper.name == DATABASE and deeper.exists() else "DIR"
        raise nothing(f"there is no log in {data}: a node's directory holds NAMESPACE/{DATABASE}; say --data {where}")
    return names


def check_can_be_directory(path: Path) -> None:
    """Raises Stop when a file is in the way, before anything else is done."""
    for each in (path, *path.parents):
        if each.is_dir():
            return
        if each.exists():
            raise usage(f"{path} cannot be a directory: {each} is a file; say another place")


def chosen(data: Path, namespace: str | None) -> list[str]:
    """The namespace that was asked for, or all there are."""
    names = namespaces_in(data)
    if namespace is None:
        return names
    if namespace not in names:
        raise nothing(f"there is no log of {namespace!r} in {data}; it has {', '.join(names)}")
    return [namespace]


def only(data: Path, namespace: str | None) -> str:
    """The one namespace that a command works on: the only one, or the one nodes have by default."""
    names = chosen(data, namespace)
    if len(names) == 1:
        return names[0]
    if DEFAULT_NAMESPACE in names:
        return DEFAULT_NAMESPACE
    raise usage(f"{data} has several logs, say --namespace: {', '.join(names)}")


def with_log(data: Path, namespace: str, work: Callable[[SqliteLog], Awaitable[T]]) -> T:
    """Open a log for reading, do the work, close it."""

    import asyncio

    async def run() -> T:
        from omnirelay.log.sqlite import SqliteLog

        log = SqliteLog.open(data, namespace, read_only=True)
        try:
            return await work(log)
        finally:
            await log.close()

    return asyncio.run(run())
