"""What of a log lies at an address: segments, a backup, or the files of a log as a node has them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from omnirelay.segments.store import ObjectStore

Kind: TypeAlias = Literal["segments", "backup", "files"]
"""`files`: a directory that a node could be started with; a backup to a directory is one, too."""

_MARKS: Final[tuple[tuple[str, Kind], ...]] = (
    ("leases.db", "files"),
    ("backup.json", "backup"),
    ("manifest/", "segments"),
    # Without a manifest they are damaged, and not nothing.
    ("segments/", "segments"),
)


async def logs_at(store: ObjectStore, shard: str | None = None) -> dict[str, Kind]:
    """The shards of which something is there, or only this one, each with what it is."""
    found: dict[str, Kind] = {}
    for each in await store.list("" if shard is None else shard):
        name, _, rest = each.key.partition("/")
        for mark, kind in _MARKS:
            # Where there are several, the first of them is a whole log.
            if rest == mark or (mark.endswith("/") and rest.startswith(mark)):
                known = found.get(name)
                if known is None or _rank(kind) < _rank(known):
                    found[name] = kind
    return dict(sorted(found.items()))


async def is_one_log(store: ObjectStore) -> bool:
    """Whether the address is a shard's own, one level below the one that holds its shard under a name."""
    return any(
        each.key.startswith(mark) if mark.endswith("/") else each.key == mark
        for each in await store.list("")
        for mark, _ in _MARKS
    )


def _rank(kind: Kind) -> int:
    return [each for _, each in _MARKS].index(kind)
