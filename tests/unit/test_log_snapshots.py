"""Snapshot files: complete when they have their name, and every byte is checked when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirelay.errors import LogDamaged
from omnirelay.log.snapshots import prune_snapshots, read_snapshot, write_snapshot

CHUNKS = [b"first", b"", b"third" * 1000]


def write(directory: Path, sequence: int = 4711) -> Path:
    path, _ = write_snapshot(directory, sequence, b"header", CHUNKS)
    return directory / path


def read(directory: Path, sequence: int = 4711) -> tuple[bytes, list[bytes]]:
    header, chunks = read_snapshot(directory, f"snapshots/{sequence:020d}")
    return header, list(chunks)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path, size = write_snapshot(tmp_path, 4711, b"header", iter(CHUNKS))
    assert path == "snapshots/00000000000000004711"
    assert size == sum(file.stat().st_size for file in (tmp_path / path).iterdir())
    assert read(tmp_path) == (b"header", CHUNKS)
    assert [entry.name for entry in (tmp_path / "snapshots").iterdir()] == ["00000000000000004711"]


def test_a_snapshot_of_the_same_sequence_is_replaced(tmp_path: Path) -> None:
    write(tmp_path)
    write_snapshot(tmp_path, 4711, b"other", [b"one"])
    assert read(tmp_path) == (b"other", [b"one"])


def test_a_snapshot_without_chunks_is_one(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 1, b"", [])
    assert read(tmp_path, 1) == (b"", [])


def test_nothing_stays_of_a_snapshot_that_could_not_be_made(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"first"
        raise RuntimeError("the state changed under us")

    with pytest.raises(RuntimeError):
        write_snapshot(tmp_path, 4711, b"header", failing())
    assert list((tmp_path / "snapshots").iterdir()) == []


def test_what_a_crash_left_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    left = tmp_path / "snapshots" / "00000000000000004711.tmp"
    left.mkdir(parents=True)
    (left / "chunk-000099").write_bytes(b"old")
    write(tmp_path)
    assert read(tmp_path) == (b"header", CHUNKS)
    assert not left.exists()


@pytest.mark.parametrize("name", ["header", "chunk-000000", "chunk-000002", "manifest.json"])
@pytest.mark.parametrize("damage", ["flipped", "shortened", "lengthened", "missing"])
def test_every_damage_is_found_and_the_file_named(tmp_path: Path, name: str, damage: str) -> None:
    file = write(tmp_path) / name
    contents = file.read_bytes()
    match damage:
        case "flipped":
            file.write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))
        case "shortened":
            file.write_bytes(contents[:-1])
        case "lengthened":
            file.write_bytes(contents + b"!")
        case "missing":
            file.unlink()
    with pytest.raises(LogDamaged) as refusal:
        read(tmp_path)
    assert refusal.value.details["file"] == str(file)


def test_a_file_that_does_not_belong_there_is_named(tmp_path: Path) -> None:
    stranger = write(tmp_path) / "chunk-000003"
    stranger.write_bytes(b"")
    with pytest.raises(LogDamaged) as refusal:
        read(tmp_path)
    assert refusal.value.details["file"] == str(stranger)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"version":1', b'"version":2'), (b'"sequence":4711', b'"sequence":4712'), (b"chunk-000001", b"../000000001")],
)
def test_a_manifest_of_something_else_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    manifest = write(tmp_path) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(old, new))
    with pytest.raises(LogDamaged):
        read(tmp_path)


def test_a_snapshot_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogDamaged, match=r"manifest\.json"):
        read(tmp_path)


def test_pruning_keeps_what_it_is_told_and_what_is_no_snapshot(tmp_path: Path) -> None:
    assert prune_snapshots(tmp_path, set()) == []
    for sequence in (1, 2, 3):
        write(tmp_path, sequence)
    (tmp_path / "snapshots" / "00000000000000000004.tmp").mkdir()
    (tmp_path / "snapshots" / "notes").mkdir()
    kept = {"snapshots/00000000000000000002"}
    assert prune_snapshots(tmp_path, kept) == [
        "snapshots/00000000000000000001",
        "snapshots/00000000000000000003",
        "snapshots/00000000000000000004.tmp",
    ]
    assert sorted(entry.name for entry in (tmp_path / "snapshots").iterdir()) == ["00000000000000000002", "notes"]
    assert read(tmp_path, 2) == (b"header", CHUNKS)
