"""From an address to a store.

store = await connect("s3://bucket/leases", {"endpoint": "https://…", "region": "eu-1"})
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from omnirelay.segments.errors import SegmentStoreUnusable
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.store import ObjectStore, prove_one_winner

SCHEMES: Final = ("file", "s3", "gs", "az", "abfs")


async def connect(address: str, options: Mapping[str, Any] | None = None, *, writable: bool = True) -> ObjectStore:
    """The store at an address: a path, `file:///…`, `s3://bucket/prefix`, `gs://…`, `az://…` or `abfs://…`.

    `options` go to obstore as they are: keys, `endpoint`, `region`, `allow_http`. With `writable` the store proves
    that a put has one winner; whoever only reads needs no right to write. Raises SegmentStoreUnusable, Unavailable.
    """
    store = _store_at(address, dict(options or {}))
    if writable:
        await prove_one_winner(store)
    return store


def _store_at(address: str, options: dict[str, Any]) -> ObjectStore:
    scheme = urlsplit(address).scheme if "://" in address else "file"
    if scheme not in SCHEMES:
        # An address may hold a password: only the scheme is repeated.
        raise SegmentStoreUnusable(
            f"there is no store for {scheme!r} addresses; use a path, or one of"
            f" {', '.join(f'{each}://' for each in SCHEMES)}",
            field="url",
        )
    if scheme == "file":
        if options:
            raise SegmentStoreUnusable(f"a directory takes no options, got {', '.join(options)}", field="options")
        return LocalObjectStore(path_of(address))
    try:
        from omnirelay.segments.remote import remote_store
    except ImportError as error:
        raise SegmentStoreUnusable(
            f"{scheme}:// needs a library that is not installed ({error.name}): pip install 'omnirelay[segments]'"
        ) from None
    return remote_store(address, options)


def path_of(address: str) -> Path:
    """The directory that a path or a `file:///…` address means. Raises SegmentStoreUnusable."""
    if "://" not in address:
        return Path(address)
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise SegmentStoreUnusable(f"{address!r} is no address of a directory; write file:///and/its/path", field="url")
    return Path(unquote(parts.path))
