"""How far a table has come: per shard the last event in it, committed together with the rows.

Every commit of ours carries this in its metadata. So there is no moment at which a table has rows and does not know of
it, and a pipeline that was killed finds out from the tables alone where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from omnirelay.errors import DataLoss

_FORMAT: Final = 1


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a shard ends in a table."""

    sequence: int
    chain: str = ""
    """The chain behind that event, in hexadecimal; the next segment has to continue it."""
    log_id: str = ""
    events: int = 0
    """How many events of the shard the table holds. Numbers of events jump with every generation: they do not tell."""

    @property
    def count(self) -> int:
        """The events; of tables that were made before they were counted, as many as their numbers leave room for."""
        return self.events or self.sequence


Progress: TypeAlias = Mapping[str, End]
NOTHING: Final[Progress] = {}


class Stamp(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a commit of ours says."""

    omnirelay: int
    shards: dict[str, End]
    laid: bool = False
    """Whether it only laid the rows anew: then what came before it brought the table here."""


_decode = msgspec.json.Decoder(Stamp).decode


def encode_progress(progress: Progress, *, laid: bool = False) -> str:
    return msgspec.json.encode(Stamp(_FORMAT, dict(sorted(progress.items())), laid)).decode()


def decode_progress(text: str | None) -> Progress | None:
    """How far a commit's metadata says that the table has come; None when it is not one of ours."""
    stamp = decode_stamp(text)
    return None if stamp is None else stamp.shards


def decode_stamp(text: str | None) -> Stamp | None:
    """What a commit's metadata says; None when the commit is not one of ours, as that of a format's own upkeep."""
    if text is None or '"omnirelay"' not in text:
        return None
    try:
        stamp = _decode(text)
    except msgspec.DecodeError as error:
        raise DataLoss(f"the metadata of a commit cannot be read: {error}", code="error.lakehouse.progress") from None
    if stamp.omnirelay > _FORMAT:
        raise DataLoss(
            f"the tables were written by a newer version (progress {stamp.omnirelay}, this one knows {_FORMAT});"
            " upgrade omnirelay",
            code="error.lakehouse.progress",
        )
    return stamp


def within(progress: Progress, limit: Progress) -> bool:
    """Whether it holds no event that the other does not."""
    return all(shard in limit and end.sequence <= limit[shard].sequence for shard, end in progress.items())


def commit_number(progress: Progress) -> int:
    """A number that rises with every commit: of two that do the same work at once, the table takes one."""
    return sum(end.sequence for end in progress.values())


def events_in(progress: Progress) -> int:
    """How many events a table holds."""
    return sum(end.count for end in progress.values())


def events_between(after: Progress, upto: Progress) -> int:
    """How many events a table holds that it did not hold before."""
    return sum(end.count - (after[shard].count if shard in after else 0) for shard, end in upto.items())


def sequences(progress: Progress) -> dict[str, int]:
    return {shard: end.sequence for shard, end in progress.items()}
