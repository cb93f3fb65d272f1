"""What sinks write, made of commits: always the same bytes, whichever process makes them."""

from __future__ import annotations

from omnirelay.replication.commits import Commits
from omnirelay.replication.made import Form, Made
from omnirelay.replication.runs import runs_of


def make(form: Form, commits: Commits) -> Made:
    """Blocking, and long for many events: call it in a thread, or have the workshop do it."""
    types = dict(commits.types())
    if form == "lines":
        return Made(form, commits.pieces(), types)
    if form == "rows":
        runs = runs_of(commits)
        return Made(form, (), types) if runs is None else Made(form, (runs.text, runs.places), types, runs.runs)
    # Its libraries are not everybody's.
    from omnirelay.segments.segment import encode_frames

    return Made(form, (encode_frames(commits.frames, form, commits.region),), types)
