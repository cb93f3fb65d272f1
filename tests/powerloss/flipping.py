"""Where the parts of a log lie in its files, and what opening it makes of a changed byte."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw
import msgspec

from omnirelay.core.snapshot import digest
from omnirelay.engine.recovery import rebuild
from omnirelay.errors import DataLoss, LogDamaged
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.connection import PAGE_SIZE
from tests.powerloss.recording import NAMESPACE, Known

WAL_HEADER_BYTES = 32
WAL_FRAME_BYTES = 24 + PAGE_SIZE


class Region(NamedTuple):
    """A stretch of bytes of one file that mean one thing."""

    name: str
    file: str
    start: int
    size: int


class Verdict(msgspec.Struct):
    """What became of a log with one change in it."""

    refused: DataLoss | None
    sequence: int = 0
    digest: str = ""


class Specimen(msgspec.Struct):
    """The files of a log at rest, its frames, and the last of them."""

    files: dict[str, bytes]
    known: dict[int, Known]
    last: int

    @classmethod
    def of(cls, home: Path, known: dict[int, Known], last: int) -> Specimen:
        files = {
            path.name: path.read_bytes()
            for path in home.iterdir()
            if path.name in ("leases.db", "leases.db-wal", "leases.witness") and path.stat().st_size
        }
        return cls(files, known, last)

    def flipped(self, file: str, offset: int, bit: int) -> dict[str, bytes]:
        contents = bytearray(self.files[file])
        contents[offset] ^= 1 << bit
        return {**self.files, file: bytes(contents)}


async def judge(files: dict[str, bytes], directory: Path) -> Verdict:
    """Open, verify and replay. Raises when a refusal is of the wrong kind, names no place or altered a file."""
    home = directory / NAMESPACE
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for name, contents in files.items():
        (home / name).write_bytes(contents)
    verdict = await _outcome(directory)
    error = verdict.refused
    if error is not None:
        assert {"sequence", "file", "row"} & set(error.details), f"no place is named: {error!r}"
        for name, contents in files.items():
            assert (home / name).read_bytes() == contents, f"{name} was altered by {error!r}"
    return verdict


async def _outcome(directory: Path) -> Verdict:
    try:
        log = SqliteLog.open(directory, NAMESPACE)
        try:
            report = await log.verify()
            recovered = await rebuild(log)
            assert recovered.position == report.position
            return Verdict(None, report.position.sequence, digest(recovered.state))
        finally:
            log.abandon()
    except DataLoss as error:
        return Verdict(error)


def bits(regions: Iterable[Region], random: Random, per_region: int | None) -> Iterator[tuple[Region, int, int]]:
    """Bits to flip: each one, or for `per_region` bytes spread over a region one of each."""
    for region in regions:
        offsets = range(region.start, region.start + region.size)
        if per_region is None:
            yield from ((region, offset, bit) for offset in offsets for bit in range(8))
        else:
            chosen = sorted(random.sample(offsets, min(per_region, region.size)))
            yield from ((region, offset, random.randrange(8)) for offset in chosen)


# -- the database ------------------------------------------------------------------------------


class Inside:
    """A copy of a database, to ask what lies where in it."""

    def __init__(self, database: bytes, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "leases.db"
        self._path.write_bytes(database)

    def ask(self, question: str) -> list[Any]:
        connection = apsw.Connection(str(self._path))
        try:
            return connection.execute(question).fetchall()
        finally:
            connection.close()


def rows(database: bytes, directory: Path) -> list[Region]:
    """The columns of one frame in the middle, and the rows around the frames."""
    inside = Inside(database, directory)
    frames = inside.ask("SELECT chain, CAST(data AS BLOB) FROM frames WHERE length(data) < 1500 ORDER BY last")
    ((head_chain, anchor_chain),) = inside.ask("SELECT head.chain, anchor.chain FROM head, anchor")
    leaves = inside.ask("SELECT pageno, name FROM dbstat WHERE pagetype = 'leaf'")
    chain, data = frames[len(frames) // 2]
    start = _in_cell(database, leaves, "frames", chain + data)
    head = _in_cell(database, leaves, "head", head_chain)
    anchor = _in_cell(database, leaves, "anchor", anchor_chain)
    return [
        Region("data", "leases.db", start + 32, len(data)),
        Region("chain", "leases.db", start, 32),
        Region("columns", "leases.db", start - 24, 24),
        Region("head chain", "leases.db", head, 32),
        Region("head before its chain", "leases.db", head - 32, 32),
        Region("head after its chain", "leases.db", head + 32, 8),
        Region("anchor", "leases.db", anchor - 10, 10 + 32 + 2),
    ]


def first_row(database: bytes, directory: Path) -> tuple[int, int]:
    """The key of the first frame, and where its page begins."""
    inside = Inside(database, directory)
    ((first,),) = inside.ask("SELECT min(last) FROM frames")
    ((number,),) = inside.ask(
        "SELECT pageno FROM dbstat WHERE name = 'frames' AND pagetype = 'leaf' ORDER BY path LIMIT 1"
    )
    return first, (number - 1) * PAGE_SIZE


def _in_cell(database: bytes, leaves: list[Any], table: str, value: bytes) -> int:
    """Where a value stands in a row that is in use; pages also keep old copies in their free space."""
    for number, name in leaves:
        start: int = (number - 1) * PAGE_SIZE
        page = database[start : start + PAGE_SIZE]
        count = int.from_bytes(page[3:5], "big") if name == table else 0
        for cell in range(count):
            pointer = int.from_bytes(page[8 + 2 * cell : 10 + 2 * cell], "big")
            found = page.find(value, pointer, pointer + 100 + len(value))
            if found >= 0:
                return start + found
    raise AssertionError(f"no row of {table} holds {value[:8]!r}")


def pages(database: bytes, directory: Path) -> list[Region]:
    """Every page, with what stands at its beginning apart: that is where its cells are found."""
    kinds = Inside(database, directory).ask("SELECT pageno, name, pagetype FROM dbstat ORDER BY pageno")
    found = [Region("database header", "leases.db", 0, 100)]
    for number, name, kind in kinds:
        header = 100 if number == 1 else 0
        start = (number - 1) * PAGE_SIZE + header
        found.append(Region(f"{kind} page of {name}, beginning", "leases.db", start, 40))
        found.append(Region(f"{kind} page of {name}", "leases.db", start, PAGE_SIZE - header))
    return found


def wal_parts(wal: bytes) -> list[Region]:
    found = [Region("WAL header", "leases.db-wal", 0, WAL_HEADER_BYTES)]
    for start in range(WAL_HEADER_BYTES, len(wal) - WAL_FRAME_BYTES + 1, WAL_FRAME_BYTES):
        found.append(Region("WAL frame header", "leases.db-wal", start, 24))
        found.append(Region("WAL page", "leases.db-wal", start + 24, PAGE_SIZE))
    return found


def is_damage(verdict: Verdict) -> bool:
    return isinstance(verdict.refused, LogDamaged)
