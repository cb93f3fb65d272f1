"""`Offset`: how far a stream has read each shard, and of which log. As Spark keeps it in a checkpoint:

    {"orders": {"sequence": 12000, "logId": "3f0c…"}}

Numbers say nothing of the log that they count in: another node's log of the same shard has the same ones. Checkpoints
of earlier versions, and shards of nodes that do not tell their log, have the number alone: {"orders": 12000}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from omnirelay.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from omnirelay.lakehouse.source_pieces import Extent


class _Place(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    sequence: int
    log_id: str


class Offset(msgspec.Struct, frozen=True):
    sequences: dict[str, int]
    log_ids: dict[str, str] = {}
    """Of those shards whose log is known."""

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Offset:
        """Raises InvalidArgument for what no stream of this source has stored."""
        try:
            places = msgspec.convert(dict(stored), dict[str, int | _Place])
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"the checkpoint is not one of omnirelay: {error}", field="checkpoint") from None
        return cls(
            {shard: each if isinstance(each, int) else each.sequence for shard, each in places.items()},
            {shard: each.log_id for shard, each in places.items() if not isinstance(each, int)},
        )

    def stored(self) -> dict[str, Any]:
        """As Spark keeps it; the same place gives the same text. A shard of which nothing was read is left out."""
        return {
            shard: {"sequence": sequence, "logId": self.log_ids[shard]} if shard in self.log_ids else sequence
            for shard, sequence in sorted(self.sequences.items())
            if sequence
        }

    def moved_to(self, ends: Mapping[str, int], log_ids: Mapping[str, str]) -> Offset:
        """A shard never goes back, also when it is not to be seen any more."""
        further = {shard: max(end, self.sequences.get(shard, 0)) for shard, end in ends.items()}
        return Offset(self.sequences | further, {**self.log_ids, **log_ids})

    def check_logs(self, found: Mapping[str, Extent]) -> None:
        """Raises FailedPrecondition when a shard has another log now than the one that was read."""
        for shard, extent in found.items():
            read = self.log_ids.get(shard)
            if read is not None and extent.log_id is not None and read != extent.log_id:
                raise FailedPrecondition(
                    f"the checkpoint has read the log {read} of {shard!r} up to event {self.sequences[shard]}, and this"
                    f" is the log {extent.log_id}: give the stream what it has read, or begin with a new checkpoint",
                    shard=shard,
                    sequence=self.sequences[shard],
                )


def log_ids_of(found: Mapping[str, Extent]) -> dict[str, str]:
    return {shard: extent.log_id for shard, extent in found.items() if extent.log_id is not None}
