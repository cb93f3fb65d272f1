"""Events into a topic of Kafka, one record each.

    key       the shard: one partition has all of it, in order
    headers   omnirelay.shard, omnirelay.sequence, omnirelay.type

A delivery counts when every record of it is reported as written by all replicas that are in sync. The producer is
idempotent, so that what the broker has of a delivery that failed is its beginning, without repetitions of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from omnirelay.errors import Unavailable
from omnirelay.replication.addresses import FIXED_PROPERTIES, default_subject, is_address, property_problems
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.extras import extra
from omnirelay.replication.files import lines_of, whole_event
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import SinkRefused, SinkUnusable
from omnirelay.replication.threads import OneThread

with extra("kafka"):
    from confluent_kafka import KafkaError, KafkaException, Message, Producer

_REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG_SIZE})
"""What a broker says of a record that it will never take."""
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""Whether a record is too large is for the broker to say; the library's own limit is lower than some brokers'."""
_MAY_COME = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE})
_TOPIC_SECONDS = 3.0
"""How long a topic that was made just now may take to be known everywhere; brokers make one by being asked for it."""
_POLL_SECONDS = 0.1

_log = logging.getLogger("omnirelay.replication.kafka")


class KafkaSink:
    """One producer per shard, made anew after a failure: what it had not delivered must not follow later."""

    rebuilds_state = False

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        topic: str | None = None,
        properties: Mapping[str, str] | None = None,
        line_of: Callable[[ReplicatedEvent], bytes | None] = whole_event,
        timeout_ms: int = FollowSettings().timeout_ms,
    ) -> None:
        """`url` is kafka://HOST:PORT with more of them behind commas; `properties` are librdkafka's, `password` its
        `sasl.password`. `line_of` makes the record of an event, None for one that has none.
        """
        if not is_address("kafka", url):
            raise SinkUnusable("the url of a kafka sink begins with kafka://")
        for name, what in property_problems(properties or {}):
            raise SinkUnusable(f"properties.{name} {what}")
        self._servers = url.partition("://")[2].rstrip("/")
        self._topic = topic or default_subject("kafka")
        self._properties = {"linger.ms": "5", "client.id": "omnirelay", **(properties or {})}
        self._password = password
        self._line_of = line_of
        self._seconds = timeout_ms / 1000
        self._producer: Producer | None = None
        self._said: str | None = None
        self._thread = OneThread("omnirelay-kafka-sink")

    async def open(self, shard: str) -> int | None:
        await self._thread.run(self._find_topic)
        return None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        await self._thread.run(lambda: self._deliver(events))

    async def close(self) -> None:
        await self._thread.run(self._let_go)
        self._thread.close()

    # -- in the sink's thread --------------------------------------------------------------------

    def _made(self) -> Producer:
        if self._producer is None:
            self._said = None
            secret = {} if self._password is None else {"sasl.password": self._password}
            try:
                self._producer = Producer(
                    {
                        "message.max.bytes": _MESSAGE_BYTES_MAX,
                        **self._properties,
                        **secret,
                        **FIXED_PROPERTIES,
                        "bootstrap.servers": self._servers,
                        "error_cb": self._on_error,
                        "log_level": 2,
                        # Else it writes to standard error. Little is left to say: what matters comes by error_cb.
                        "logger": _log,
                    }
                )
            except KafkaException as error:
                raise SinkUnusable(f"Kafka: {self._words(error.args[0])}") from None
        return self._producer

    def _on_error(self, error: KafkaError) -> None:
        # That all brokers are down says less than why the last one is.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._said is None:
            self._said = self._words(error)

    def _words(self, error: KafkaError) -> str:
        text = error.str()
        return text.replace(self._password, "…") if self._password else text

    def _unavailable(self, why: str) -> Unavailable:
        self._let_go()
        said = f": {self._said}" if self._said else ""
        return Unavailable(f"Kafka at {self._servers}: {why}{said}")

    def _find_topic(self) -> None:
        """A wrong address or a missing topic shall be known before the first event comes."""
        producer = self._made()
        until = time.monotonic() + min(self._seconds * 0.9, _TOPIC_SECONDS)
        while True:
            try:
                found = producer.list_topics(self._topic, timeout=self._seconds * 0.9).topics[self._topic]
            except KafkaException as error:
                self._poll(producer, 0)  # Hands out what error_cb has to say.
                raise self._unavailable(self._words(error.args[0])) from None
            if found.error is None:
                return
            if found.error.code() not in _MAY_COME or time.monotonic() > until:
                raise self._unavailable(f"the topic {self._topic} cannot be used, {self._words(found.error)}")
            self._poll(producer)

    def _poll(self, producer: Producer, seconds: float = _POLL_SECONDS) -> None:
        """Let reports come in."""
        try:
            producer.poll(seconds)
        except KafkaException as error:
            # A producer that can do no more says so here; which record it was, the reports say.
            self._on_error(error.args[0])

    def _deliver(self, events: Sequence[ReplicatedEvent]) -> None:
        lines = lines_of(events, self._line_of)
        reports = _Reports(len(lines))
        # A little less than whoever delivers waits, so that the reason told is ours.
        until = time.monotonic() + self._seconds * 0.9
        producer = self._made()
        for index, (event, line) in enumerate(lines):
            self._produce(producer, event, line, reports.taker(index), until)
        while reports.missing and reports.first_failed is None:
            self._poll(producer)
            if time.monotonic() > until:
                raise self._unavailable(f"{reports.missing} of {len(lines)} events not confirmed in time")
        if reports.first_failed is not None:
            self._failed(lines[reports.first_failed][0], reports.errors[reports.first_failed])

    def _produce(
        self,
        producer: Producer,
        event: ReplicatedEvent,
        line: bytes,
        taker: Callable[[KafkaError | None, Message], None],
        until: float,
    ) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            ("omnirelay.shard", event.shard.encode()),
            ("omnirelay.sequence", str(event.sequence).encode()),
            ("omnirelay.type", event.event_type.encode()),
        ]
        while True:
            try:
                producer.produce(self._topic, line, event.shard.encode(), headers=headers, on_delivery=taker)
            except BufferError:
                self._poll(producer)
                if time.monotonic() > until:
                    raise self._unavailable("it takes in nothing more") from None
            except KafkaException as error:
                self._failed(event, error.args[0])
            else:
                return

    def _failed(self, event: ReplicatedEvent, error: KafkaError) -> None:
        if error.code() in _REFUSED:
            self._let_go()
            raise SinkRefused(f"Kafka refused it: {self._words(error)}", sequence=event.sequence)
        raise self._unavailable(self._words(error))

    def _let_go(self) -> None:
        """What is still on its way is called back: sent later, it would come after its own repetition."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            producer.flush(0)


class _Reports:
    """What became of each record of a delivery."""

    def __init__(self, count: int) -> None:
        self.missing = count
        self.errors: dict[int, KafkaError] = {}

    @property
    def first_failed(self) -> int | None:
        return min(self.errors, default=None)

    def taker(self, index: int) -> Callable[[KafkaError | None, Message], None]:
        def take(error: KafkaError | None, _: Message) -> None:
            self.missing -= 1
            if error is not None:
                self.errors[index] = error

        return take
