"""The other process of the workshop: `python -m omnirelay.replication.workshop_process FILE FORM VERSION`.

It makes what sinks write of commits that the node sends it, and changes nothing anywhere. It ends when the node closes
its end, or is gone, and at once when the node is of another version: one may have been installed while it runs, and
what that makes need not be what this node writes.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from omnirelay._version import __version__
from omnirelay.engine.process import tune_process
from omnirelay.log.base import Frame
from omnirelay.replication.commits import Commits
from omnirelay.replication.made import Form, Made, Run
from omnirelay.replication.making import load_segments, make
from omnirelay.replication.parcels import TICKET, Parcels


class SentFrame(msgspec.Struct, array_like=True, gc=False):
    """A frame without its bytes, which are in the parcel."""

    first: int
    last: int
    count: int
    epoch: int
    generation: int
    time_ms: int
    size: int
    chain: bytes

    @classmethod
    def of(cls, frame: Frame) -> SentFrame:
        return cls(
            frame.first,
            frame.last,
            frame.count,
            frame.epoch,
            frame.generation,
            frame.time_ms,
            len(frame.data),
            frame.chain,
        )

    def with_data(self, data: bytes) -> Frame:
        return Frame(self.first, self.last, self.count, self.epoch, self.generation, self.time_ms, data, self.chain)


class Order(msgspec.Struct, array_like=True):
    form: Form
    region: str
    after: int
    frames: Sequence[SentFrame]


class Answer(msgspec.Struct, array_like=True):
    sizes: Sequence[int]
    types: dict[str, int]
    runs: Sequence[Run]
    failure: str | None = None

    def made(self, form: Form, parts: Sequence[bytes]) -> Made:
        return Made(form, parts, self.types, self.runs)


READY: Final = TICKET.pack(0, 0)
"""What the process says when it has begun."""

read_order = msgspec.msgpack.Decoder(Order).decode
read_answer = msgspec.msgpack.Decoder(Answer).decode
encode = msgspec.msgpack.Encoder().encode


def _answered(parcels: Parcels, ticket: bytes) -> bytes:
    order = read_order(parcels.note(ticket))
    pieces = parcels.pieces([frame.size for frame in order.frames])
    frames = [frame.with_data(data) for frame, data in zip(order.frames, pieces, strict=True)]
    made = make(order.form, Commits(frames, order.region, order.after))
    answer = Answer([len(part) for part in made.parts], made.types, made.runs)
    return parcels.put(made.parts, encode(answer))


def _failed(parcels: Parcels, error: Exception) -> bytes:
    return parcels.put((), encode(Answer((), {}, (), f"{type(error).__name__}: {error}")))


def serve(parcels: Parcels, orders: int, answers: int) -> None:
    """Until the other side is gone."""
    os.write(answers, READY)
    while len(ticket := os.read(orders, TICKET.size)) == TICKET.size:
        try:
            answer = _answered(parcels, ticket)
        except Exception as error:  # The node makes it itself then, and finds out what is wrong.
            answer = _failed(parcels, error)
        os.write(answers, answer)
        gc.collect()  # While the node is busy with the answer; there is next to nothing left of it here.


def main() -> None:
    if sys.argv[3] != __version__:
        sys.exit("the node is of another version")
    tune_process()
    if sys.argv[2] in ("parquet", "jsonl"):
        # Arrow imports it when it is there and needs it for nothing that is done here; it is half of Arrow's start.
        sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
        load_segments()  # Before the first order comes, if it takes a moment.
    # All that is here by now stays, and what is made later makes no cycles worth looking for in the middle of it.
    gc.freeze()
    gc.disable()
    with suppress(BrokenPipeError):  # The node is gone before it got an answer.
        serve(Parcels(int(sys.argv[1])), sys.stdin.fileno(), sys.stdout.fileno())
    # Without taking everything down in order, which takes a while and changes nothing.
    os._exit(0)


if __name__ == "__main__":
    main()
