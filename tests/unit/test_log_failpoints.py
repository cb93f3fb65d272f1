"""Failpoints: nothing happens at one unless it is armed."""

from __future__ import annotations

import pytest

from omnirelay.log.failpoints import FAILPOINTS, arm, armed, disarm, hit


def test_only_the_armed_point_fires_and_only_while_armed() -> None:
    fired: list[str] = []
    hit("log.append.begin")
    with armed("log.append.begin", lambda: fired.append("begin")):
        hit("log.append.begin")
        hit("log.append.committed")
        hit("log.append.begin")
    hit("log.append.begin")
    assert fired == ["begin", "begin"]


def test_a_point_is_disarmed_even_when_its_action_raises() -> None:
    def fail() -> None:
        raise RuntimeError("here")

    with pytest.raises(RuntimeError), armed("log.append.begin", fail):
        hit("log.append.begin")
    hit("log.append.begin")


def test_disarming_without_a_name_disarms_all() -> None:
    fired: list[str] = []
    for name in FAILPOINTS[:2]:
        arm(name, lambda: fired.append("fired"))
    disarm()
    for name in FAILPOINTS:
        hit(name)
    assert fired == []


def test_a_name_that_does_not_exist_cannot_be_armed() -> None:
    with pytest.raises(ValueError, match=r"log\.append\.begin"):
        arm("log.append.bgin", lambda: None)
