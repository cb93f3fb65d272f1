"""Kill -9 at every named point of the commit path, of snapshots, trims, backups and recovery."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from omnirelay.log.failpoints import FAILPOINTS
from tests.crash.conftest import MakeCrashes
from tests.crash.harness import stop_behind
from tests.crash.plan import LONG

RECOVERY = [name for name in FAILPOINTS if name.startswith("log.recovery.")]
SPECIAL = ["log.redo.settling", "log.redo.settled", "engine.snapshot.written", "log.trim.slice", "log.backup.copied"]
WITNESS = [name for name in FAILPOINTS if name.startswith("log.witness.")]
COMMIT = [name for name in FAILPOINTS if name not in (*RECOVERY, *SPECIAL, *WITNESS)]
REPEATS = range(1, 13 if LONG else 2)


def test_every_failpoint_is_killed_at() -> None:
    assert len(COMMIT) == 6, "a new point: see which list it belongs to"
    assert {*COMMIT, *SPECIAL, *WITNESS, *RECOVERY} == set(FAILPOINTS)


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("name", COMMIT)
def test_a_kill_on_the_commit_path_takes_nothing_back(name: str, repeat: int, make_crashes: MakeCrashes) -> None:
    random = Random(f"{name}/{repeat}")
    crashes = make_crashes(repeat)
    crashes.die_at(name, random.randint(20, 90))
    crashes.check()
    # In a start, where LeaderElected is written, or in the first frame after it.
    crashes.die_at(name, 1 + repeat % 2)
    crashes.check()
    if LONG:
        crashes.kill_after(random.randint(10, 60))
    crashes.verify()


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("name", [name for name in SPECIAL if name.startswith("log.redo.")])
def test_a_kill_around_settling_the_redo_file_takes_nothing_back(
    name: str, repeat: int, make_crashes: MakeCrashes
) -> None:
    crashes = make_crashes(repeat)
    for _ in range(2):
        crashes.die_at(name, repeat)
        crashes.check()
    crashes.kill_after(30)
    crashes.verify()


@pytest.mark.parametrize("name", WITNESS)
def test_a_kill_around_the_witness_leaves_one_that_is_true(name: str, make_crashes: MakeCrashes) -> None:
    crashes = make_crashes(3)
    crashes.die_at(name, 1)  # While the log is being created.
    crashes.check()
    for _ in range(4 if LONG else 1):
        crashes.die_at(name, 2 if crashes.rounds == 0 else 1)
        crashes.check()
    crashes.kill_after(30)
    crashes.verify()


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_kill_after_a_snapshot_was_written_leaves_the_log_whole(repeat: int, make_crashes: MakeCrashes) -> None:
    crashes = make_crashes(repeat)
    crashes.kill_after(60, snapshots=True)
    crashes.die_at("engine.snapshot.written", repeat, snapshots=True)
    crashes.check()
    crashes.kill_after(30, snapshots=True)
    crashes.verify()


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_kill_during_a_trim_leaves_a_log_that_starts_at_its_anchor(repeat: int, make_crashes: MakeCrashes) -> None:
    crashes = make_crashes(repeat)
    for _ in range(2):  # Each leaves a snapshot: what is before the older one may go.
        crashes.run(stop_behind("snapshot", 60 * repeat), snapshots=True)
        crashes.check()
    crashes.die_at("log.trim.slice", 1, trim=True)
    crashes.check()
    crashes.kill_after(30, trim=True, snapshots=True)
    crashes.verify()


def test_a_kill_during_a_backup_leaves_no_backup_and_the_log_whole(make_crashes: MakeCrashes, tmp_path: Path) -> None:
    crashes = make_crashes(1)
    crashes.kill_after(40)
    backup = tmp_path / "backup"
    crashes.die_at("log.backup.copied", 1, backup=str(backup))
    crashes.check()
    assert not backup.exists()
    records = crashes.kill_after(60, backup=str(backup))
    crashes.verify()
    assert any(record.get("op") == "backup" for record in records)


@pytest.mark.parametrize("name", RECOVERY)
def test_a_kill_while_a_suspect_log_is_copied_loses_nothing(name: str, make_crashes: MakeCrashes) -> None:
    crashes = make_crashes(2)
    crashes.kill_after(80, snapshots=True)
    crashes.check()
    # What a failed flush leaves behind: the next start reads everything back and copies it.
    (crashes.log_directory / "leases.suspect").write_bytes(b"a flush failed\n")
    crashes.die_at(name, 1)
    records = crashes.kill_after(30)
    assert records[0]["kind"] == "opened", records[0]
    assert not (crashes.log_directory / "leases.suspect").exists()
    crashes.verify()
