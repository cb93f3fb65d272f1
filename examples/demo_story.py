"""What happened, told from the log alone: verify it, replay it, count its events."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from omnirelay.core import events as ev
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.core.views import dead_letters
from omnirelay.engine.recovery import rebuild
from omnirelay.log.base import VerifyReport
from omnirelay.log.frame import decode_frame
from omnirelay.log.sqlite import SqliteLog


class Story(msgspec.Struct):
    directory: Path
    report: VerifyReport
    state: State
    digest: str
    counts: Counter[str]
    elections: int
    completed: int
    last_fence: int
    fences_rise: bool
    owners_at_once: int
    request_ids: int
    """Items that the demo asked for by name, each counted once."""

    def holds(self, items: int) -> bool:
        """All that was asked for came in once and ended, fences only rose, and no item ever had two owners."""
        ended = self.completed + len(self.state.dead) + self.counts["Cancelled"]
        return (
            self.request_ids == items
            and ended == self.counts["Enqueue"]
            and not self.state.live_count
            and self.fences_rise
            and self.owners_at_once <= 1
        )

    def text(self, *, deaths: int, writes: int, refused: int) -> str:
        counts = self.counts
        dead = len(self.state.dead)
        letters = dead_letters(self.state, items_max=1000).items
        why = Counter(letter.last_error.code for letter in letters if letter.last_error is not None)
        report = self.report
        rows = [
            (
                counts["Enqueue"],
                f"items came in: {self.completed:,} completed, {dead:,} dead, {counts['Cancelled']:,} cancelled",
            ),
            (counts["LeaseGranted"], f"leases were granted, the last with fence {self.last_fence:,}"),
            (counts["Failed"], "attempts failed; each was tried again, or its item is a dead letter"),
            (counts["Expired"], "leases ran out because their worker was gone; somebody else got the item"),
            (counts["Released"], "leases were given back, no attempt burned"),
            (deaths, "times a worker died and was started again"),
            (refused, f"late writes of a zombie were refused by their fence ({writes:,} writes were taken)"),
            (self.elections, "times a node took the lead (the second one after kill -9)"),
            (self.owners_at_once, "owner at most had any item at any time"),
        ]
        return "\n".join(
            [
                "What happened, from the log:",
                *(f"  {number:>7,} {what}" for number, what in rows),
                *(f"          dead for: {code} ({number})" for code, number in why.most_common()),
                "",
                (
                    f"The log checks out: {report.frames:,} frames, {report.events:,} events, {report.bytes:,} bytes, "
                    "chain unbroken, fences only rising."
                ),
                f"Replayed state: sha256 {self.digest[:16]}",
                "Look for yourself:",
                f"  omnirelay log verify --data {self.directory.parent} --namespace {self.directory.name}",
                f"  sqlite3 {self.directory}/leases.db 'select event_type, count(*) from events group by 1'",
            ]
        )


async def tell(directory: Path, namespace: str) -> Story:
    log = SqliteLog.open(directory, namespace, read_only=True)
    try:
        report = await log.verify()
        recovered = await rebuild(log)
        counts: Counter[str] = Counter()
        owned: set[int] = set()
        owners_at_once = 0
        request_ids: Counter[str] = Counter()
        last_fence = 0
        fences_rise = True
        async for frame in log.read():
            for event in decode_frame(frame, shard=log.shard, log_id=log.log_id):
                counts[type(event).__name__] += 1
                if isinstance(event, ev.LeaseGranted):
                    item = event.ownership.sequence_id
                    owners_at_once = max(owners_at_once, 2 if item in owned else 1)
                    owned.add(item)
                    fence = event.ownership.fence or 0
                    fences_rise = fences_rise and fence > last_fence
                    last_fence = fence
                elif isinstance(event, ev.Completed | ev.Failed | ev.Expired | ev.Released):
                    owned.discard(event.ownership.sequence_id)
                elif isinstance(event, ev.Enqueue) and (event.payload.request_id or "").startswith("demo-"):
                    request_ids[event.payload.request_id or ""] += 1
    finally:
        await log.close()
    return Story(
        directory / namespace,
        report,
        recovered.state,
        digest(recovered.state),
        counts,
        counts["LeaderElected"],
        counts["Completed"],
        last_fence,
        fences_rise,
        owners_at_once,
        len(request_ids) if set(request_ids.values()) <= {1} else -1,
    )
