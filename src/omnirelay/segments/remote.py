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


_ASKED_THE_MACHINE: Final = (
    "/latest/api/token",
    "/latest/meta-data/",
    "/computeMetadata/",
    "/metadata/identity/",
)
"""Where obstore looks for credentials when nobody has said any: services of a machine in a cloud."""

_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the options access_key_id and secret_access_key",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (a file), or the option service_account",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the options account_name and account_key",
}


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

    async def folders(self, prefix: str) -> Sequence[str]:
        call = obstore.list_with_delimiter_async(self._store, prefix.strip("/"))
        found = await self._mapped(call)
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])

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
            raise Unavailable(f"{self._address}: {self._words_for(error)}") from None

    def _words_for(self, error: exceptions.BaseError) -> str:
        words = _first_line(error)
        if not any(place in words for place in _ASKED_THE_MACHINE):
            return words
        # It may be the role of a machine whose service does not answer for a while, so it is tried again.
        scheme = self._address.partition("://")[0]
        return (
            "there are no credentials, and this machine has none to give; set"
            f" {_CREDENTIALS.get(scheme, _CREDENTIALS['az'])} ({words})"
        )


class _Conflict(OmniRelayError):
    """The object is there already, or has another version. Never leaves this module."""


async def _collected(listing: Any) -> list[Any]:
    return list(await listing.collect_async())


def _first_line(error: BaseException) -> str:
    # What follows is the debug form of the same, which may show headers.
    return str(error).splitlines()[0]


def _without_secrets(address: str) -> str:
    """The address without password and query. Azure has the container where others have a user."""
    parts = urlsplit(address)
    container = f"{parts.username}@" if parts.scheme in ("az", "abfs") and parts.username else ""
    return f"{parts.scheme}://{container}{parts.hostname or ''}{parts.path}"


def remote_store(address: str, options: dict[str, Any]) -> RemoteObjectStore:
    """The store at an address. Raises SegmentStoreUnusable for options that cannot be."""
    shown = _without_secrets(address)
    connection: Any = {name: value for name, value in options.items() if name in _CONNECTION}
    own: dict[str, Any] = {name: value for name, value in options.items() if name not in _CONNECTION}
    for name, value in own.items():
        if not isinstance(value, str | bool | int):
            raise SegmentStoreUnusable(f"the option {name} of {shown} must be text", field=f"options.{name}")
    try:
        retries: Any = _RETRIES
        store = from_url(address, client_options=connection or None, retry_config=retries, **own)
    except Exception as error:
        reason = _first_line(error).replace(address, shown)
        raise SegmentStoreUnusable(f"{shown} cannot be used: {reason}", field="options") from None
    assert isinstance(store, S3Store | GCSStore | AzureStore)
    return RemoteObjectStore(store, shown)
