"""`omnirelay lakehouse run` as a process of its own, with its Java, and what the tables hold afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from omnirelay.lakehouse.tables import EVENTS, GOLD, SILVER, Table
from tests.cli.processes import command, environment

EVERY: Sequence[Table] = (EVENTS, *SILVER, *GOLD)


def rows_in(warehouse: Path, table: Table) -> list[str]:
    """The rows of a Delta table in an order that depends on nothing else, read without Spark."""
    return in_order(DeltaTable(str(warehouse / table.layer / table.name)).to_pyarrow_table())


def in_order(table: pa.Table) -> list[str]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(repr(sorted(row.items())) for row in rows)


class PipelineProcess:
    """A run in a process group of its own. What it says goes to a pipe that is read line by line."""

    def __init__(self, segments: Path, warehouse: Path, *more: str, few_events: int | None = None) -> None:
        """With `few_events` so many count as few, which no option of the command says."""
        where = ("--source", str(segments), "--warehouse", str(warehouse), "--master", "local[1]")
        words = command("lakehouse", "run", *where, *more)
        if few_events is not None:
            assert not more, "these are options of the command"
            words = [sys.executable, "-m", "tests.spark.sized_pipeline", str(segments), str(warehouse), str(few_events)]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        self.said: list[str] = []

    def reached(self, commits: int) -> bool:
        """Wait until so many tables were changed; False when it ended before."""
        assert self.process.stderr is not None
        changed = 0
        while changed < commits:
            line = self.process.stderr.readline()
            if not line:
                return False
            self.said.append(line.rstrip())
            changed += line.startswith(("bronze.", "silver.", "gold."))
        return True

    def ended_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """The process and the Java it has started, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finished(self) -> str:
        """Wait for the end, which has to be a good one; what was printed."""
        printed, said = self.process.communicate()
        assert self.process.returncode == 0, "\n".join([*self.said, said])
        return printed

    def __enter__(self) -> PipelineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
