"""Where the sinks of the kill test deliver to: configuration, the process if there is one, and what is held there.

A new target is a class here and a place in a list of `test_replication_kill`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import msgspec

from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.settings import TABLE
from tests.patience import PATIENCE_S
from tests.servers import KafkaServer, NatsServer, PostgresServer, Server

NAMESPACE = "resourcelease"
SINKS = Path("data") / "sinks"


class _Sequence(msgspec.Struct, rename="camel"):
    sequence_number: int


_sequence = msgspec.json.Decoder(_Sequence).decode


class Target(ABC):
    """One sink of the node and what it delivers to."""

    name: str
    server: Server | None = None
    """The receiving side, when that is a process of its own: killed and started again while the node delivers."""
    is_killed = True
    """False: it takes so long to begin again that only the node is killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def config(self) -> str:
        """Its table of the configuration."""

    @abstractmethod
    def held(self) -> list[bytes]:
        """The events as they stand there, as JSON, in the order they came."""

    def events(self) -> list[bytes]:
        """What a reader gets: by default exactly what is held, because the target itself takes each event once."""
        return self.held()


class Files(Target):
    name = "files"

    def config(self) -> str:
        return '[sinks.files]\nkind = "file"\nrotate_bytes = "64KiB"\nlinger = "1ms"\nbatch_events = 50\n'

    def held(self) -> list[bytes]:
        paths = sorted((self.directory / SINKS / "files" / NAMESPACE).iterdir())
        assert len(paths) > 1, "no file was rolled"
        return [line for path in paths for line in path.read_bytes().splitlines()]


class Tables(Target):
    name = "tables"

    def config(self) -> str:
        return '[sinks.tables]\nkind = "sqlite"\nlinger = "1ms"\nbatch_events = 70\nrequired = true\n'

    def held(self) -> list[bytes]:
        database = sqlite3.connect(self.directory / SINKS / "tables" / f"{NAMESPACE}.db")
        found = database.execute(f"select event_json from {TABLE} order by rowid").fetchall()
        database.close()
        return [row[0].encode() for row in found]


class Segments(Target):
    """Merged while the node is killed, too; verified before they are read."""

    name = "segments"
    format = "parquet"

    def config(self) -> str:
        return (
            f'[sinks.{self.name}]\nkind = "objects"\nformat = "{self.format}"\n'
            'linger = "1ms"\nbatch_events = 80\ncompact_at = 4\n'
        )

    def held(self) -> list[bytes]:
        return asyncio.run(self._read())

    async def _read(self) -> list[bytes]:
        # An extra: only those who test this target need it.
        from omnirelay.segments.connecting import connect
        from omnirelay.segments.reader import SegmentReader
        from omnirelay.segments.verification import verify

        store = await connect(str(self.directory / SINKS / self.name), writable=False)
        report = await verify(store, NAMESPACE)
        assert report.version > 1, "there was one delivery only"
        found: list[ReplicatedEvent] = []
        async for frame in SegmentReader(store, NAMESPACE).frames():
            found += events_of_frame(frame, "local", found[-1].sequence if found else 0)
        return [event.json() for event in found]


class LineSegments(Segments):
    name = "lines"
    format = "jsonl"


class Objects(Target):
    name = "objects"

    def config(self) -> str:
        return '[sinks.objects]\nkind = "objects"\nformat = "json"\nlinger = "1ms"\nbatch_events = 50\n'

    def held(self) -> list[bytes]:
        paths = sorted((self.directory / SINKS / "objects" / NAMESPACE).glob("*.json"))
        return [path.read_bytes() for path in paths]


class Receiver(Server):
    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def command(self) -> Sequence[str | Path]:
        program = Path(__file__).with_name("event_receiver.py")
        return [sys.executable, program, self._form, str(self.port), self.lines]

    @property
    def lines(self) -> Path:
        return self.directory / "events.jsonl"


class Received(Target):
    """A receiver that takes everything as it comes: what came twice is left out here, as its readers have to."""

    form: str

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = self.receiver = Receiver(self.form)

    def held(self) -> list[bytes]:
        return self.receiver.lines.read_bytes().splitlines()

    def events(self) -> list[bytes]:
        return once(self.held())


class Webhook(Received):
    name, form = "hook", "webhook"

    def config(self) -> str:
        return (
            f'[sinks.hook]\nkind = "webhook"\nurl = "http://127.0.0.1:{self.receiver.port}/"\n'
            'linger = "1ms"\nbatch_events = 60\nretry_max = "200ms"\nrequired = true\n'
        )


class Otel(Received):
    name, form = "otel", "otlp"

    def config(self) -> str:
        return (
            f'[sinks.otel]\nkind = "otel"\nurl = "http://127.0.0.1:{self.receiver.port}/v1/logs"\n'
            'linger = "1ms"\nbatch_events = 60\nretry_max = "200ms"\n'
        )


class Postgres(Target):
    name = "postgres"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = self._postgres = PostgresServer(fsync=True)

    def config(self) -> str:
        return (
            f'[sinks.postgres]\nkind = "postgres"\nurl = "{self._postgres.url()}"\nrequired = true\n'
            'linger = "1ms"\nbatch_events = 400\nretry_max = "200ms"\n'
        )

    def held(self) -> list[bytes]:
        import psycopg  # An extra: only those who test this target need it.

        with psycopg.connect(self._postgres.url()) as connection:
            rows = connection.execute(f"select event_json from {TABLE} order by sequence_number").fetchall()
        return [row[0].encode() for row in rows]


class Nats(Target):
    name = "nats"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = self._nats = NatsServer()

    def config(self) -> str:
        return (
            f'[sinks.nats]\nkind = "nats"\nurl = "{self._nats.url}"\nsubject = "events"\nstream = "EVENTS"\n'
            'linger = "1ms"\nbatch_events = 400\nretry_max = "200ms"\n'
        )

    def held(self) -> list[bytes]:
        return asyncio.run(self._messages())

    async def _messages(self) -> list[bytes]:
        import nats

        connection = await nats.connect(self._nats.url, connect_timeout=int(PATIENCE_S))
        try:
            context = connection.jetstream(timeout=PATIENCE_S)
            count = (await context.stream_info("EVENTS")).state.messages
            consumer = await context.subscribe(">", stream="EVENTS", ordered_consumer=True)
            return [(await consumer.next_msg(timeout=PATIENCE_S)).data for _ in range(count)]
        finally:
            await connection.close()

    def events(self) -> list[bytes]:
        return once(self.held())


class Kafka(Target):
    name = "kafka"
    is_killed = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = self._kafka = KafkaServer()

    def config(self) -> str:
        return (
            f'[sinks.kafka]\nkind = "kafka"\nurl = "{self._kafka.url}"\ntopic = "events"\n'
            'linger = "1ms"\nbatch_events = 400\nretry_max = "200ms"\n'
        )

    def held(self) -> list[bytes]:
        from tests.integration.test_sink_kafka import read_all

        return [message.value() or b"" for message in read_all(self._kafka, "events")]

    def events(self) -> list[bytes]:
        return once(self.held())


def once(held: Sequence[bytes]) -> list[bytes]:
    """Each event the first time it came."""
    seen: set[int] = set()
    kept = []
    for event in held:
        sequence = _sequence(event).sequence_number
        if sequence not in seen:
            seen.add(sequence)
            kept.append(event)
    return kept
