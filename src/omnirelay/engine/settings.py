"""How an engine runs. Unlike the options of a queue these change no outcome, so they are not in the log."""

from __future__ import annotations

import msgspec


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    frame_events_max: int = 20_000
    """A frame takes no further command beyond this many events."""

    stage_events_min: int = 256
    """While a frame is being written the next one is decided early when this much waits; less waits for company."""

    split_events_min: int = 2_000
    """With this much waiting and nothing being written, only half goes into the frame and the rest into the next."""

    retry_ms: int = 100
    """Pause between tries of a frame that the store refused for now (disk full)."""

    waiting_leases_max: int = 100_000
    """Most lease calls that wait at the same time; one more is refused with `resource-exhausted`."""

    waiting_enqueues_max: int = 10_000
    """Most enqueues that wait for room at the same time …"""

    waiting_enqueue_bytes_max: int = 64 * 1024 * 1024
    """… and the most bytes they hold, about 500 for each item besides what is in it; one more is refused at once."""

    snapshot_every_events: int = 1_000_000
    """A snapshot is made after this many events. 0: only when asked for."""

    retention_ms: int = 24 * 3_600_000
    """The log keeps at least this much history when it trims itself after a snapshot."""

    freeze_after_recovery: bool = False
    """Take the recovered state out of the garbage collector's sight. Process-wide, so the node decides."""
