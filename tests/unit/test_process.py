"""What a node sets for its whole process. Every test has a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")

FRAMES_ONE_AFTER_THE_OTHER = """
import resource
from omnirelay.engine.process import tune_process

tune_process()

def frames():
    for _ in range(100):
        # One is on its way to the disk, one is being made, and both are copied on their way.
        pieces = [bytearray(b"x") * 1_000_000 for _ in range(6)]
        del pieces

frames()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
frames()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

MANY_THREADS = """
import threading
from concurrent.futures import ThreadPoolExecutor
from omnirelay.engine.process import tune_process

tune_process()

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

together = threading.Barrier(8)

def read_frames(_):
    together.wait()
    frames = [bytearray(b"x") * 4_000_000 for _ in range(8)]
    together.wait()
    del frames

before = resident()
with ThreadPoolExecutor(8) as pool:
    list(pool.map(read_frames, range(8)))
    print(resident() - before)
"""


def run(program: str) -> int:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_frames_reuse_the_memory_of_those_before_them() -> None:
    # The six have 1,465 pages together, and there are a hundred of them.
    assert run(FRAMES_ONE_AFTER_THE_OTHER) < 1_465


def test_threads_do_not_each_keep_what_they_had() -> None:
    # They had 256 MB together.
    assert run(MANY_THREADS) < 64 * 1024 * 1024
