"""A process with a replicator is killed again and again: what it was told is kept, once, in order, and carried on."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec

from omnirelay.replication.files import FileSink
from omnirelay.replication.replicators import SqliteReplicator
from omnirelay.replication.settings import TABLE, FollowSettings

KILLS = 5

CHILD = """
import asyncio, itertools, sys
from pathlib import Path
from omnirelay.replication.files import FileSink
from omnirelay.replication.replicators import SqliteReplicator

async def main(directory):
    replicator = SqliteReplicator(directory, {"file": FileSink(directory / "lines")})
    await replicator.start()
    for number in itertools.count():
        events = await replicator.publish([{"eventType": "Enqueue", "sequenceId": number}] * (number % 7 + 1))
        print(events[-1].sequence, flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


def run_and_kill(directory: Path, after_lines: int) -> int:
    """The last number that the child was told to be taken in."""
    with subprocess.Popen([sys.executable, "-c", CHILD, str(directory)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(after_lines):
            assert child.stdout.readline().strip(), "it ended by itself"
        child.send_signal(signal.SIGKILL)
        told = [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    return int(told[-1]) if told else 0


async def test_what_was_published_outlives_any_number_of_kills(tmp_path: Path) -> None:
    choice = random.Random(11)
    told = 0
    for _ in range(KILLS):
        told = max(told, run_and_kill(tmp_path, choice.randint(1, 120)))
    sinks = {"file": FileSink(tmp_path / "lines")}
    replicator = SqliteReplicator(tmp_path, sinks, follow=FollowSettings(linger_ms=0))
    await replicator.start()
    [last] = await replicator.publish([{"eventType": "Enqueue", "sequenceId": -1}])
    await replicator.wait_delivered()
    kept = [event.sequence for event in await replicator.read(0, 1_000_000)]
    await replicator.stop()

    assert told <= kept[-1] == last.sequence
    # A witness is behind by up to a second, and a log that is ahead of it is proven all the same: nothing jumps.
    assert kept == list(range(1, len(kept) + 1))
    connection = sqlite3.connect(tmp_path / "events.db")
    rows = [row[0] for row in connection.execute(f"select sequence_number from {TABLE} order by sequence_number")]
    connection.close()
    assert rows == kept
    lines = [
        msgspec.json.decode(line)["sequenceNumber"]
        for path in sorted((tmp_path / "lines" / "events").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    assert lines == kept
