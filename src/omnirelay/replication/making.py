"""What sinks write, made of commits: always the same bytes, whichever process makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from omnirelay.log.base import Frame
from omnirelay.replication.commits import Commits
from omnirelay.replication.made import Form, Made
from omnirelay.replication.runs import runs_of

if TYPE_CHECKING:
    from omnirelay.segments.segment import SegmentFormat


def make(form: Form, commits: Commits) -> Made:
    """Blocking, and long for many events: call it in a thread, or have the workshop do it."""
    if form == "lines":
        pieces = commits.pieces()
        return Made(form, pieces, dict(commits.types()))
    if form == "rows":
        runs = runs_of(commits)
        types = dict(commits.types())
        return Made(form, (), types) if runs is None else Made(form, (*runs.texts, runs.places), types, runs.runs)
    encode_frames = load_segments()
    return Made(form, (encode_frames(commits.frames, form, commits.region),), dict(commits.types()))


def load_segments() -> Callable[[Sequence[Frame], SegmentFormat, str | None], bytes]:
    """What encodes them. Its libraries are not everybody's, and take a moment to be imported."""
    from omnirelay.segments.segment import encode_frames

    return encode_frames
