"""Objects in a bucket, through obstore: S3 and what speaks its protocol, Google Cloud Storage, Azure."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store, from_url

from omnirelay.errors import OmniRelayError, Unavailable
from omnirelay.segments.errors import BucketMissing, ObjectMissing, SegmentStoreUnusable
from omnirelay.segments.store import StoredObject

T = TypeVar("T")

_CONNECTION: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "timeout",
        "user_agent",
    }
)
"""Options about the connection, which obstore takes apart from those of the store."""

# The follower behind a sink has a patience and a backoff of its own; trying for minutes in here would only hide why.
_RETRIES: Final = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}

_HOPELESS: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnknownConfigurationKeyError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
)


_NO_BUCKET: Final = "404 Not Found"
"""What an answer to a listing says then. A prefix without objects is an empty list."""


class RemoteObjectStore:
    """A bucket below a prefix."""

    def __init__(self, store: S3Store | GCSStore | AzureStore, address: str) -> None:
        self._store = store
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def list(self, prefix: str, after: str | None = None) -> Sequence[StoredObject]:
        listing = obstore.list(self._store, prefix.strip("/"), offset=after, chunk_size=1_000)
        found = [
            StoredObject(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000), meta["e_tag"])
            for meta in await self._mapped(_collected(listing))
        ]
        return sorted(found, key=lambda each: each.key)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._mapped(self._get(key, start, end), key)

    async def _get(self, key: str, start: int, end: int | None) -> bytes:
        if end is not None:
            return bytes(await obstore.get_range_async(self._store, key, start=start, end=end))
        options: Any = {"range": {"offset": start}} if start else None
        result = await obstore.get_async(self._store, key, options=options)
        return bytes(await result.bytes_async())

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        try:
            await self._mapped(obstore.put_async(self._store, key, data, mode="create", use_multipart=False), key)
        except _Conflict:
            return False
        except ObjectMissing:
            # Nothing else can be missing for a put.
            raise SegmentStoreUnusable(
                f"there is no bucket {self._address}, or it is not to be seen with these credentials"
            ) from None
        return True

    async def compare_and_swap(self, key: str, data: bytes, expected: str) -> str | None:
        put = obstore.put_async(self._store, key, data, mode={"e_tag": expected}, use_multipart=False)
        try:
            return (await self._mapped(put, key))["e_tag"]
        except _Conflict:
            return None

    async def delete(self, key: str) -> None:
        try:
            await self._mapped(obstore.delete_async(self._store, key), key)
        except ObjectMissing:
            return

    async def _mapped(self, call: Awaitable[T], key: str = "") -> T:
        """Every failure of the library in our own words; this is the only place that knows them."""
        try:
            return await call
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise _Conflict(key) from None
        except FileNotFoundError:
            # obstore raises the built-in one for an object, and for a bucket, that is not there.
            raise ObjectMissing(f"there is no {key} in {self._address}", key=key) from None
        except _HOPELESS as error:
            raise SegmentStoreUnusable(f"{self._address}: {_first_line(error)}") from None
        except exceptions.BaseError as error:
            if not key and _NO_BUCKET in _first_line(error):
                raise BucketMissing(f"there is no bucket {self._address}") from None
            raise Unavailable(f"{self._address}: {_first_line(error)}") from None


class _Conflict(OmniRelayError):
    """The object is there already, or has another version. Never leaves this module."""


async def _collected(listing: Any) -> list[Any]:
    return list(await listing.collect_async())


def _first_line(error: BaseException) -> str:
    # What follows is the debug form of the same, which may show headers.
    return str(error).splitlines()[0]


def remote_store(address: str, options: dict[str, Any]) -> RemoteObjectStore:
    """The store at an address. Raises SegmentStoreUnusable for options that cannot be."""
    parts = urlsplit(address)
    shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    connection: Any = {name: value for name, value in options.items() if name in _CONNECTION}
    own: dict[str, Any] = {name: value for name, value in options.items() if name not in _CONNECTION}
    for name, value in own.items():
        if not isinstance(value, str | bool | int):
            raise SegmentStoreUnusable(f"the option {name} of {shown} must be text", field=f"options.{name}")
    try:
        retries: Any = _RETRIES
        store = from_url(address, client_options=connection or None, retry_config=retries, **own)
    except Exception as error:
        raise SegmentStoreUnusable(f"{shown} cannot be used: {_first_line(error)}", field="options") from None
    assert isinstance(store, S3Store | GCSStore | AzureStore)
    return RemoteObjectStore(store, shown)
