"""A node: its configuration, and the shards it serves."""
