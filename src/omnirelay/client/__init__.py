"""What an application imports to call a node: `Client`, and `SyncClient` for code without an event loop."""
