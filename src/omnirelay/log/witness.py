"""The witness: a side file that remembers how far the log had come.

A log alone cannot tell that its tail was cut or that an older copy was put in its place. The witness can: it holds a
position that was durable in the log before the witness was written, so a log that lacks it has lost something. It is
never ahead of the log and at most about a second behind.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from omnirelay.errors import LogDamaged
from omnirelay.log.base import Position
from omnirelay.log.failpoints import hit
from omnirelay.log.files import replace_file


class Witness(msgspec.Struct, frozen=True, rename="camel"):
    """What the file holds, as JSON. `chain` is hexadecimal."""

    shard: str
    log_id: str
    generation: int
    sequence: int
    chain: str
    time: int

    @property
    def position(self) -> Position:
        return Position(self.sequence, bytes.fromhex(self.chain))


_decoder = msgspec.json.Decoder(Witness)


def write_witness(path: Path, witness: Witness) -> None:
    """Replace the file durably. The position in it MUST be durable in the log already."""
    hit("log.witness.before_write")
    replace_file(path, msgspec.json.encode(witness) + b"\n")
    hit("log.witness.written")


def read_witness(path: Path) -> Witness | None:
    """None when there is none. Raises LogDamaged when the file is not a witness: it is replaced whole, so that is
    never a crash of ours.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        witness = _decoder.decode(data)
        if len(bytes.fromhex(witness.chain)) != 32:
            raise ValueError("the chain is not 32 bytes")
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise LogDamaged(
            f"the witness {path} cannot be read: {error}; put a good copy back, or accept the loss of its evidence"
            " (omnirelay log recover)",
            file=str(path),
        ) from error
    return witness
