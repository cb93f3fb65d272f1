"""Where the measured sinks deliver to: one of every kind, with the settings that a node gives it by default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from omnirelay.replication.settings import FollowSettings, SinkSettings, followed_otherwise
from tests.servers import KAFKA, KafkaServer, NatsServer, PostgresServer, Server

ROOT = Path(__file__).parent.parent


class Receiver(Server):
    """What webhooks and OpenTelemetry are sent to."""

    def command(self) -> Sequence[str | Path]:
        # Without its directory in the path of modules: there is another `http` there.
        return [sys.executable, "-P", ROOT / "benchmarks" / "replication_receiver.py", str(self.port)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


class Target(msgspec.Struct, frozen=True):
    name: str
    kind: str
    keys: dict[str, Any] = {}
    server: Callable[[], Server] | None = None
    """The receiving side, when that is a process of its own."""
    aims: bool = False
    """It is to be as fast as the log."""
    few: bool = False
    """It makes a file of every event: it gets a small load, or it would never keep up."""

    @property
    def option(self) -> str:
        """The name on the command line."""
        return self.name.replace(", ", "-").lower()

    def settings(self, url: str | None, path: Path, **follow_otherwise: Any) -> SinkSettings:
        """`path` is a place of its own: no delivery finds anything there."""
        follow = FollowSettings(
            **{**followed_otherwise(self.kind, self.keys.get("format", "parquet")), **follow_otherwise}
        )
        named = path.name.replace("-", "_")
        fresh: dict[str, Any] = {"postgres": {"table": named}, "nats": {"stream": named, "subject": named}}.get(
            self.kind, {"topic": named} if self.kind == "kafka" else {}
        )
        return SinkSettings(
            name=path.name, kind=self.kind, path=str(path), url=url, follow=follow, **self.keys, **fresh
        )

    @contextmanager
    def served(self) -> Iterator[tuple[Server | None, str | None]]:
        """The server, started, and where it is."""
        if self.server is None:
            yield None, None
            return
        server = self.server()
        try:
            server.start()
            url: Any = getattr(server, "url")  # noqa: B009 -- some have a method of that name, some a property.
            yield server, url() if callable(url) else url
        finally:
            server.remove()


TARGETS = (
    Target("memory", "memory"),
    Target("file", "file", aims=True),
    Target("sqlite", "sqlite", aims=True),
    Target("segments, Parquet", "objects", {"format": "parquet"}, aims=True),
    Target("segments, JSONL", "objects", {"format": "jsonl"}, aims=True),
    Target("objects, JSON", "objects", {"format": "json"}, few=True),
    Target("governance", "governance"),
    Target("postgres", "postgres", server=lambda: PostgresServer(fsync=True)),
    Target("nats", "nats", server=NatsServer),
    Target("kafka", "kafka", server=KafkaServer),
    Target("webhook", "webhook", server=Receiver),
    Target("otel", "otel", server=Receiver),
)


def is_missing(target: Target) -> bool:
    """Kafka is fetched for the long tests only, and compared when it is there."""
    return target.kind == "kafka" and not list((KAFKA / "jars").glob("kafka_*.jar"))
