"""Places where a log can lie besides a node's directory: backups and segments, on a disk or in an object store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    """Find out what is there, of one namespace or of all. Raises Stop when there is nothing."""
    from omnirelay.segments.connecting import connect
    from omnirelay.segments.finding import logs_at

    store = await connect(address, options, writable=False)
    kinds = await logs_at(store, namespace)
    if not is_path(address):
        kinds = {shard: kind for shard, kind in kinds.items() if kind != "files"}
    if not kinds:
        of = "" if namespace is None else f" of {namespace!r}"
        raise nothing(
            f"there is no log{of} in {store.address}: a backup has NAMESPACE/leases.db or NAMESPACE/backup.json,"
            " segments have NAMESPACE/manifest; say the address above NAMESPACE"
        )
    return Place(store, kinds)
