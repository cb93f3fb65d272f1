"""When a worker is said to get nowhere. Times are in seconds, and the test's own."""

from __future__ import annotations

from omnirelay.worker.standing import Standing


def test_an_idle_worker_is_well_as_long_as_pongs_come() -> None:
    standing = Standing(0, 60)
    for now in range(0, 600, 10):
        standing.heard(now)
        assert standing.trouble(now + 9) == ""
    assert "has not answered for 60" in standing.trouble(590 + 60.5)


def test_pongs_do_not_stand_for_the_answer_to_what_was_asked() -> None:
    standing = Standing(0, 60)
    asked = standing.asked(10)
    standing.heard(70)
    assert standing.trouble(70) == ""
    standing.heard(71)
    assert standing.trouble(71) == "the node has not answered for 61000 ms: silence"
    standing.answered(asked, 72)
    assert standing.trouble(72) == ""


def test_what_is_asked_again_and_again_in_vain_counts_from_the_first_time() -> None:
    standing = Standing(0, 60)
    for now in range(10, 75, 5):
        standing.unanswered(standing.asked(now), now + 4, "no answer came")
        standing.heard(now + 4)
    assert standing.silent_s(74) == 64
    assert standing.trouble(74) == "the node has not answered for 64000 ms: no answer came"


def test_an_answer_to_anything_ends_the_silence_of_everything() -> None:
    standing = Standing(0, 60)
    standing.asked(10)
    standing.unanswered(standing.asked(10), 40, "no answer came")
    standing.answered(standing.asked(69), 70)
    standing.heard(129)
    assert standing.trouble(129) == ""
    standing.heard(131)
    assert standing.trouble(131) != ""


def test_one_refusal_is_no_trouble_and_nothing_but_refusals_is() -> None:
    standing = Standing(0, 60)
    standing.refused(standing.asked(1), 1, "lost")
    for now in range(2, 300):
        standing.heard(now)
        assert standing.trouble(now) == ""
    for now in range(300, 362, 10):
        standing.refused(standing.asked(now), now + 1, "not the owner")
        standing.heard(now + 1)
    assert standing.trouble(361) == "the node has refused everything for 61000 ms: not the owner"
    standing.answered(standing.asked(362), 362)
    assert standing.trouble(362) == ""


def test_trouble_passes_when_there_is_nothing_more_to_ask_for() -> None:
    standing = Standing(0, 60)
    for now in range(0, 80, 10):
        standing.unanswered(standing.asked(now), now + 1, "no answer came")
        standing.refused(standing.asked(now), now + 1, "lost")
        standing.unanswered(standing.asked(now + 1), now + 2, "no answer came")
    standing.heard(80)
    assert standing.trouble(80) != ""
    standing.heard(140)
    assert standing.trouble(140) == ""


def test_what_was_not_sent_needs_no_answer() -> None:
    standing = Standing(0, 60)
    standing.withdrawn(standing.asked(1))
    standing.heard(100)
    assert standing.trouble(100) == ""
