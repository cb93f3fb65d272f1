"""What is wrong with the handlers that `omnirelay work` is told of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirelay.cli.exits import FAILED, USAGE, Stop
from omnirelay.cli.handler_modules import find_handlers

GOOD = """
from omnirelay import Handlers

first = Handlers()
second = Handlers()
none = None

def compact(job):
    pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to work in whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "good_jobs.py").write_text(GOOD)
    yield tmp_path
    sys.modules.pop("good_jobs", None)


def refusal(registry: str) -> Stop:
    with pytest.raises(Stop) as refused:
        find_handlers(registry)
    assert "\n" not in refused.value.message
    return refused.value


def test_handlers_are_found_where_one_works() -> None:
    assert find_handlers("good_jobs:first") is not find_handlers("good_jobs:second")


@pytest.mark.parametrize(
    ("registry", "complaint"),
    [
        ("good_jobs", "as module:name, not 'good_jobs'"),
        ("good_jobs:", "as module:name"),
        (":first", "as module:name"),
        (".good_jobs:first", "as module:name"),
        ("good_jobs:first.handle", "as module:name"),
        ("good_jobs:first:more", "as module:name"),
        ("./good_jobs.py:first", "say a module, not a file: good_jobs:first for instance"),
        ("good_jobs.py:first", "say a module, not a file: good_jobs:first for instance"),
        ("./shop/jobs.py", "say a module, not a file: shop.jobs:handlers for instance"),
        ("/srv/shop/jobs.py:first", "say a module, not a file: jobs:first for instance"),
        ("../jobs:first", "say a module, not a file: jobs:first for instance"),
        ("nowhere:first", "there is no module 'nowhere' here or on the path"),
        ("good_jobs.more:first", "there is no module 'good_jobs.more' here or on the path"),
        ("good_jobs:third", "good_jobs has no Handlers called 'third'; there is first, second"),
        ("good_jobs:none", "good_jobs has no Handlers called 'none'; there is first, second"),
        ("good_jobs:compact", "good_jobs:compact is no Handlers but of type function; there is first, second"),
    ],
)
def test_what_stands_for_no_handlers_is_wrong_usage(registry: str, complaint: str) -> None:
    stop = refusal(registry)
    assert stop.exit_code == USAGE
    assert complaint in stop.message


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere' ({file}, line 1: import nowhere)"),
        ("\nfrom json import lods\n", "({file}, line 2: from json import lods)"),
        ("def fails():\n    1 / 0\n\nfails()\n", "ZeroDivisionError: division by zero ({file}, line 4: fails())"),
        ("import sys\nsys.exit('no')\n", "SystemExit: no ({file}, line 2: sys.exit('no'))"),
        ("def fails(\n", "SyntaxError: '(' was never closed (bad_jobs.py, line 1)"),
    ],
)
def test_a_module_that_fails_is_named_with_its_line(code: str, complaint: str, here: Path) -> None:
    (here / "bad_jobs.py").write_text(code)
    stop = refusal("bad_jobs:first")
    assert stop.exit_code == FAILED
    assert stop.message.startswith("bad_jobs cannot be imported: ")
    assert complaint.format(file=here / "bad_jobs.py") in stop.message
