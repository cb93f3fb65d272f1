"""The parts of a report that need neither Spark nor a browser: buckets, lanes, names, and the page as text."""

from __future__ import annotations

import json
import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirelay.lakehouse.report_data import BUCKETS_MAX, LANES_MAX, TEXT_MAX, Bar, OwnerRow, clipped, span_of
from omnirelay.lakehouse.report_lanes import into_lanes, natural
from omnirelay.lakehouse.report_page import render
from tests.browser.samples import everything

instants = st.integers(0, 250_000_000_000_000)


@settings(deadline=None)
@given(instants, st.integers(1, 250_000_000_000_000))
def test_buckets_cover_the_span_and_are_never_too_many(begin: int, length: int) -> None:
    span = span_of(begin, begin + length)
    assert 1 <= span.buckets <= BUCKETS_MAX
    assert span.first_ms <= begin < span.first_ms + span.bucket_ms
    end = span.first_ms + span.buckets * span.bucket_ms
    assert end - span.bucket_ms < begin + length <= end


def bar(row: int, start: int, length: int | None) -> Bar:
    end = None if length is None else start + length
    of_lease = {"outcome": None, "shard": "s", "resource": "r", "item": 1, "attempt": 1, "fence": 1, "wait_ms": 0}
    return msgspec.convert({"row": row, "start_ms": start, "end_ms": end, **of_lease}, Bar)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 999), st.none() | st.integers(0, 500)), max_size=60))
def test_bars_of_a_lane_do_not_overlap(given: list[tuple[int, int, int | None]]) -> None:
    span = span_of(100, 1_000)
    bars = [bar(*each) for each in given]
    rows, placed = into_lanes([OwnerRow(name=str(at), leases=1, bad=0) for at in range(3)], bars, span)
    lanes: dict[tuple[int, int], int] = {}
    for each in sorted(placed, key=lambda each: each.start_ms):
        assert each.lane < rows[each.row].lanes <= LANES_MAX
        start = max(each.start_ms, span.from_ms)
        assert lanes.get((each.row, each.lane), 0) <= start
        lanes[each.row, each.lane] = span.to_ms if each.end_ms is None else max(each.end_ms, start)
    # Nothing is left out while there are lanes: as many bars as there are lanes always fit.
    for row in range(3):
        mine = [each for each in bars if each.row == row]
        kept = [each for each in placed if each.row == row]
        assert len(kept) == len(mine) or rows[row].lanes == LANES_MAX


@settings(deadline=None)
@given(st.lists(st.none() | st.text()))
def test_every_name_can_be_put_in_order(names: list[str | None]) -> None:
    backwards = list(reversed(names))
    assert sorted(names, key=natural) == sorted(backwards, key=natural)


def test_numbers_in_names_count_as_numbers() -> None:
    names = ["w-10", None, "w-9", "9" * 5_000, "a", "w-9b", ""]
    assert sorted(names, key=natural) == ["", "9" * 5_000, "a", "w-9", "w-9b", "w-10", None]


@settings(deadline=None)
@given(st.text())
def test_a_clipped_text_keeps_both_ends(text: str) -> None:
    short = clipped(text * 20)
    assert len(short) <= TEXT_MAX
    assert short == text * 20 or (text * 20).startswith(short.split("…")[0])


@settings(deadline=None, max_examples=25)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_name_gets_out_of_the_block_of_data(name: str) -> None:
    page = render(everything(f"{name}</script><!--{{{{data}}}}"))
    blocks = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(blocks) == 1
    assert page.count("</script>") == 2
    assert "<!--" not in blocks[0]
    data = json.loads(blocks[0])
    assert data["warehouse"] == clipped(f"lake {clipped(f'{name}</script><!--{{{{data}}}}')}")
