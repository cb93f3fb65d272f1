"""Places where a log can lie besides a node's directory: backups and segments, on a disk or in an object store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirelay.cli.directories import DATABASE
from omnirelay.cli.exits import nothing, usage

if TYPE_CHECKING:
    from omnirelay.segments.finding import Kind
    from omnirelay.segments.store import ObjectStore

StoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="Of the object store, such as endpoint=URL or region=NAME; may be repeated. Secrets are better off in the"
        " environment, as AWS_SECRET_ACCESS_KEY and the like.",
        metavar="KEY=VALUE",
    ),
]
Address = str
"""A path, `file:///…`, `s3://bucket/prefix`, `gs://…`, `az://…` or `abfs://…`."""


def read_options(pairs: list[str] | None) -> dict[str, Any]:
    options = {}
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise usage(f"--option wants KEY=VALUE, got {pair!r}")
        options[name] = value
    return options


def is_path(address: Address) -> bool:
    return "://" not in address or address.startswith("file://")


class Place:
    """An address, and what of which shard lies there."""

    def __init__(self, store: ObjectStore, kinds: dict[str, Kind]) -> None:
        self.store = store
        self.kinds = kinds

    @asynccontextmanager
    async def files_of(self, shard: str, move: Callable[[int, int], None] | None = None) -> AsyncIterator[Path]:
        """A directory that holds the files of a backup as `DIR/SHARD`; fetched first when they lie elsewhere."""
        import tempfile

        from omnirelay.segments.backups import fetch_backup

        if self.kinds[shard] == "files":
            yield Path(self.store.address)
            return
        with tempfile.TemporaryDirectory(prefix="omnirelay-backup-") as name:
            await fetch_backup(self.store, shard, Path(name) / shard, move)
            yield Path(name)


async def look_at(address: Address, options: dict[str, Any], namespace: str | None) -> Place:
    """Find out what is there, of one namespace or of all. Raises Stop when there is nothing.

    A shard's own place, one level too low, is as good: its last part is the namespace. So is its file leases.db.
    """
    from omnirelay.segments.connecting import connect

    if is_path(address):
        address = _directory_of(address)
    store = await connect(address, options, writable=False)
    kinds = await _kinds_at(store, address, namespace)
    if not kinds and (above := _above(address)) is not None:
        from omnirelay.segments.finding import is_one_log

        parent, name = above
        if namespace in (None, name) and await is_one_log(store):
            store = await connect(parent, options, writable=False)
            kinds = await _kinds_at(store, parent, name)
    if not kinds:
        of = "" if namespace is None else f" of {namespace!r}"
        raise nothing(
            f"there is no log{of} in {store.address}: a backup has NAMESPACE/leases.db or NAMESPACE/backup.json,"
            f" segments have NAMESPACE/manifest; say {_address_above_log(address) or 'the address above NAMESPACE'}"
        )
    return Place(store, kinds)


async def _kinds_at(store: ObjectStore, address: Address, namespace: str | None) -> dict[str, Kind]:
    from omnirelay.segments.finding import logs_at

    kinds = await logs_at(store, namespace)
    return {shard: kind for shard, kind in kinds.items() if kind != "files" or is_path(address)}


def _directory_of(address: Address) -> Address:
    from omnirelay.segments.connecting import path_of

    path = path_of(address).absolute()
    return str(path.parent if path.name == DATABASE and path.is_file() else path)


def _above(address: Address) -> tuple[Address, str] | None:
    """The address above this one, and the last part of this one; None at the root of a disk or a bucket."""
    if is_path(address):
        path = Path(os.path.abspath(address))  # A link is another name, and the name is the shard's.
        return (str(path.parent), path.name) if path.name else None
    parent, _, name = address.rstrip("/").rpartition("/")
    return None if parent.endswith("/") or not name else (parent, name)


def _address_above_log(address: Address) -> Address | None:
    """For who went too deep: the directory in which a log lies that this one is a part of."""
    if not is_path(address):
        return None
    for each in (path := Path(address), *path.parents):
        if any((each / part).exists() for part in (DATABASE, "backup.json", "manifest")):
            return str(each.parent)
    return None
