"""`Commits`: a delivery of whole commits, for sinks that need not take them apart.

Making an object of every event costs more than all that a sink of files or segments does with it. So the events are
made only for who asks for them; whoever works on text or on frames gets those.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Final, overload

import msgspec

from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_header
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.made import Made
from omnirelay.wire.event_text import lines_of
from omnirelay.wire.event_uniform import Places, Uniform, places_of, uniform_of

PIECE_BYTES: Final = 512 * 1024
"""Of text that is worked on at a stretch, but for commits that have more."""


class Tag(msgspec.Struct, rename="camel", gc=False):
    """What every event says of itself."""

    event_type: str
    sequence_number: int
    timestamp: int


class _Tags(msgspec.Struct, gc=False):
    events: list[Tag]


_read_tags = msgspec.json.Decoder(_Tags).decode
_TYPE = attrgetter("event_type")
_BEGINNING: Final = re.compile(rb'\{"eventType":"(\w+)"')
"""Of an event in the log."""
_ANY_BEGINNING: Final = b'{"eventType":"'


class Commits(Sequence[ReplicatedEvent]):
    """Consecutive frames of one log, without the events up to `after`, which only the first of them may have.

    What is found out about them is kept. All of it takes long for many events: call it in a thread.
    """

    def __init__(self, frames: Sequence[Frame], region: str, after: int) -> None:
        self.frames = tuple(frame for frame in frames if frame.last > after)
        self.region = region
        self.after = after
        self.made: Made | None = None
        """What their sink writes, once it is made."""
        self._skipped = self._count_skipped()
        self._parts: list[bytes | Uniform] | None = None

    def _count_skipped(self) -> int:
        if not self.frames or self.frames[0].first > self.after:
            return 0
        first = self.frames[0]
        if is_contiguous(first):
            return self.after - first.first + 1
        return sum(tag.sequence_number <= self.after for tag in _read_tags(first.data).events)

    def behind(self, sequence: int) -> Commits:
        """What comes after that event."""
        return self if sequence <= self.after else Commits(self.frames, self.region, sequence)

    def followed_by(self, later: Commits) -> Commits:
        return Commits((*self.frames, *later.frames), self.region, self.after)

    @property
    def first(self) -> int:
        """The number of the first event."""
        frame = self.frames[0]
        if not self._skipped or is_contiguous(frame):
            return frame.first + self._skipped
        return self.tags[0].sequence_number

    @property
    def last(self) -> int:
        return self.frames[-1].last

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return sum(len(frame.data) for frame in self.frames)

    # -- without events --------------------------------------------------------------------------

    @cached_property
    def tags(self) -> list[Tag]:
        return [tag for frame in self.frames for tag in _read_tags(frame.data).events][self._skipped :]

    def counts(self) -> list[int]:
        """How many events of each frame."""
        counts = [frame.count for frame in self.frames]
        counts[0] -= self._skipped
        return counts

    def tags_of(self, at: int) -> list[Tag]:
        """Those of one frame."""
        return _read_tags(self.frames[at].data).events[0 if at else self._skipped :]

    def types(self) -> Counter[str]:
        """How many events of each type."""
        if self.made is not None:
            return Counter(self.made.types)
        types: Counter[str] = Counter()
        parts: Sequence[bytes | Uniform | None] = self._parts or [None] * len(self.frames)
        for at, (frame, count, part) in enumerate(zip(self.frames, self.counts(), parts, strict=True)):
            event_type = part.event_type if isinstance(part, Uniform) else _only_type(frame)
            types.update(map(_TYPE, self.tags_of(at)) if event_type is None else {event_type: count})
        return types

    def parts(self) -> Sequence[bytes | Uniform]:
        """The documents of one frame after the other as JSON, one line each with a line feed behind it."""
        # Not a cached property: those of all objects wait for one lock.
        if self._parts is None:
            self._parts = [self._part(at) for at in range(len(self.frames))]
        return self._parts

    def _part(self, at: int) -> bytes | Uniform:
        frame, skipped = self.frames[at], 0 if at else self._skipped
        uniform = None if skipped else uniform_of(frame.data, frame.count, self.region)
        return self.lines_of(at) if uniform is None else uniform

    def places_of(self, at: int) -> Places | Uniform | None:
        """Where the documents of a frame stand in it, or lines of them where that is not enough to make some; None when
        they differ, or their numbers jump.
        """
        frame = self.frames[at]
        if not is_contiguous(frame) or (self._skipped and not at):
            return None
        return places_of(frame.data, frame.count, self.region)

    def lines_of(self, at: int) -> bytes:
        """The documents of a frame, whatever they are: what `parts` has of it."""
        header = decode_header(self.frames[at].data)
        stored = header.events[0 if at else self._skipped :]
        return lines_of(stored, shard=header.shard, region=self.region, pending=header.pending, active=header.active)

    def pieces(self) -> Sequence[bytes]:
        """All documents as JSON, one line each with a line feed behind it, cut up between some of the frames.

        Whatever is done with all of a long text at once is done with the interpreter lock held, and callers of the node
        wait for it.
        """
        if self.made is not None and self.made.form == "lines":
            return self.made.parts
        return list(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        gathered: list[bytes] = []
        size = 0
        for part in self.parts():
            lines = part.lines if isinstance(part, Uniform) else part
            gathered.append(lines)
            size += len(lines)
            if size >= PIECE_BYTES:
                yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
                gathered, size = [], 0
        if gathered:
            yield b"".join(gathered)

    # -- as events -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(frame.count for frame in self.frames) - self._skipped

    @overload
    def __getitem__(self, index: int) -> ReplicatedEvent: ...
    @overload
    def __getitem__(self, index: slice) -> list[ReplicatedEvent]: ...
    def __getitem__(self, index: int | slice) -> ReplicatedEvent | list[ReplicatedEvent]:
        return self._events[index]

    def __iter__(self) -> Iterator[ReplicatedEvent]:
        return iter(self._events)

    @cached_property
    def _events(self) -> list[ReplicatedEvent]:
        events: list[ReplicatedEvent] = []
        after = self.after
        for frame in self.frames:
            events += events_of_frame(frame, self.region, after)
            after = frame.last
        return events


def _only_type(frame: Frame) -> str | None:
    """The type of all events; None when there are several, or when it takes more than counting to tell.

    Most commits are of one type, and to count is far quicker than to read.
    """
    begins = _BEGINNING.search(frame.data)
    # Whatever begins like an event is one, and all are of this type; else one may stand inside of another.
    if begins is None or {frame.data.count(each) for each in (_ANY_BEGINNING, begins[0])} != {frame.count}:
        return None
    return begins[1].decode()


def is_contiguous(frame: Frame) -> bool:
    """Numbers jump within a frame only where a generation starts."""
    return frame.count == frame.last - frame.first + 1
