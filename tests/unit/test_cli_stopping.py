"""Signals that come twice, and those that are sent twice."""

from __future__ import annotations

import signal

import pytest

from omnirelay.cli.stopping import ECHO_SECONDS, Echoes, Interrupted, heeding_signals


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_signal_is_an_echo_only_of_its_own_kind_and_for_a_moment() -> None:
    time = Time()
    echoes = Echoes(time)
    assert [echoes.has(signal.SIGINT), echoes.has(signal.SIGINT)] == [False, True]
    assert echoes.has(signal.SIGTERM) is False
    time.now += ECHO_SECONDS
    assert echoes.has(signal.SIGTERM) is False


def interrupt_twice(seconds_between: float) -> None:
    """While something is held: Interrupted says that it came to its end."""
    time = Time()
    with heeding_signals(time) as signals, signals.held("it"):
        signal.raise_signal(signal.SIGINT)
        time.now += seconds_between
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_came_twice_waits_for_what_is_held() -> None:
    with pytest.raises(Interrupted):
        interrupt_twice(seconds_between=0)


def test_a_signal_that_is_sent_again_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt) as ended:
        interrupt_twice(seconds_between=ECHO_SECONDS)
    assert not isinstance(ended.value, Interrupted)


def test_signals_are_as_they_were_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with heeding_signals():
        pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
