"""The library behind columns and segments is not everybody's: who needs it and has it not is told what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from omnirelay.errors import FailedPrecondition


@contextmanager
def library_for(what: str) -> Iterator[None]:
    """Around imports that need pyarrow. Raises FailedPrecondition when it is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "omnirelay":
            raise
        raise FailedPrecondition(
            f"{what} need a library that is not installed ({error.name}): pip install 'omnirelay[segments]'"
        ) from None
