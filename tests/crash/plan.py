"""What the test tells the child process to do. One JSON object on its command line."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

NAMESPACE = "crash"
"""The log lies in DIRECTORY/crash."""

LONG = bool(os.environ.get("OMNIRELAY_LONG"))
"""`make crash-test` sets it: many more kills."""


class HeldLease(msgspec.Struct, frozen=True, rename="camel"):
    """A lease an earlier child was granted; the next one goes on with it, as a worker that outlived the
    shard would.
    """

    sequence_id: int
    attempt: int
    lease_id: str
    fence: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    seed: int
    round: int = 1
    """Counts the children on one directory; makes names of calls and items unique."""
    acknowledgements_max: int = 4_000
    """The child closes its shard by itself after this many: a kill point that was never passed shows so."""
    failpoint: str | None = None
    failpoint_hit: int = 1
    """Die at this hit of the failpoint; the first is 1."""
    variant: str | None = None
    """A function of tests.crash.variants to call before the shard is opened."""
    held: list[HeldLease] = []
    snapshots: bool = False
    """Make snapshots during the run, in this process (the helper process is killed by nobody)."""
    helper_snapshots: bool = False
    """Make them the real way, in the helper process."""
    trim: bool = False
    """Trim what snapshots of earlier rounds allow. What the parent has not read yet is never dropped."""
    backup: str | None = None
    """Write a backup there early in the run."""
    vfs: str | None = None
    synchronous: str = "FULL"

    @property
    def path(self) -> Path:
        return Path(self.directory)
