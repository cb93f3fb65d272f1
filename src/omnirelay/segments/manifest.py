"""The manifest: which segments there are. Putting its next version is the commit of whoever writes.

    SHARD/manifest/00000000000000000007.json     the newest one counts; older ones are removed after a while
    SHARD/segments/FIRST-LAST-EPOCH-CHAIN-NONCE.parquet
    SHARD/index/FIRST-LAST-NONCE.json            older entries, so that a manifest stays small

A manifest names the newest segments itself (level 0). When a level is long, its older half moves into an index object,
and one entry of the next level stands for it. So the manifest of 100,000 segments is as quick to write as that of 100.

    level 2: [index of 64 indexes] ─▶ level 1: [index of 64 segments, …] ─▶ level 0: [segment, segment, …]
    └── oldest                                                                              newest ──┘
"""

from __future__ import annotations

from typing import Final

import msgspec

from omnirelay.log.chain import Link
from omnirelay.segments.errors import SegmentsDamaged
from omnirelay.segments.seals import is_intact, sealed

FORMAT_VERSION: Final = 1
FAN: Final = 64
"""Entries of an index object. A level of a manifest holds at most twice as many."""


class Before(msgspec.Struct, frozen=True, rename="camel"):
    """What the first frame of a segment follows. The chain is None when the history before it was never seen here."""

    sequence: int
    chain: str | None
    generation: int

    @classmethod
    def of(cls, link: Link) -> Before:
        return cls(link.sequence, link.chain.hex(), link.generation)

    def link(self) -> Link | None:
        return None if self.chain is None else Link(self.sequence, bytes.fromhex(self.chain), self.generation)


class Entry(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A segment, or an index of entries, with what is needed to choose it, check it, and go on behind it."""

    name: str
    first: int
    last: int
    epoch: int
    """Of the last frame."""
    generation: int
    """Of the last frame."""
    chain: str
    """The chain behind the last frame, in hexadecimal."""
    before: Before
    events: int
    frames: int
    bytes: int
    """Size of the object; of all segments, for an index."""
    raw_bytes: int
    """Bytes of the frames themselves."""
    from_ms: int
    """Time of the first frame."""
    to_ms: int
    """Time of the last frame."""
    digest: str
    """SHA-256 of the object."""
    segments: int = 1
    """Segments it stands for."""

    @property
    def end(self) -> Link:
        return Link(self.last, bytes.fromhex(self.chain), self.generation)


class Dropped(msgspec.Struct, frozen=True, rename="camel"):
    """An object that is no longer listed. It stays for a while, for readers that began before."""

    key: str
    at_ms: int


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One version. `levels[0]` is the newest part; every level is in order of the log."""

    version: int
    shard: str
    log_id: str
    writer: str
    """Name of who wrote this version, for people."""
    written_ms: int
    epoch: int
    """The highest epoch of any frame; a writer that comes with less is refused."""
    anchor: Before
    """What the first segment follows: the end of what was dropped, or of what was never here."""
    levels: tuple[tuple[Entry, ...], ...] = ((),)
    dropped: tuple[Dropped, ...] = ()
    sweeps: int = 0
    """How often unlisted objects were looked for. Who put an object before a sweep must not list it after."""
    format_version: int = FORMAT_VERSION

    @property
    def end(self) -> Link | None:
        """Behind the last segment; None while nothing is known that a frame could be checked against."""
        for level in self.levels:
            if level:
                return level[-1].end
        return self.anchor.link()

    @property
    def last(self) -> int:
        end = self.end
        return self.anchor.sequence if end is None else end.sequence

    @property
    def recent(self) -> tuple[Entry, ...]:
        """The newest segments."""
        return self.levels[0]

    @property
    def segments(self) -> int:
        return sum(entry.segments for level in self.levels for entry in level)

    def oldest_first(self) -> list[tuple[int, Entry]]:
        """Every entry with its level, in order of the log."""
        return [(at, entry) for at in reversed(range(len(self.levels))) for entry in self.levels[at]]

    def with_recent(self, recent: tuple[Entry, ...]) -> Manifest:
        return msgspec.structs.replace(self, levels=(recent, *self.levels[1:]))


def manifest_prefix(shard: str) -> str:
    return f"{shard}/manifest"


def manifest_key(shard: str, version: int) -> str:
    return f"{manifest_prefix(shard)}/{version:020d}.json"


def version_of(key: str) -> int | None:
    """The version in a key, None when it is no manifest's."""
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if len(name) == 20 and name.isdecimal() else None


def segments_prefix(shard: str) -> str:
    return f"{shard}/segments"


def segment_key(shard: str, name: str) -> str:
    return f"{segments_prefix(shard)}/{name}"


def index_prefix(shard: str) -> str:
    return f"{shard}/index"


def index_key(shard: str, name: str) -> str:
    return f"{index_prefix(shard)}/{name}"


def key_of(shard: str, level: int, entry: Entry) -> str:
    return index_key(shard, entry.name) if level else segment_key(shard, entry.name)


_read_manifest = msgspec.json.Decoder(Manifest).decode
_read_entries = msgspec.json.Decoder(tuple[Entry, ...]).decode


def encode_manifest(manifest: Manifest) -> bytes:
    return sealed(msgspec.json.encode(manifest))


def decode_manifest(data: bytes, *, key: str, shard: str) -> Manifest:
    """Raises SegmentsDamaged naming the key."""
    try:
        manifest = _read_manifest(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SegmentsDamaged(f"the manifest {key} cannot be read: {error}", segment=key, shard=shard) from error
    if manifest.format_version > FORMAT_VERSION:
        raise SegmentsDamaged(
            f"the manifest {key} has format {manifest.format_version}, this version knows {FORMAT_VERSION};"
            " upgrade omnirelay",
            segment=key,
            shard=shard,
        )
    if manifest.shard != shard or manifest.version != version_of(key) or not manifest.levels:
        raise SegmentsDamaged(
            f"the manifest {key} says that it is version {manifest.version} of {manifest.shard!r}",
            segment=key,
            shard=shard,
        )
    if not is_intact(data):
        raise SegmentsDamaged(
            f"the manifest {key} is not what was written: its own digest is another; put a good copy back, or remove"
            " it to go on from the version before it, and verify that",
            segment=key,
            shard=shard,
        )
    return manifest


def encode_index(entries: tuple[Entry, ...]) -> bytes:
    return msgspec.json.encode(entries)


def decode_index(data: bytes, *, key: str, shard: str) -> tuple[Entry, ...]:
    try:
        return _read_entries(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SegmentsDamaged(f"the index {key} cannot be read: {error}", segment=key, shard=shard) from error


def index_entry(name: str, entries: tuple[Entry, ...], digest: str) -> Entry:
    """One entry that stands for these."""
    first, last = entries[0], entries[-1]
    return msgspec.structs.replace(
        last,
        name=name,
        first=first.first,
        before=first.before,
        from_ms=first.from_ms,
        to_ms=max(entry.to_ms for entry in entries),
        events=sum(entry.events for entry in entries),
        frames=sum(entry.frames for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
        raw_bytes=sum(entry.raw_bytes for entry in entries),
        segments=sum(entry.segments for entry in entries),
        digest=digest,
    )
