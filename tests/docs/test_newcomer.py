"""What the README tells a newcomer to type works as it is written, over a kill -9."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.processes import DevNode

ROOT = Path(__file__).parents[2]


def test_the_path_of_a_newcomer_works_as_written(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    [start] = [block for block in blocks if block.startswith("omnirelay dev")]
    [commands] = [block for block in blocks if block.startswith("curl")]
    assert start == "omnirelay dev\n"
    scripts = Path(sys.executable).parent

    def type_in(text: str, url: str) -> str:
        done = subprocess.run(
            ["bash", "-e"],
            input=text.replace("http://127.0.0.1:7070", url),
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "OMNIRELAY_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with DevNode(cwd=tmp_path) as node:
        type_in(commands, node.url)
        node.stop(signal.SIGKILL)
    with DevNode(cwd=tmp_path) as node:
        stats = json.loads(type_in("omnirelay stats -o json", node.url))["stats"]
        assert stats["completedCount"] == 1
        assert node.stop() == 0
