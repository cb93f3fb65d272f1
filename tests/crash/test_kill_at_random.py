"""Kill -9 at random moments, several times on the same log."""

from __future__ import annotations

from random import Random

import pytest

from tests.crash.conftest import MakeCrashes
from tests.crash.plan import LONG

SEEDS = range(1, 61 if LONG else 4)
ROUNDS = 6 if LONG else 3


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_survives_kills_at_random_moments(seed: int, make_crashes: MakeCrashes) -> None:
    random = Random(seed)
    crashes = make_crashes(seed)
    for round_number in range(ROUNDS):
        # Mostly in full swing, sometimes right after the start.
        crashes.kill_after(
            random.choice((1, 5, random.randint(10, 120), random.randint(120, 400))),
            snapshots=random.random() < 0.4,
            helper_snapshots=round_number == 1 and seed % 4 == 0,
            trim=random.random() < 0.4,
        )
        crashes.check()
    crashes.verify()


def test_a_child_that_is_not_killed_leaves_the_same_trace(make_crashes: MakeCrashes) -> None:
    crashes = make_crashes(77)
    records = crashes.run(killed=False, acknowledgements_max=150, snapshots=True)
    assert records[-1]["kind"] == "closed"
    crashes.check()
    crashes.kill_after(20)
    crashes.verify()
