"""What a store must be able to do to itself, so that the suite can test it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal

from omnirelay.log import EventLog

Region = Literal["header", "events", "chain", "first", "count", "epoch", "generation", "time", "row"]
"""A part of a stored frame that `LogStore.damage` can alter: two parts of its bytes, each column, or the whole row."""

REGIONS: Final[tuple[Region, ...]] = (
    "header",
    "events",
    "chain",
    "first",
    "count",
    "epoch",
    "generation",
    "time",
    "row",
)


class LogStore(ABC):
    """What a store can do to itself in a test. One object stands for one place where one log lies."""

    shard: str = "conformance"

    @abstractmethod
    def open(self) -> EventLog:
        """A writer on the log; it is created the first time. The one before was closed or crashed."""

    @abstractmethod
    def rival(self) -> EventLog:
        """One more writer beside those that are open, past any lock that would keep it out."""

    @abstractmethod
    def crash(self, log: EventLog) -> None:
        """Take the log away from a writer as the death of its process would: nothing more is written."""

    @abstractmethod
    def damage(self, last: int, region: Region) -> None:
        """Alter a part of the stored frame that ends at `last`, or remove it (`row`), while nobody has it open."""

    @abstractmethod
    def out_of_room(self) -> AbstractContextManager[None]:
        """Writes fail definitely for the length of the block."""

    @abstractmethod
    def failing_flush(self) -> AbstractContextManager[None]:
        """The next flush of an append fails, so that nobody knows what was kept."""

    @abstractmethod
    def open_backup(self, path: Path) -> EventLog:
        """A writer on what `backup` left at `path`."""

    def open_damaged(self) -> EventLog:
        """The log after `damage`, for `read` and `verify`; a store that refuses to open may open read-only here."""
        return self.open()
