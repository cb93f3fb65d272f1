"""Tests of the tests: six wrong variants of engine and log, each caught by a check that the real code passes.

Every scenario runs twice, on the real code and on the variant, with the same kills and the same check.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import checker, volatile
from tests.crash.conftest import MakeCrashes
from tests.crash.evidence import Archive
from tests.crash.harness import Crashes, stop_after
from tests.crash.ledger import Violation

LOG = ("leases.db", "leases.db-wal", "leases.redo")
"""The files that a log is in."""

Scenario = Callable[[Crashes, str | None], None]
"""Runs children, with the variant on or without one, and checks what they leave; raises a Violation."""


def kill_before_the_frame_is_written(crashes: Crashes, variant: str | None) -> None:
    for _ in range(3):  # A frame that holds nobody's answer has nothing to lose; not all of three do.
        crashes.die_at("log.append.begin", 25, variant=variant)
    crashes.check()


def kill_on_a_disk_that_forgets(crashes: Crashes, variant: str | None) -> None:
    """`skips_the_flush` is `synchronous=OFF`; the disk is the same for both."""
    synchronous = "FULL" if variant is None else "OFF"
    crashes.kill_after(60, vfs=volatile.NAME, synchronous=synchronous, variant=variant)
    crashes.check()


def kill_after_leases_ran_out(crashes: Crashes, variant: str | None) -> None:
    """Live states are told while the child runs; a replay must give the same ones."""
    told = 0

    def leases_ran_out(record: checker.Record) -> bool:
        nonlocal told
        if record["kind"] == "digest" and record["ran_out"]:
            told += 1
        return told >= 2

    crashes.run(leases_ran_out, variant=variant)
    checker.check_digests(crashes.history())


def restart_from_a_backup(crashes: Crashes, variant: str | None) -> None:
    """Everything after the backup is lost, which an operator accepts. Fences must rise all the same."""
    backup = crashes.directory.parent / "backup"
    crashes.kill_after(30)
    done = stop_after(150)
    crashes.run(lambda record: done(record) and backup.exists(), backup=str(backup))
    crashes.log_directory.rename(crashes.directory / "lost")
    shutil.copytree(backup, crashes.log_directory)
    crashes.archive = Archive(crashes.directory)
    records = crashes.kill_after(60, variant=variant, held=[])
    assert any(record.get("grants") for record in records)
    checker.check_fences(crashes.records)


def restart_on_an_older_copy(crashes: Crashes, variant: str | None) -> None:
    """Somebody puts yesterday's file back. Refusing to start on it is right; serving from it is not."""
    crashes.kill_after(30)
    older = crashes.directory / "older"
    shutil.copytree(crashes.log_directory, older)
    wanted = ["done"] * 40 + ["witness"]

    def witnessed(record: checker.Record) -> bool:
        if record["kind"] in wanted:
            wanted.remove(record["kind"])
        return not wanted

    crashes.run(witnessed)
    crashes.check()
    newer = keep_only_the_witness(crashes.log_directory)
    put_back(older, crashes.log_directory)
    if variant is None:
        [refused] = crashes.run(killed=False)
        assert refused == {"kind": "refused_to_open", "code": "error.log.regressed"}
        put_back(newer, crashes.log_directory)
    crashes.kill_after(20, variant=variant)
    crashes.check()


def put_back(copy: Path, directory: Path) -> None:
    for name in LOG:
        (directory / name).unlink(missing_ok=True)
        if (copy / name).exists():
            shutil.copy(copy / name, directory / name)


def keep_only_the_witness(directory: Path) -> Path:
    """Move the database aside, as somebody about to put another one there would."""
    aside = directory.with_name("newer")
    aside.mkdir()
    for name in LOG:
        if (directory / name).exists():
            (directory / name).rename(aside / name)
    return aside


def kill_under_load(crashes: Crashes, variant: str | None) -> None:
    crashes.kill_after(80, variant=variant)
    crashes.check()


LOST = {"acknowledged_lost", "fence_not_rising", "wrong_answer", "completion_lost"}
"""What a lost frame shows itself as: its answers have no event, or its ids and fences were given out again since."""

CASES: list[tuple[str, Scenario, set[str]]] = [
    ("answers_before_append", kill_before_the_frame_is_written, LOST),
    ("skips_the_flush", kill_on_a_disk_that_forgets, LOST),
    ("drops_expiries", kill_after_leases_ran_out, {"digest_differs"}),
    ("ignores_unproven_history", restart_from_a_backup, {"fence_not_rising"}),
    ("forgets_the_witness", restart_on_an_older_copy, {"history_rewritten"}),
    ("grants_twice", kill_under_load, {"digest_differs", "double_grant"}),
]

IDS = [variant for variant, _, _ in CASES]


@pytest.mark.parametrize(("variant", "scenario", "checks"), CASES, ids=IDS)
def test_the_real_code_passes_where_the_variant_fails(
    variant: str, scenario: Scenario, checks: set[str], make_crashes: MakeCrashes
) -> None:
    scenario(make_crashes(5), None)


@pytest.mark.parametrize(("variant", "scenario", "checks"), CASES, ids=IDS)
def test_the_variant_is_caught(variant: str, scenario: Scenario, checks: set[str], make_crashes: MakeCrashes) -> None:
    with pytest.raises(Violation) as caught:
        scenario(make_crashes(5), variant)
    assert caught.value.check in checks, caught.value
