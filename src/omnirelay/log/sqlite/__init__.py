"""The log in one SQLite file per shard. `SqliteLog.open` is the way in."""

from omnirelay.log.sqlite.connection import Synchronous
from omnirelay.log.sqlite.log import SqliteLog
from omnirelay.log.sqlite.paths import LogPaths

__all__ = ["LogPaths", "SqliteLog", "Synchronous"]
