"""Logs to read with Spark: segments on the disk, and nodes that serve in a thread while a test waits for Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirelay.client.threads import LoopThread
from omnirelay.log.base import Frame
from omnirelay.node.node import Node
from omnirelay.replication.settings import SinkSettings
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.segment import SegmentFormat
from omnirelay.segments.writer import SegmentWriter
from tests.integration.test_replication_node import caught_up, node_with
from tests.segment_logs import SHARD, FrameLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def write_segments(address: str, *pieces: Sequence[Frame], kind: SegmentFormat = "parquet", **options: Any) -> None:
    """One segment for each of these, behind those that are there."""

    async def write() -> None:
        writer = SegmentWriter(Archive(await connect(address, options), SHARD), kind=kind, region="north")
        for frames in pieces:
            await writer.append(frames)

    asyncio.run(write())


def segments_of(directory: Path, *counts: int, kind: SegmentFormat = "parquet") -> FrameLog:
    """A log with a segment of each of these many events."""
    log = FrameLog()
    for count in counts:
        log.commit(count)
    write_segments(str(directory), *([frame] for frame in log.frames), kind=kind)
    return log


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def rows_of(frame: DataFrame) -> list[Row]:
    """All rows in the order of the log. Small logs only; and quicker than any comparison in Spark for those."""
    return sorted(frame.collect(), key=lambda row: (row.shard, row.sequence))


class ThreadedNode:
    """A node that serves in a thread of its own."""

    def __init__(self, thread: LoopThread, node: Node) -> None:
        self._thread = thread
        self.node = node
        self.url = node.url

    def wait_for_sinks(self) -> None:
        self._thread.run(caught_up(self.node))

    def last(self, namespace: str = "resourcelease") -> int:
        [component] = [each for each in self.node.components if each.namespace == namespace]
        return component.shard().last_sequence


@contextmanager
def serving(
    *sinks: SinkSettings, data: Path, namespaces: tuple[str, ...] = ("resourcelease",)
) -> Iterator[ThreadedNode]:
    thread = LoopThread("node of a test")
    thread.start()
    try:
        running = node_with(*sinks, data=data, namespaces=namespaces)
        node = thread.run(running.__aenter__())
        try:
            yield ThreadedNode(thread, node)
        finally:
            thread.run(running.__aexit__(None, None, None))
    finally:
        thread.stop()
