"""`ObjectStore`: the few things that segments ask of a file system or a bucket.

Everything rests on one promise: of several who put the same new key, exactly one is told that it won. Some servers that
speak S3 pass over the condition and tell everybody so; `prove_one_winner` tries it out and refuses such a store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from omnirelay.errors import OmniRelayError
from omnirelay.segments.errors import ObjectMissing, SegmentStoreUnusable

_CONTENDERS = 8


class StoredObject(msgspec.Struct, frozen=True):
    """An object as a listing shows it."""

    key: str
    size: int
    modified_ms: int
    version: str | None = None
    """What `compare_and_swap` compares; None where the store has nothing of the kind."""


class ObjectStore(Protocol):
    """Objects by key. Keys are relative to the address. Every method may raise Unavailable: then try again.

    What a put that returned has stored survives a power cut. One that raised may have stored it or not.
    """

    @property
    def address(self) -> str: ...

    async def list(self, prefix: str, after: str | None = None) -> Sequence[StoredObject]:
        """Objects below the folder `prefix`, by key; only those behind the key `after` when it is given."""
        ...

    async def folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders right below the folder `prefix`, sorted, whatever lies in them. In a file system one may
        be empty.
        """
        ...

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of an object, or those from `start` up to `end`. Raises ObjectMissing."""
        ...

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object, at once and whole. False: there is one of that name, and it stays as it is."""
        ...

    async def compare_and_swap(self, key: str, data: bytes, expected: str) -> str | None:
        """Replace an object that still has the version `expected`; the new version, None when it has another.

        Raises Unimplemented where the store cannot do that; a file system cannot.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object for good; one that is not there is fine."""
        ...


async def prove_one_winner(store: ObjectStore) -> None:
    """Let several put the same new key. Raises SegmentStoreUnusable unless exactly one wins, and stays.

    A store that looks first and writes then is caught only when two come at the same moment; hence the crowd.
    """
    key = f"probes/{secrets.token_hex(16)}"
    contents = [b"%d" % each for each in range(_CONTENDERS)]
    try:
        won = await asyncio.gather(*(store.put_if_absent(key, content) for content in contents))
        late = await store.put_if_absent(key, b"late")
        kept = await store.get(key)
    except Exception as error:  # Who gives up does not wait for what is to be tidied.
        with suppress(OmniRelayError):
            await store.delete(key)
        if isinstance(error, ObjectMissing):
            raise _not_to_be_relied_on(store, "an object was gone right after it was put") from None
        raise
    await store.delete(key)
    if late or won.count(True) != 1:
        raise _not_to_be_relied_on(store, f"{won.count(True) + late} of {_CONTENDERS + 1} puts of one key won")
    if kept != contents[won.index(True)]:
        raise _not_to_be_relied_on(store, "a put that was told it lost replaced the winner's object")


def _not_to_be_relied_on(store: ObjectStore, what: str) -> SegmentStoreUnusable:
    return SegmentStoreUnusable(
        f"{store.address} has no put-if-absent to rely on: {what}; two writers could overwrite each other there"
    )
