"""Work that threads do at the same time: what has to come before does, and an error ends it without leaving any."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.lakehouse.side_by_side import begin, do_side_by_side
from tests.property.strategies import profile

WAIT_S = 60
NAMES = "abcdef"


class Failed(Exception):
    pass


@given(
    threads=st.integers(1, 4),
    behind=st.dictionaries(st.integers(1, len(NAMES) - 1), st.sets(st.integers(0, len(NAMES) - 1))),
)
@profile(30)
def test_all_is_done_once_and_each_behind_what_it_needs(threads: int, behind: dict[int, set[int]]) -> None:
    done: list[str] = []
    work: dict[str, Callable[[], None]] = {name: partial(done.append, name) for name in NAMES}
    # Only earlier ones are needed, or nothing could begin.
    needed = {NAMES[name]: [NAMES[each] for each in earlier if each < name] for name, earlier in behind.items()}
    do_side_by_side(work, threads, behind=needed)
    assert sorted(done) == sorted(NAMES)
    for name, before in needed.items():
        assert all(done.index(each) < done.index(name) for each in before)


def test_as_many_as_there_are_threads_are_at_work_at_the_same_time() -> None:
    met = threading.Barrier(3)

    def meet() -> None:
        met.wait(WAIT_S)

    do_side_by_side(dict.fromkeys(NAMES, meet), 3, behind={})
    assert not met.broken


def test_what_is_needed_and_is_not_among_the_work_is_taken_as_done() -> None:
    done: list[str] = []
    do_side_by_side({"b": lambda: done.append("b")}, 2, behind={"b": ["a"]})
    assert done == ["b"]


def test_after_an_error_nothing_is_begun_and_what_has_begun_is_awaited() -> None:
    began, failed = threading.Event(), threading.Event()
    done: list[str] = []

    def fail() -> None:
        assert began.wait(WAIT_S)
        failed.set()
        raise Failed

    def outlast() -> None:
        began.set()
        assert failed.wait(WAIT_S)
        done.append("outlast")

    with pytest.raises(Failed):
        do_side_by_side({"a": fail, "b": outlast, "c": lambda: done.append("c")}, 2, behind={"c": ["a"]})
    assert done == ["outlast"]


def test_one_thread_is_the_callers_own() -> None:
    seen: list[threading.Thread] = []
    do_side_by_side({name: lambda: seen.append(threading.current_thread()) for name in "ab"}, 1, behind={"a": ["b"]})
    assert seen == [threading.current_thread()] * 2


def test_what_was_begun_beside_the_caller_gives_its_outcome_or_its_error() -> None:
    assert begin(lambda: 7, "seven").result(WAIT_S) == 7

    def fail() -> None:
        raise Failed

    with pytest.raises(Failed):
        begin(fail, "failure").result(WAIT_S)


def test_a_process_that_ends_does_not_wait_for_what_was_begun() -> None:
    code = (
        "import threading\nfrom omnirelay.lakehouse.side_by_side import begin\n"
        "begin(threading.Event().wait, 'forever')\nraise SystemExit(3)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S, check=False).returncode == 3
