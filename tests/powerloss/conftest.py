"""Where these tests keep their disks, and settings that bring rare things about often."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirelay.log.sqlite import log as sqlite_log
from omnirelay.log.sqlite import writer as sqlite_writer
from omnirelay.log.sqlite.redo_file import RedoPlan

LONG = os.environ.get("OMNIRELAY_LONG") == "1"
"""The long forms leave nothing out."""

REDO = RedoPlan(
    after_frames=6,
    half_bytes=64 * 1024,
    frame_bytes_max=20 * 1024,
    settle_bytes=16 * 1024,
    settle_s=0.0,
)
"""A redo file soon, so small that it is filled again and again, and frames that it does not take."""


@pytest.fixture(scope="module")
def workspace() -> Iterator[Path]:
    """A directory in memory where there is one: the model decides what was flushed, not a real disk."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="omnirelay-", dir=memory if memory.is_dir() else None))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module", autouse=True)
def _often() -> Iterator[None]:
    """Checkpoints every few commits and a witness after each append: a short script sees many of both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_writer, "CHECKPOINT_PAGES", 24)
        patch.setattr(sqlite_log, "WITNESS_INTERVAL_S", 0.0)
        yield
