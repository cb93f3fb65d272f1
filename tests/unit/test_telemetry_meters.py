"""What is counted of a shard's events: how long items waited from when they could run."""

from __future__ import annotations

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.options import QueueOptions
from omnirelay.telemetry.meters import Histogram, ShardMeter
from tests.builders import Kernel, new_item

SECOND = 1_000


class Metered:
    """A kernel whose events a meter sees as they come, or from when it begins."""

    def __init__(self) -> None:
        self.kernel = Kernel(QueueOptions(lease_duration_ms=10 * SECOND))
        self.meter = ShardMeter()
        self._seen = 0

    def begin_anew(self) -> None:
        """The process was started again: what it had counted is gone."""
        self.kernel.restart()
        self._seen = len(self.kernel.events)
        self.meter = ShardMeter()
        self.meter.take_delayed(self.kernel.state.delayed)

    def waits(self) -> Histogram:
        new, self._seen = self.kernel.events[self._seen :], len(self.kernel.events)
        if new:
            self.meter.take(new, self.kernel.state.items)
        return self.meter.wait


@pytest.mark.parametrize("restarted", [False, True])
def test_a_delay_is_no_wait(restarted: bool) -> None:
    metered = Metered()
    kernel = metered.kernel
    kernel.enqueue(new_item("now"), new_item("later", delay_ms=60 * SECOND))
    metered.waits()
    if restarted:
        metered.begin_anew()
    kernel.pass_time(3 * SECOND)
    kernel.complete(kernel.lease_one().token)
    assert metered.waits().sum == 3
    kernel.pass_time(57 * SECOND)
    metered.waits()
    kernel.pass_time(2 * SECOND)
    kernel.lease_one()
    assert (metered.waits().sum, sum(metered.meter.wait.counts)) == (5, 2)


@pytest.mark.parametrize("how", ["release", "fail", "expiry"])
def test_an_item_that_is_handed_back_waits_from_then_on(how: str) -> None:
    """And not for the second time since it came in: it was leased meanwhile."""
    metered = Metered()
    kernel = metered.kernel
    kernel.enqueue()
    token = kernel.lease_one().token
    kernel.pass_time(9 * SECOND)
    if how == "release":
        kernel.release(token)
    elif how == "fail":
        kernel.fail(token, mode="release", delay_ms=20 * SECOND)
        kernel.pass_time(20 * SECOND)
    else:
        kernel.pass_time(SECOND)
    metered.waits()
    kernel.pass_time(4 * SECOND)
    assert kernel.lease_one().attempt == 1
    assert (metered.waits().sum, sum(metered.meter.wait.counts)) == (4, 2)


def test_a_restored_item_waits_from_when_it_is_back() -> None:
    metered = Metered()
    kernel = metered.kernel
    kernel.enqueue(new_item("now"), new_item("later", delay_ms=30 * SECOND))
    drained = kernel.do(cmd.DrainItems()).items
    kernel.pass_time(20 * SECOND)
    kernel.do(cmd.RestoreItems(drained))
    kernel.pass_time(15 * SECOND)
    kernel.lease(2)
    assert (metered.waits().sum, sum(metered.meter.wait.counts)) == (15 + 5, 2)


def test_items_that_leave_unleased_are_not_remembered() -> None:
    metered = Metered()
    kernel = metered.kernel
    first, _ = kernel.enqueue(new_item("cancelled", delay_ms=SECOND), new_item("drained", delay_ms=SECOND))
    kernel.do(cmd.CancelItem(first))
    kernel.do(cmd.DrainItems())
    metered.waits()
    assert not metered.meter._due
