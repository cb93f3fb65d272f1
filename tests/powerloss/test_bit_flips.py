"""One bit changes somewhere in the files of a log: it is refused, or it did not matter. Never a wrong state."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import apsw
import pytest

from omnirelay.engine.shard import Shard
from omnirelay.errors import LogDamaged, LogRegressed
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.connection import PAGE_SIZE
from tests.powerloss.conftest import LONG
from tests.powerloss.flipping import (
    Region,
    Specimen,
    Verdict,
    bits,
    first_row,
    is_damage,
    judge,
    pages,
    rows,
    wal_parts,
)
from tests.powerloss.recording import NAMESPACE, replayed
from tests.powerloss.script import OPTIONS, Script

COMMANDS = 40
SEED = 11


async def make(workspace: Path) -> tuple[Specimen, Specimen, Specimen, list[bytes]]:
    """A log with its WAL as a crash leaves it, the same one closed, one closed half-way, and its witnesses."""
    directory = workspace / "specimen"
    home = directory / NAMESPACE
    script = Script(SEED)
    log = SqliteLog.open(directory, NAMESPACE)
    script.shard = await Shard.open(log, options=OPTIONS, clock=script.clock, ids=script.next_lease_id)
    await script.run(COMMANDS // 2)
    await script.shard.close()
    half = Specimen.of(home, {}, script.acknowledged)
    witnesses = [half.files["leases.witness"]]
    log = SqliteLog.open(directory, NAMESPACE)
    script.shard = await Shard.open(log, options=OPTIONS, clock=script.clock, ids=script.next_lease_id)
    await script.run(COMMANDS - COMMANDS // 2)
    open_files = workspace / "open"
    # The shard is still open and replaces its witness whenever it likes: the finished one is copied below.
    shutil.copytree(home, open_files, ignore=shutil.ignore_patterns("leases.witness*"))
    last = script.acknowledged
    await script.shard.close()
    known = await replayed(directory)
    closed = Specimen.of(home, known, last)
    witnesses.append(closed.files["leases.witness"])
    half.known = known
    shutil.copy(home / "leases.witness", open_files)
    return Specimen.of(open_files, known, last), closed, half, witnesses


@pytest.fixture(scope="module")
def specimens(workspace: Path) -> tuple[Specimen, Specimen, Specimen, list[bytes]]:
    return asyncio.run(make(workspace))


def harmless(verdict: Verdict, specimen: Specimen) -> bool:
    """Not refused, and all is as it was."""
    return (
        verdict.refused is None
        and verdict.sequence == specimen.last
        and verdict.digest == specimen.known[specimen.last].digest
    )


async def test_the_specimens_are_sound(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    crashed, closed, half, _ = specimens
    assert "leases.db-wal" in crashed.files
    assert "leases.db-wal" not in closed.files
    for specimen in (crashed, closed, half):
        assert harmless(await judge(specimen.files, workspace / "judged"), specimen)
    kinds = {region.name for region in pages(closed.files["leases.db"], workspace)}
    assert "internal page of frames" in kinds, "the log is large enough to have an index page"


@pytest.mark.timeout(1_800)
async def test_a_flipped_bit_in_a_row_is_refused(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    """Bytes and chain of a frame: always. Other columns: unless nothing that counts is changed by it."""
    specimen = specimens[1]
    for region in rows(specimen.files["leases.db"], workspace / "rows"):
        flips = 8 * region.size if LONG else min(48, region.size)
        refused = await _sweep(specimen, [region], workspace, None if LONG else 48)
        if region.name in ("data", "chain", "head chain"):
            assert refused == {LogDamaged: flips}, region.name
        elif region.name == "columns":
            assert refused[LogDamaged] > flips * 0.9


@pytest.mark.timeout(3_600)
async def test_a_flipped_bit_anywhere_in_the_database_never_gives_a_wrong_state(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    specimen = specimens[1]
    regions = pages(specimen.files["leases.db"], workspace / "rows")
    await _sweep(specimen, regions, workspace, 400 if LONG else 12)


@pytest.mark.timeout(3_600)
async def test_a_flipped_bit_in_the_wal_is_refused_when_the_witness_saw_what_it_cost(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    """SQLite ends its WAL where a checksum fails, as after a crash. What is lost then, the witness has seen."""
    specimen = specimens[0]
    regions = wal_parts(specimen.files["leases.db-wal"])
    refused = await _sweep(specimen, regions, workspace, 100 if LONG else 4)
    assert refused[LogRegressed] > 10


@pytest.mark.timeout(3_600)
async def test_a_flipped_bit_in_the_wal_beyond_the_witness_cuts_history_but_never_changes_it(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    specimen, _, half, witnesses = specimens
    files = {**specimen.files, "leases.witness": witnesses[0]}
    older = Specimen(files, specimen.known, specimen.last)
    cut = 0
    for region, offset, bit in bits(wal_parts(files["leases.db-wal"]), Random(SEED), 50 if LONG else 3):
        verdict = await judge(older.flipped(region.file, offset, bit), workspace / "judged")
        if verdict.refused is None:
            known = specimen.known[verdict.sequence]
            assert verdict.digest == known.digest, f"{region.name} at {offset}, bit {bit}: a wrong state"
            assert verdict.sequence >= half.last, "the witness was ignored"
            cut += verdict.sequence < specimen.last
    assert cut > 0


async def test_a_flipped_bit_in_the_witness_is_refused(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    specimen = specimens[1]
    size = len(specimen.files["leases.witness"])
    await _sweep(specimen, [Region("witness", "leases.witness", 0, size)], workspace, None if LONG else 100)


async def test_a_page_that_was_never_written_is_noticed(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    """A disk that drops a write and says nothing leaves an old page, or zeros, among new ones."""
    _, closed, half, _ = specimens
    new, old = closed.files["leases.db"], half.files["leases.db"]
    noticed = 0
    for start in range(0, len(new), PAGE_SIZE):
        for page in (old[start : start + PAGE_SIZE], bytes(PAGE_SIZE)):
            if len(page) < PAGE_SIZE or page == new[start : start + PAGE_SIZE]:
                continue
            files = {**closed.files, "leases.db": new[:start] + page + new[start + PAGE_SIZE :]}
            verdict = await judge(files, workspace / "judged")
            assert verdict.refused is not None or harmless(verdict, closed), f"page {start // PAGE_SIZE + 1}"
            noticed += verdict.refused is not None
    assert noticed > 5


async def test_a_text_that_is_no_text_any_more_is_damage_like_any_other(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    """A flipped bit in the log's id is no UTF-8; one in the header of a row makes a text of its chain."""
    specimen = specimens[1]
    database = specimen.files["leases.db"]
    log_id = database.index(b"log_id") + len(b"log_id")
    regions = {region.name: region for region in rows(database, workspace / "rows")}
    chain_kind = database.rindex(bytes([12 + 2 * 32]), 0, regions["chain"].start)
    for offset, bit in ((log_id, 7), (chain_kind, 0)):
        files = specimen.flipped("leases.db", offset, bit)
        assert is_damage(await judge(files, workspace / "judged"))
        # And an operator who accepts the loss gets on.
        log = SqliteLog.open(workspace / "judged", NAMESPACE, accept_loss=True)
        assert (await log.acquire("operator")).unproven
        await log.close()


async def test_a_log_whose_first_frame_cannot_be_found_is_not_an_empty_one(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    """Bits in the key of the first row put it beyond the head: a search from the start ends at once."""
    specimen = specimens[1]
    database = specimen.files["leases.db"]
    first, leaf = first_row(database, workspace / "rows")
    assert 0 < first < 127
    assert specimen.last < 127
    pointer = int.from_bytes(database[leaf + 8 : leaf + 10], "big")
    key = next(at for at in range(leaf + pointer + 1, leaf + pointer + 4) if database[at] == first)
    files = {**specimen.files, "leases.db": database[:key] + bytes([127]) + database[key + 1 :]}
    verdict = await judge(files, workspace / "judged")
    assert is_damage(verdict), f"verify found nothing wrong with a log it could not read: {verdict}"


async def test_a_head_that_is_an_epoch_behind_its_last_frame_is_refused(
    specimens: tuple[Specimen, Specimen, Specimen, list[bytes]], workspace: Path
) -> None:
    """The next writer would be given an epoch that a writer had before it."""
    specimen = specimens[1]
    path = workspace / "epoch.db"
    path.write_bytes(specimen.files["leases.db"])
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    connection.execute("UPDATE head SET epoch = epoch - 1")
    connection.close()
    assert is_damage(await judge({**specimen.files, "leases.db": path.read_bytes()}, workspace / "judged"))


async def _sweep(
    specimen: Specimen, regions: list[Region], workspace: Path, per_region: int | None
) -> Counter[type[Exception]]:
    """Flip bits one by one; returns how often each kind of refusal came."""
    refused: Counter[type[Exception]] = Counter()
    wrong: list[str] = []
    for region, offset, bit in bits(regions, Random(SEED), per_region):
        place = f"{region.name} at {offset}, bit {bit}"
        try:
            verdict = await judge(specimen.flipped(region.file, offset, bit), workspace / "judged")
        except Exception as error:
            wrong.append(f"{place}: {error!r}")
            continue
        if verdict.refused is not None:
            refused[type(verdict.refused)] += 1
        elif not harmless(verdict, specimen):
            wrong.append(f"{place}: not refused, and the log ends at {verdict.sequence}")
    assert not wrong, f"{len(wrong)} of {refused.total() + len(wrong)}: {wrong[:20]}"
    return refused
