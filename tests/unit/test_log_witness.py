"""The witness: replaced whole, read back exactly, and never mistaken for one when it is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from omnirelay.errors import LogDamaged
from omnirelay.log import Position
from omnirelay.log.failpoints import armed
from omnirelay.log.witness import Witness, read_witness, write_witness

WITNESS = Witness("orders", "0123abcd", 2, 4711, "ab" * 32, 1_700_000_000_000)


def test_what_was_witnessed_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "leases.witness"
    assert read_witness(path) is None
    write_witness(path, WITNESS)
    assert read_witness(path) == WITNESS
    assert WITNESS.position == Position(4711, b"\xab" * 32)
    assert [entry.name for entry in tmp_path.iterdir()] == ["leases.witness"]


def test_the_file_is_json_that_other_programs_can_read(tmp_path: Path) -> None:
    write_witness(tmp_path / "witness", WITNESS)
    assert msgspec.json.decode((tmp_path / "witness").read_bytes()) == {
        "shard": "orders",
        "logId": "0123abcd",
        "generation": 2,
        "sequence": 4711,
        "chain": "ab" * 32,
        "time": 1_700_000_000_000,
    }


def test_a_crash_before_the_rename_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    write_witness(path, WITNESS)
    (tmp_path / "witness.tmp").write_bytes(b'{"half')
    assert read_witness(path) == WITNESS
    newer = msgspec.structs.replace(WITNESS, sequence=4712)
    write_witness(path, newer)
    assert read_witness(path) == newer


def test_its_failpoints_stand_on_both_sides_of_the_write(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    seen: list[bool] = []
    with (
        armed("log.witness.before_write", lambda: seen.append(path.exists())),
        armed("log.witness.written", lambda: seen.append(path.exists())),
    ):
        write_witness(path, WITNESS)
    assert seen == [False, True]


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        msgspec.json.encode(msgspec.structs.replace(WITNESS, chain="ab")),
        msgspec.json.encode(msgspec.structs.replace(WITNESS, chain="no hex")),
        msgspec.json.encode(WITNESS)[:-2],
    ],
)
def test_a_file_that_is_no_witness_is_refused(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "witness"
    path.write_bytes(contents)
    with pytest.raises(LogDamaged) as refusal:
        read_witness(path)
    assert refusal.value.details["file"] == str(path)
    assert path.read_bytes() == contents
