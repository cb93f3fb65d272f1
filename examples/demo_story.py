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

    def holds(self, items: int) -> bool:
        """Every item ended exactly once, fences only rose, and no item ever had two owners."""
        ended = self.completed + len(self.state.dead)
        return ended == items == self.counts["Enqueue"] and self.fences_rise and self.owners_at_once <= 1

    def text(self) -> str:
        counts = self.counts
        dead = len(self.state.dead)
        letters = dead_letters(self.state, items_max=1000).items
        why = Counter(letter.last_error.code for letter in letters if letter.last_error is not None)
        report = self.report
        query = "select event_type, count(*) from events group by 1"
        return "\n".join(
            [
                "What the log says:",
                f"  {counts['Enqueue']:>7,} items came in: {self.completed:,} completed, {dead:,} dead letters",
                f"  {counts['LeaseGranted']:>7,} leases were granted, the last with fence {self.last_fence:,}",
                f"  {counts['Failed']:>7,} attempts failed and were retried or buried",
                f"  {counts['Expired']:>7,} leases ran out because their worker was gone",
                f"  {self.elections:>7,} times a process took the lead (the second one after kill -9)",
                f"  {self.owners_at_once:>7,} owner at most had any item at any time",
                *(f"          dead for: {code} ({number})" for code, number in why.most_common()),
                "",
                (
                    f"The log checks out: {report.frames:,} frames, {report.events:,} events, "
                    f"{report.bytes:,} bytes, chain unbroken, fences only rising."
                ),
                f"Replayed state: sha256 {self.digest[:16]}",
                "It is an SQLite file; look at it yourself:",
                f'  sqlite3 {self.directory}/leases.db "{query}"',
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
    )
