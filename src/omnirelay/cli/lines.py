"""Files and streams with one JSON object a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from omnirelay.cli.exits import Refusal, Stop, usage
from omnirelay.cli.json_texts import parse

_BATCH_BYTES = 4 * 1024 * 1024
"""Most bytes of one call: well below what a node takes, however large the items are."""

Make = Callable[[dict[str, Any]], dict[str, Any]]
Send = Callable[[list[int], list[Any], int], None]
"""Sends items: the numbers of their lines, the items, and the bytes read so far."""


@dataclass
class Size:
    """How many items go into one call; less than was asked for when a node has called that too large."""

    items: int


class BadLine(Exception):
    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number
        self.why = why


def at_line(refusal: Refusal, lines: list[int]) -> Stop:
    """A refusal of a batch that names an index is one of the line the item came from."""
    index = refusal.metadata.get("index", "")
    if index.isdigit() and int(index) < len(lines):
        return Stop(refusal.exit_code, f"line {lines[int(index)]}: {refusal.message}", refusal.code)
    return refusal


@contextmanager
def opened(source: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    """A file or stdin, and its size in bytes if that is known."""
    if str(source) == "-":
        yield sys.stdin.buffer, None
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise usage(f"cannot read {source}: {error.strerror or error}") from None
    with file:
        yield file, source.stat().st_size or None


def send_all(file: BinaryIO, size: int, make: Make, send: Send) -> None:
    """Send the items of a JSONL file in batches, and those that a node calls too large in parts.

    Raises BadLine, and what `send` raises; the refusal of one item names its line.
    """
    most = Size(size)
    for lines, items, read in batches(file, most, make):
        send_in_parts(lines, items, read, send, most)


def send_in_parts(lines: list[int], items: list[Any], read: int, send: Send, most: Size) -> None:
    """Send a batch, in halves as long as a node calls it too large. Later batches are no larger than what it took."""
    parts = [(lines, items)]
    while parts:
        numbers, part = parts.pop()
        try:
            send(numbers, part, read)
        except Refusal as refusal:
            if refusal.http != 413 or "index" in refusal.metadata or len(part) == 1:
                raise at_line(refusal, numbers) from None
            most.items = half = len(part) // 2
            parts += [(numbers[half:], part[half:]), (numbers[:half], part[:half])]


def batches(file: BinaryIO, size: Size, make: Make) -> Iterator[tuple[list[int], list[Any], int]]:
    """Items of a JSONL file in batches, with the numbers of their lines and the bytes read so far.

    Raises BadLine; the lines of the batch it stands in are not handed out.
    """
    lines: list[int] = []
    items: list[Any] = []
    weight = read = 0
    for number, line in enumerate(file, 1):
        read += len(line)
        if not line.strip():
            continue
        if items and weight + len(line) > _BATCH_BYTES:
            yield lines, items, read - len(line)
            lines, items, weight = [], [], 0
        lines.append(number)
        items.append(_parsed(number, line, make))
        weight += len(line)
        # At once and not with the next line: on a stream that may take its time.
        if len(items) >= size.items:
            yield lines, items, read
            lines, items, weight = [], [], 0
    if items:
        yield lines, items, read


def _parsed(number: int, line: bytes, make: Make) -> Any:
    try:
        value = parse(line)
    except ValueError as error:
        raise BadLine(number, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadLine(number, "is not a JSON object")
    try:
        return make(value)
    except ValueError as error:
        raise BadLine(number, str(error)) from None
