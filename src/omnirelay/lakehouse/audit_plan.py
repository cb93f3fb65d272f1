"""What there is to audit: the segments of each shard as its newest manifest lists them, and how they continue each
other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from omnirelay.errors import InvalidArgument, LogDamaged
from omnirelay.lakehouse.audit_rules import Findings
from omnirelay.lakehouse.shards import shards_of
from omnirelay.log.frame import genesis_chain
from omnirelay.segments.connecting import connect
from omnirelay.segments.errors import ObjectMissing
from omnirelay.segments.manifest import Before, Entry
from omnirelay.segments.reader import SegmentReader
from omnirelay.segments.store import ObjectStore


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The segments of one shard, in order, and the stretch of events that violations are looked for in."""

    shard: str
    log_id: str
    anchor: Before
    """What the first segment follows."""
    entries: tuple[Entry, ...]
    first: int
    last: int

    @property
    def whole(self) -> bool:
        """Whether the log is there from its first event on."""
        return self.anchor.sequence == 0

    @property
    def begin_chain(self) -> bytes | None:
        """The chain before the first frame; None when it was never here."""
        if self.whole:
            return genesis_chain(self.shard, self.log_id)
        link = self.anchor.link()
        return None if link is None else link.chain

    def looked_at(self, entry: Entry) -> bool:
        return entry.last >= self.first and entry.first <= self.last


async def plan(
    address: str,
    *,
    shards: Collection[str] | None = None,
    first: int = 1,
    last: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[list[ShardPlan], list[Findings]]:
    """The shards to audit, and what their manifests alone have wrong.

    A shard whose manifest or index cannot be read is among the findings only. Raises NotFound for a shard, or an
    address, without segments.
    """
    store = await connect(address, options, writable=False)
    plans, found = [], []
    for name in await shards_of(store, shards):
        findings = Findings("files", name)
        found.append(findings)
        try:
            planned = await _plan_of(store, name, first, last)
        except (LogDamaged, ObjectMissing) as error:
            place = error.details.get("sequence")
            findings.add("segments", place if isinstance(place, int) else None, error.message)
            continue
        _check_links(planned, findings)
        plans.append(planned)
    if plans and all(planned.first > planned.last for planned in plans):
        raise InvalidArgument(
            f"there is no event from {first} on; the segments end at {max(planned.last for planned in plans)}",
            field="from",
        )
    return plans, found


async def _plan_of(store: ObjectStore, shard: str, first: int, last: int | None) -> ShardPlan:
    reader = SegmentReader(store, shard)
    manifest, entries = await reader.listed(1, last)
    end = entries[-1].last if entries else manifest.anchor.sequence
    return ShardPlan(
        shard=shard,
        log_id=manifest.log_id,
        anchor=manifest.anchor,
        entries=tuple(entries),
        first=max(first, 1),
        last=end if last is None else min(last, end),
    )


def _check_links(planned: ShardPlan, findings: Findings) -> None:
    """Every segment has to begin with what the one before it ends with."""
    before = planned.anchor
    for entry in planned.entries:
        if entry.before.sequence != before.sequence:
            findings.add(
                "contiguity",
                entry.first,
                f"segment {entry.name} follows event {entry.before.sequence}, but {before.sequence} comes before it",
            )
        elif entry.before != before:
            findings.add("chain", entry.first, f"segment {entry.name} continues another chain than the one before it")
        before = Before.of(entry.end)
