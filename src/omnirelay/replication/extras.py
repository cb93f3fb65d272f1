"""Libraries that not everybody needs: imported where they are used, and named where they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from omnirelay.replication.sinks import SinkUnusable


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of an optional library. Raises SinkUnusable with what to install when it is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "omnirelay":
            raise
        raise SinkUnusable(f"{error.name} is not installed; pip install 'omnirelay[{name}]' brings it") from None
