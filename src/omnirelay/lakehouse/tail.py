"""The live tail: events that a node has and the segments do not, read over HTTP as Arrow.

What a node sends has instants as text. It is brought back into the form of the log, so that tail and segments give the
same rows. What only frames know is not there: `region`, `queue_*`, `frame*` and `chain` are null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from omnirelay.client.addresses import without_password
from omnirelay.client.failures import error_of
from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.errors import OutOfRange, Unavailable
from omnirelay.wire.answers import ErrorBody
from omnirelay.wire.events import INSTANTS
from omnirelay.wire.instants import read_instant

if TYPE_CHECKING:
    import httpx
    import pyarrow as pa

BATCH_EVENTS: Final = 8_192

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Component(msgspec.Struct, rename="camel"):
    name: str
    last_sequence: int | None = None
    log_id: str | None = None
    generation: int | None = None


class _About(msgspec.Struct):
    components: list[_Component]


class Live(msgspec.Struct, frozen=True):
    """A shard as a node has it. Older nodes do not say which log, and which generation of it."""

    last: int
    log_id: str | None = None
    generation: int | None = None


class TailEvent(msgspec.Struct, frozen=True, gc=False):
    """An event as `segments.arrow.to_arrow` takes it."""

    shard: str
    data: bytes
    region: None = None
    pending: None = None
    active: None = None


def live_shards(url: str, shards: Collection[str] | None = None) -> dict[str, Live]:
    """Every shard that a node serves. Raises Unavailable, also while one of `shards` is starting.

    Without names that is any of them; others that are starting are left out.
    """
    with _client(url) as client, _reaching(url):
        response = client.get("/omnirelay/introspect")
        if response.status_code != 200:
            raise _refusal(url, response.status_code, response.content)
        try:
            about = msgspec.json.decode(response.content, type=_About)
        except msgspec.DecodeError:
            raise Unavailable(f"what answers at {without_password(url)} is not a node") from None
    for each in about.components:
        # Left out, it would pass for a shard that has nothing new.
        if each.last_sequence is None and (shards is None or each.name in shards):
            raise Unavailable(f"the shard {each.name!r} of {_node(url)} does not serve yet; try again")
    return {
        each.name: Live(each.last_sequence, each.log_id, each.generation)
        for each in about.components
        if each.last_sequence is not None
    }


def first_behind(url: str, shard: str, after: int) -> int | None:
    """The number of the first event behind this one; it is not the next number where a new generation jumps."""
    for number, document in _stream(url, shard, after + 1, None):
        return None if document is None else number
    return None


def tail_batches(
    url: str,
    shard: str,
    first: int,
    last: int,
    types: frozenset[str] | None = None,
    *,
    log_id: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Events from `first` to `last`, all of them. Raises OutOfRange when the node does not reach `last`, no longer
    `first`, or has another log than `log_id`, and Unavailable when it stops on the way: Spark tries the task again.
    """
    from omnirelay.segments.arrow import to_arrow

    live = live_shards(url, [shard]).get(shard)
    reached = None if live is None else live.last
    is_another = live is not None and None not in (log_id, live.log_id) and live.log_id != log_id
    if reached is None or reached < last or is_another:
        raise OutOfRange(
            f"{_node(url)} has {shard!r} up to event {reached}, {last} was there before: is it another node?",
            shard=shard,
            sequence=last,
        )
    events: list[Any] = []
    number = first - 1
    for number, document in _stream(url, shard, first, types):
        if number > last or document is None:
            break
        events.append(TailEvent(shard, stored_of(document)))
        if len(events) >= BATCH_EVENTS:
            yield to_arrow(events)
            events = []
        if number == last:
            break
    if number < last:
        raise Unavailable(f"{_node(url)} sent {shard!r} up to event {number} only, and not to {last}")
    if events:
        yield to_arrow(events)


def stored_of(document: bytes | msgspec.Raw) -> bytes:
    """The bytes of an event in the log, from what readers outside get: the opposite of `wire.events.readable`."""
    fields: dict[str, Any] = {}
    for name, value in _fields(document).items():
        if name in INSTANTS:
            fields[name] = _milliseconds(name, value)
        elif name == "items":
            fields[name] = [msgspec.Raw(stored_of(each)) for each in _elements(value)]
        else:
            fields[name] = value
    return _encode(fields)


def _milliseconds(name: str, value: msgspec.Raw) -> Any:
    found = _decode(value)
    if type(found) is str:
        return read_instant(name, found)
    if type(found) is list:
        return [read_instant(name, each) if type(each) is str else each for each in found]
    return value


def _stream(url: str, shard: str, first: int, types: frozenset[str] | None) -> Iterator[tuple[int, bytes | None]]:
    """Events from `first` to what is there now, then its number and None.

    It fails when the connection breaks or ends before that: a node that stops, or a proxy before it, may close it well.
    """
    query = {"from": str(first), "untilCaughtUp": "true"}
    # A node refuses a type that it does not know. Whoever looks for one is right to find nothing, as in segments.
    if types is not None and types <= EVENT_NUMBERS.keys():
        query["types"] = ",".join(types)
    path = f"/v1/{quote(shard, safe='')}/watch"
    headers = {"accept": "text/event-stream"}
    with (
        _client(url) as client,
        _reaching(url),
        client.stream("GET", path, params=query, headers=headers) as response,
    ):
        if response.status_code != 200:
            raise _refusal(url, response.status_code, response.read())
        number, kind = first - 1, b""
        for line in _lines(response.iter_bytes()):
            if line.startswith(b"data:"):
                if kind == b"error":
                    raise error_of(msgspec.json.decode(line[5:], type=ErrorBody))
                if kind != b"end":
                    yield number, line[5:].strip()
            elif line.startswith(b"id:"):
                number = int(line[3:])
            elif line.startswith(b"event:"):
                kind = line[6:].strip()
            elif not line and kind == b"end":
                yield number, None
                return
        raise Unavailable(f"{_node(url)} ended the stream of {shard!r} behind event {number}, before its last")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines that end with a line feed and nothing else: JSON may hold other characters that end lines elsewhere."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _node(url: str) -> str:
    return f"the node at {without_password(url)}"


def _client(url: str) -> httpx.Client:
    import httpx

    # A comment comes every 15 s.
    return httpx.Client(base_url=url, timeout=httpx.Timeout(10, read=60))


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise Unavailable(f"cannot read from {_node(url)}: {str(error) or type(error).__name__}") from error


def _refusal(url: str, status: int, body: bytes) -> Exception:
    try:
        return error_of(msgspec.json.decode(body, type=ErrorBody))
    except msgspec.DecodeError:
        return Unavailable(f"what answers at {without_password(url)} says HTTP {status}")
