"""What sinks write, made of commits: always the same bytes, whichever process makes them."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import find_spec
from types import ModuleType

from omnirelay.replication.commits import Commits
from omnirelay.replication.made import Form, Made
from omnirelay.replication.runs import runs_of


def make(form: Form, commits: Commits) -> Made:
    """Blocking, and long for many events: call it in a thread, or have the workshop do it."""
    if form == "lines":
        pieces = commits.pieces()
        return Made(form, pieces, dict(commits.types()))
    if form == "rows":
        runs = runs_of(commits)
        if runs is None:
            return Made(form, (), dict(commits.types()))
        return Made(form, (*runs.texts, runs.places), runs.types, runs.runs)
    segments = load_segments()
    counted: Counter[str] = Counter()
    data = segments.encode_frames(commits.frames, form, commits.region, counted)
    # Not every format counts, and of the first frame there may be events that were delivered before.
    return Made(form, (data,), dict(counted if counted.total() == len(commits) else commits.types()))


def takes_long_to_begin(form: Form) -> bool:
    """Whether this process would have to import what it needs for nothing that is done here.

    With the first value that Arrow gets it looks whether that is one of pandas, and imports it for that: a third of a
    second with the interpreter lock held. A process of its own can do without.
    """
    return form == "parquet" and "pandas" not in sys.modules and find_spec("pandas") is not None


def load_segments() -> ModuleType:
    """What encodes them. Its libraries are not everybody's, and take a moment to be imported."""
    from omnirelay.segments import segment

    return segment
