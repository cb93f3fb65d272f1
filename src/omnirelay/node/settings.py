"""The settings of a node, as the parts of a node read them. `omnirelay.node.loading` makes them.

The defaults stand here and nowhere else, except for those of a queue, which core has.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from omnirelay.core.options import QueueOptions
from omnirelay.engine.settings import EngineSettings
from omnirelay.errors import InvalidArgument
from omnirelay.replication.settings import SinkSettings

LogLevel = Literal["debug", "info", "warning", "error"]

DEFAULT_SHARD = "resourcelease"
"""The shard of a node whose configuration names none; clients use its namespace unless told otherwise."""

_LOOPBACK_V4 = ipaddress.IPv4Network("127.0.0.0/8")
_LOOPBACK_V6 = ipaddress.IPv6Address("::1")
_ENGINE_DEFAULTS = EngineSettings()


class InvalidConfiguration(InvalidArgument):
    """A configuration that cannot be used. The message has one problem per line, and all of them."""

    default_code = "config.invalid"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class NodeSection(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "node"
    region: str = "local"
    data: Path = Path("omnirelay-data")
    """Relative to the working directory of the process."""
    host: str = "127.0.0.1"
    port: int = 7070
    """0 takes a free one."""
    grpc_port: int | None = None
    """Of a later version: nothing listens there yet, and a node that is given one says so."""
    allowed_hosts: tuple[str, ...] = ()
    """Names it is asked under besides addresses, localhost and `host`. Empty: on loopback no others, elsewhere any."""
    log_level: LogLevel = "info"
    drain_timeout_ms: int = 10_000


class LogSection(msgspec.Struct, frozen=True, kw_only=True):
    url: str = "sqlite:"
    snapshot_every_events: int = _ENGINE_DEFAULTS.snapshot_every_events
    retention_ms: int = _ENGINE_DEFAULTS.retention_ms
    waiting_leases_max: int = _ENGINE_DEFAULTS.waiting_leases_max
    waiting_enqueues_max: int = _ENGINE_DEFAULTS.waiting_enqueues_max
    waiting_enqueue_bytes_max: int = _ENGINE_DEFAULTS.waiting_enqueue_bytes_max


class TelemetrySection(msgspec.Struct, frozen=True, kw_only=True):
    json_logs: bool | None = None
    """None: JSON unless a person is looking."""

    def wants_json(self, *, stderr_is_terminal: bool) -> bool:
        return not stderr_is_terminal if self.json_logs is None else self.json_logs


class ShardSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    options: QueueOptions

    def queue_options(self) -> QueueOptions:
        return self.options


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeSection = NodeSection()
    log: LogSection = LogSection()
    shards: tuple[ShardSettings, ...] = (
        ShardSettings(name=DEFAULT_SHARD, namespace=DEFAULT_SHARD, options=QueueOptions()),
    )
    """In the order of the file, at least one, each with a namespace of its own."""
    sinks: tuple[SinkSettings, ...] = ()
    telemetry: TelemetrySection = TelemetrySection()

    def engine_settings(self) -> EngineSettings:
        """For every shard of the node. Whether to freeze the collector is left to who starts the process."""
        return EngineSettings(
            snapshot_every_events=self.log.snapshot_every_events,
            retention_ms=self.log.retention_ms,
            waiting_leases_max=self.log.waiting_leases_max,
            waiting_enqueues_max=self.log.waiting_enqueues_max,
            waiting_enqueue_bytes_max=self.log.waiting_enqueue_bytes_max,
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener there. In doubt no: the answer decides who needs no identity."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address in _LOOPBACK_V4
    return address == _LOOPBACK_V6
