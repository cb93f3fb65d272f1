"""Where drained items go. They are nowhere else any more but in the log, so each page is on a disk before the next."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omnirelay.cli.commands import close_stdout
from omnirelay.cli.exits import FAILED, Stop, usage


class NotKept(Exception):
    """A page could not be written, and nothing of it was."""


class Kept:
    """A new file with one drained item a line, and how many there are."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self.count = 0
        self._file = file
        self._length = 0

    def keep(self, items: list[Any]) -> None:
        """Have a page on the disk. Raises NotKept when that fails; the file ends with the page before then."""
        text = as_lines(items)
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._length)
                os.lseek(self._file, self._length, os.SEEK_SET)
            raise NotKept(error.strerror or str(error)) from None
        self._length += len(text)
        self.count += len(items)

    @property
    def said(self) -> str:
        """How many items are where, for messages."""
        return f"{self.count} drained items are safe in {self.path}" if self.count else "no item was drained"


class KeptAndPassedOn(Kept):
    """The same, and on stdout. Whoever reads there may be gone, or go with what it has read: the file stays."""

    def keep(self, items: list[Any]) -> None:
        super().keep(items)
        try:
            sys.stdout.buffer.write(as_lines(items))
            sys.stdout.buffer.flush()
        except OSError as error:
            close_stdout()
            gone = isinstance(error, BrokenPipeError)
            why = "nobody reads stdout any more" if gone else f"cannot write stdout: {error.strerror or error}"
            raise Stop(FAILED, f"{why}; all {self.said}, those that were passed on, too") from None


@contextmanager
def kept_in(path: Path) -> Iterator[Kept]:
    """Make a file for drained items. One that is empty in the end is removed when something went wrong."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise usage(f"{path} exists already and is not overwritten") from None
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror or error}") from None
    with _closing(Kept(path, file), file) as kept:
        yield kept


@contextmanager
def passed_on() -> Iterator[Kept]:
    """Write drained items to stdout, and a copy to a new file here, or where temporary files are.

    The copy is removed when stdout is a file and has everything, for that is as safe.
    """
    path, file = _new_file()
    with _closing(KeptAndPassedOn(path, file), file) as kept:
        yield kept
        if not kept.count or _stdout_is_a_synced_file():
            path.unlink()


@contextmanager
def _closing(kept: Kept, file: int) -> Iterator[Kept]:
    try:
        _sync_directory(kept.path)  # The name of the file has to last as well as its content.
        yield kept
    except BaseException:
        if not kept.count:
            with suppress(OSError):
                kept.path.unlink()
        raise
    finally:
        os.close(file)


def _new_file() -> tuple[Path, int]:
    name = f"omnirelay-drained-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"
    problems = []
    for directory in (Path.cwd(), Path(tempfile.gettempdir())):
        path = directory / name
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            problems.append(f"{directory}: {error.strerror or error}")
    raise usage(f"a copy of the items can be kept nowhere ({', '.join(problems)}); say --to FILE")


def _sync_directory(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _stdout_is_a_synced_file() -> bool:
    try:
        number = sys.stdout.fileno()
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return False
        os.fsync(number)
    except (OSError, ValueError):
        return False
    return True


def as_lines(items: list[Any]) -> bytes:
    return "".join(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n" for item in items).encode()
