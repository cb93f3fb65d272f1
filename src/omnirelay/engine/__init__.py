"""One shard's single writer: inbox, group commit, timers, snapshots, recovery."""
