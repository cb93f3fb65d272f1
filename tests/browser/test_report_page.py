"""The page of a report in a real browser: every chart draws, says what it shows, and trusts nothing from the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnirelay.lakehouse.report_data import Report
from omnirelay.lakehouse.report_page import render
from tests.browser.chromium import Browser, Page
from tests.browser.samples import HOSTILE, everything, largest, nothing

CHARTS = ("depth", "ends", "wait", "work", "gantt", "lineage", "peers", "backpressure")
MARKS = {
    "depth": ".line-waiting, .line-running",
    "ends": "rect.fill-completed, rect.fill-failed",
    "wait": "path.line-p50, path.line-p95, path.line-p99",
    "work": "path.line-p50, path.line-p95, path.line-p99",
    "gantt": ".bar-mark",
    "lineage": ".node, .ribbon",
    "peers": ".bar-mark",
    "backpressure": ".bar-mark",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


class Opener:
    def __init__(self, browser: Browser, directory: Path) -> None:
        self._browser = browser
        self._directory = directory

    def __call__(self, report: Report, *, width: int = 1280, dark: bool = False, paper: bool = False) -> Page:
        file = self._directory / "report.html"
        file.write_text(render(report), encoding="utf-8")
        return self._browser.open(file, width=width, dark=dark, paper=paper)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Opener:
    return Opener(browser, tmp_path)


def boxes(page: Page, selector: str) -> list[dict[str, Any]]:
    """Where the elements are in the page; the text of each, too."""
    found: list[dict[str, Any]] = page.evaluate(
        f"""[...document.querySelectorAll({json.dumps(selector)})].map((element) => {{
            const box = element.getBoundingClientRect();
            return {{left: box.left, right: box.right, top: box.top, bottom: box.bottom, text: element.textContent}};
        }})"""
    )
    return found


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_draws(opened: Opener, width: int) -> None:
    page = opened(everything(), width=width)
    assert page.problems == []
    for chart, marks in MARKS.items():
        [svg] = boxes(page, f'section[data-chart="{chart}"] svg')
        assert svg["right"] - svg["left"] > 250, chart
        assert svg["bottom"] - svg["top"] > 50, chart
        drawn = boxes(page, ", ".join(f'section[data-chart="{chart}"] {each}' for each in marks.split(", ")))
        assert len(drawn) >= 2, chart
        assert all(max(box["right"] - box["left"], box["bottom"] - box["top"]) > 0 for box in drawn), chart
    assert len(boxes(page, ".card")) == 12
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the screen"
    assert page.requests == [page.evaluate("location.href")], "the page asks for nothing but itself"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("make", [everything, largest])
def test_labels_do_not_overlap_and_stay_in_their_drawing(
    opened: Opener, width: int, make: Callable[[], Report]
) -> None:
    page = opened(make(), width=width)
    for chart in CHARTS:
        [svg] = boxes(page, f'section[data-chart="{chart}"] svg')
        labels = boxes(page, f'section[data-chart="{chart}"] svg text')
        assert labels, chart
        for at, label in enumerate(labels):
            assert label["left"] >= svg["left"] - 1, (chart, label)
            assert label["right"] <= svg["right"] + 1, (chart, label)
            assert label["bottom"] <= svg["bottom"] + 1, (chart, label)
            for other in labels[:at]:
                apart = (
                    label["left"] >= other["right"]
                    or label["right"] <= other["left"]
                    or label["top"] >= other["bottom"] - 3
                    or label["bottom"] <= other["top"] + 3
                )
                assert apart, (chart, label, other)


def test_a_drawing_follows_the_width_of_the_window(opened: Opener) -> None:
    page = opened(everything(), width=1280)
    [wide] = boxes(page, "#gantt svg")
    page.resize(600)
    [narrow] = boxes(page, "#gantt svg")
    assert narrow["right"] - narrow["left"] < 600 < wide["right"] - wide["left"]
    assert len(boxes(page, "#gantt svg")) == 1
    assert page.problems == []


def test_an_empty_report_says_so_in_words(opened: Opener) -> None:
    page = opened(nothing())
    assert page.problems == []
    assert boxes(page, "main svg") == []
    assert len(boxes(page, ".empty")) == len(CHARTS) + 2
    assert "Intake was open all the time." in page.evaluate("document.body.innerText")


def test_the_largest_report_is_bounded_and_says_what_it_leaves_out(opened: Opener) -> None:
    report = largest()
    assert len(render(report).encode()) < 700_000
    page = opened(report)
    assert page.problems == []
    words = page.evaluate("document.body.innerText")
    assert "24 of 700 owners" in words
    assert "of 400,000 leases as bars" in words
    assert "89,986 of 90,000 resources" in words
    assert "24 of 700 peers" in words
    assert page.evaluate("document.querySelectorAll('#gantt .bar-mark').length") == len(report.gantt.bars)


def test_colours_follow_the_machine_and_the_button(opened: Opener) -> None:
    colours = """[".card", "#gantt .fill-completed", "h1"].map((selector) => {
        const style = getComputedStyle(document.querySelector(selector));
        return [style.backgroundColor, style.fill, style.color].join();
    })"""
    light = opened(everything())
    dark = opened(everything(), dark=True)
    of_light, of_dark = light.evaluate(colours), dark.evaluate(colours)
    assert all(one != other for one, other in zip(of_light, of_dark, strict=True))
    light.evaluate("document.getElementById('theme').click()")
    assert light.evaluate(colours) == of_dark
    assert light.evaluate("document.getElementById('theme').textContent") == "Light colours"
    light.evaluate("document.getElementById('theme').click()")
    assert light.evaluate(colours) == of_light


def test_pointing_at_a_mark_shows_its_details(opened: Opener) -> None:
    page = opened(everything())
    assert page.evaluate("document.getElementById('tip').hidden") is True
    for chart in CHARTS:
        mark = {"gantt": ".bar-mark", "lineage": ".node", "peers": ".bar-mark", "backpressure": ".bar-mark"}.get(
            chart, ".hit"
        )
        page.move_to(f'section[data-chart="{chart}"] {mark}')
        [tip] = boxes(page, "#tip")
        assert 0 <= tip["left"] < tip["right"] <= 1280, chart
        assert len(boxes(page, "#tip dt")) >= 2, chart
        page.move_to("h1")
        assert page.evaluate("document.getElementById('tip').hidden") is True, chart
    assert page.problems == []


def test_details_are_reached_with_the_keyboard(opened: Opener) -> None:
    page = opened(everything())
    page.evaluate("document.querySelector('#gantt svg').focus()")
    page.press("ArrowRight")
    first = page.evaluate("document.getElementById('spoken').textContent")
    assert "outcome" in first
    page.press("ArrowRight")
    assert page.evaluate("document.getElementById('spoken').textContent") != first
    assert page.evaluate("document.getElementById('tip').hidden") is False
    page.press("Escape")
    assert page.evaluate("document.getElementById('tip').hidden") is True


def test_names_from_the_log_are_text_and_nothing_else(opened: Opener) -> None:
    page = opened(everything(HOSTILE))
    assert page.problems == []
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.scripts.length") == 2
    for chart in CHARTS:
        assert len(boxes(page, f'section[data-chart="{chart}"] svg')) == 1, chart
    page.move_to("#gantt .bar-mark")
    assert HOSTILE in boxes(page, "#tip b")[0]["text"]
    assert HOSTILE in page.evaluate("document.title")
    assert page.evaluate("document.images.length") == 0


def test_paper_gets_light_colours_and_nothing_to_click(opened: Opener) -> None:
    page = opened(everything(), dark=True, paper=True)
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.getElementById('theme')).display") == "none"
