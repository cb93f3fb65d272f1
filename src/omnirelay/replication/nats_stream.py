"""Events into a stream of NATS JetStream, one message each.

    subject                {subject}.{shard}
    Nats-Msg-Id            {subject}.{shard}/{log}/{sequence}: a stream leaves out what it has had a short while ago
    OmniRelay-Shard, OmniRelay-Sequence, OmniRelay-Event-Type

A delivery counts when the stream has acknowledged every message of it. They are sent without waiting for each other:
the stream takes them in the order of the connection, so that what it has of a delivery that failed is its beginning.

A stream remembers ids for longer than messages: of one that was purged it leaves out what comes again, and calls that
taken. So where it left something out, it is asked whether that is still there; if not, all of the delivery is sent once
more under other ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

from omnirelay.errors import Unavailable
from omnirelay.replication.addresses import default_stream, default_subject, is_address, scheme_of
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.extras import extra
from omnirelay.replication.files import lines_of, whole_event
from omnirelay.replication.loops import OneLoop
from omnirelay.replication.nats_acknowledgements import Acknowledgements
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import SinkRefused, SinkUnusable

with extra("nats"):
    from nats.aio.client import Client
    from nats.errors import Error as NatsError
    from nats.js import JetStreamContext
    from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
    from nats.js.errors import NotFoundError

_log = logging.getLogger("omnirelay.replication")

_CLOSE_SECONDS = 1.0
_HEADER_BYTES = 1_024
"""More than the headers of a message ever have; they count towards its size."""

Line = tuple[ReplicatedEvent, bytes]


class NatsSink:
    """One connection per shard, made anew when it breaks."""

    rebuilds_state = False

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        subject: str | None = None,
        stream: str | None = None,
        create: bool = True,
        line_of: Callable[[ReplicatedEvent], bytes | None] = whole_event,
        timeout_ms: int = FollowSettings().timeout_ms,
    ) -> None:
        """`url` names one server or several with commas between them, and the user. Without a user `password` is a
        token. `create`: the stream is made when it is missing, with its messages in files. `line_of` makes the message
        of an event, None for one that has none.
        """
        if not is_address("nats", url):
            raise SinkUnusable("the url of a nats sink begins with nats:// or tls://")
        self._servers = _servers(url)
        self._credentials = _credentials(url, password)
        self._password = password
        self._root = subject or default_subject("nats")
        self._subject = self._root
        self._stream = stream or default_stream("nats")
        self._create = create
        self._line_of = line_of
        self._seconds = timeout_ms / 1000
        self._connection: Client | None = None
        self._context: JetStreamContext | None = None
        self._acknowledgements = Acknowledgements()
        self._said: str | None = None
        self._size_max = 0
        self._one_by_one = False
        self._keeps = False
        """Messages stay until they are too old or too many, or somebody purges them."""
        self._log_id = ""
        self._ids = ""
        """What ids begin with."""
        self._loop = OneLoop("omnirelay-nats-sink")

    def of_log(self, log_id: str) -> None:
        """Of another log the same numbers are other events."""
        self._log_id = log_id

    async def open(self, shard: str) -> int | None:
        self._subject = f"{self._root}.{shard}"
        self._ids = f"{self._subject}/{self._log_id}"
        if not all(self._subject.split(".")):
            raise SinkUnusable(f"{self._subject} is no subject: the shard {shard} needs a name without empty parts")
        await self._loop.run(lambda: self._explained(self._connected))
        return None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        await self._loop.run(lambda: self._explained(lambda: self._publish(events)))

    async def close(self) -> None:
        if self._connection is not None:
            await self._loop.run(self._disconnect)
        self._loop.close()

    # -- in the sink's own loop ------------------------------------------------------------------

    async def _explained(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Have it done in time; what the library raises is said in our words."""
        try:
            # A little less than whoever delivers waits, so that the reason told is ours.
            async with asyncio.timeout(self._seconds * 0.9):
                await work()
        except (SinkRefused, SinkUnusable):
            raise
        except (NatsError, OSError) as error:
            # What the server said before it hung up tells more than that it did; a timeout is an OSError, too.
            said = (
                self._said
                or getattr(error, "description", None)
                or str(error)
                or f"no acknowledgement within {self._seconds * 0.9:g} s"
            )
            await self._disconnect()
            raise Unavailable(f"NATS at {', '.join(self._servers)}: {self._without_password(said)}") from None
        except BaseException:
            await self._disconnect()
            raise

    def _without_password(self, text: str) -> str:
        return text.replace(self._password, "…") if self._password else text

    async def _connected(self) -> Client:
        if self._connection is not None and self._connection.is_connected:
            return self._connection
        await self._disconnect()
        self._said = None
        # Known before it is connected: when that fails half-way, there is something to close.
        self._connection = connection = Client()
        await connection.connect(
            self._servers,
            name="omnirelay",
            connect_timeout=max(1, int(self._seconds)),
            # Whoever delivers tries again, and decides when.
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            ping_interval=10,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            **self._credentials,
        )
        self._context = context = connection.jetstream(timeout=self._seconds)
        await self._find_stream(context, connection.max_payload)
        await self._acknowledgements.listen(connection)
        return connection

    async def _on_error(self, error: Exception) -> None:
        self._said = str(error) or type(error).__name__

    async def _on_closed(self) -> None:
        self._acknowledgements.lose()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connection.close()
            except (NatsError, OSError):
                return  # A server that hangs takes no farewell either.

    async def _find_stream(self, context: JetStreamContext, payload_max: int) -> None:
        """Learn whether messages have to go one by one, and how large each may be."""
        try:
            found = (await context.stream_info(self._stream)).config
        except NotFoundError:
            if not self._create:
                raise Unavailable(f"there is no stream {self._stream}, and create = false") from None
            wanted = StreamConfig(name=self._stream, subjects=[f"{self._root}.>"], storage=StorageType.FILE)
            found = (await context.add_stream(wanted)).config
        if not any(_covers(pattern, self._subject) for pattern in found.subjects or ()):
            raise SinkUnusable(
                f"the stream {self._stream} does not take {self._subject}: its subjects are"
                f" {', '.join(found.subjects or ()) or 'none'}"
            )
        sizes = (payload_max, found.max_msg_size or -1)
        self._size_max = min(size for size in sizes if size > 0) - _HEADER_BYTES
        # A stream that refuses what is too much may refuse one message and take the next; then none may follow it.
        limited = any((limit or -1) > 0 for limit in (found.max_msgs, found.max_bytes, found.max_msgs_per_subject))
        self._one_by_one = found.discard == DiscardPolicy.NEW and limited
        self._keeps = found.retention == RetentionPolicy.LIMITS

    async def _publish(self, events: Sequence[ReplicatedEvent]) -> None:
        connection = await self._connected()
        lines = lines_of(events, self._line_of)
        for event, line in lines:
            if len(line) > self._size_max:
                # Found out before anything is sent: what is behind it must not get there first.
                message = f"its {len(line)} bytes are more than the {self._size_max} that {self._stream} takes"
                raise SinkRefused(message, sequence=event.sequence)
        at_once = 1 if self._one_by_one else max(1, len(lines))
        for start in range(0, len(lines), at_once):
            await self._take_in(connection, lines[start : start + at_once])

    async def _take_in(self, connection: Client, lines: Sequence[Line]) -> None:
        await self._acknowledged(connection, lines)
        left_out = self._acknowledgements.first_left_out
        if left_out is None or not self._keeps:
            return
        assert self._context is not None
        found = await self._context.stream_info(self._stream, subjects_filter=self._subject)
        if left_out < found.state.first_seq or not found.state.subjects:
            _log.warning("nats_stream_purged", extra={"stream": self._stream, "subject": self._subject})
            self._ids = f"{self._subject}/{self._log_id}/behind-{found.state.last_seq}"
            await self._acknowledged(connection, lines)

    async def _acknowledged(self, connection: Client, lines: Sequence[Line]) -> None:
        all_taken = self._acknowledgements.expect(len(lines))
        for event, line in lines:
            reply = self._acknowledgements.next_reply()
            await connection.publish(self._subject, line, reply=reply, headers=self._headers(event))
        await all_taken

    def _headers(self, event: ReplicatedEvent) -> dict[str, str]:
        return {
            # Should another stream take the subject over, this one is not to believe itself acknowledged.
            "Nats-Expected-Stream": self._stream,
            "Nats-Msg-Id": f"{self._ids}/{event.sequence}",
            "OmniRelay-Shard": event.shard,
            "OmniRelay-Sequence": str(event.sequence),
            # A type of a later version may have a name that no header takes.
            "OmniRelay-Event-Type": _quoted(event.event_type),
        }


@lru_cache(maxsize=256)
def _quoted(event_type: str) -> str:
    return quote(event_type, safe=" ")


def _servers(url: str) -> list[str]:
    """Each server with its scheme, and without the user."""
    scheme = scheme_of(url)
    hosts = url.partition("://")[2].rstrip("/").split(",")
    bare = (host.rpartition("://")[2].rpartition("@")[2] for host in hosts)
    return [f"{scheme}://{host.strip()}" for host in bare]


def _credentials(url: str, password: str | None) -> dict[str, Any]:
    user = urlsplit(url).username
    if user is None:
        return {} if password is None else {"token": password}
    return {"user": user, "password": password or ""}


def _covers(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern of a stream names."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, word in enumerate(wanted):
        if word == ">":
            return len(given) > index
        if index >= len(given) or word not in ("*", given[index]):
            return False
    return len(wanted) == len(given)
