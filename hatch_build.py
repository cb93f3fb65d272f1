"""Builds the wheel: plain by default, with its hot path compiled by mypyc when asked for: core, and what stands between
core, the disk and a socket.

    OMNIRELAY_COMPILE=1     compile it, or fail
    OMNIRELAY_COMPILE=auto  compile it if this machine can, else build a plain wheel and say so

A plain wheel and a compiled one hold the same modules and pass the same tests; the compiled one has shared
libraries beside them, which Python prefers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "core/batches",
    "core/cycle",
    "core/deadlines",
    "core/decide",
    "core/ended",
    "core/evolve",
    "core/items",
    "core/keys",
    "core/lanes",
    "core/ordered",
    "core/recording",
    "core/requests",
    "core/roster",
    "core/rules/acknowledge",
    "core/rules/enqueue",
    "core/rules/grant",
    "core/rules/selecting",
    "core/schedule",
    "core/scopes",
    "core/spans",
    "core/state",
    "core/turns",
    "core/waiting",
    "engine/clock",
    "engine/deciding",
    "engine/framing",
    "engine/requests",
    "engine/standstill",
    "engine/waiting",
    "engine/waking",
    "engine/writer",
    "log/failpoints",
    "log/sqlite/guard",
    "log/sqlite/redo",
    "log/sqlite/redo_disk",
    "log/sqlite/redo_layout",
    "log/sqlite/settling",
    "log/sqlite/writer",
    "rpc/calls",
    "rpc/procedures",
    "service/acknowledging",
    "service/callers",
    "service/cycle",
    "service/held_leases",
    "service/owners",
    "service/stream_calls",
    "service/streaming",
    "telemetry/meters",
    "transport/websocket_frames",
    "wire/forms",
)
"""Modules that run for every item or every call. Those that define messages or check what callers send are not among
them: compiled code insists on its annotations, and a value of a wrong type must get its own error. Nor are those with
asynchronous generators, which the compiler does not know, and those that others inherit from.
"""


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the shared libraries to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("OMNIRELAY_COMPILE", "0")
        if wanted not in ("0", "1", "auto"):
            raise ValueError(f"OMNIRELAY_COMPILE is {wanted!r}, must be 0, 1 or auto")
        if self.target_name != "wheel" or wanted == "0" or version == "editable":
            return
        work = Path(tempfile.mkdtemp(prefix="omnirelay-compile-"))
        try:
            libraries = compile_hot_path(Path(self.root) / "src", work)
        except (OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(work, ignore_errors=True)
            if wanted == "1":
                raise
            self.app.display_warning(f"nothing is compiled, the wheel is plain: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): str(path.relative_to(work)) for path in libraries})

    def dependencies(self) -> list[str]:
        return [] if os.environ.get("OMNIRELAY_COMPILE", "0") == "0" else ["mypy", "setuptools"]


def compile_hot_path(source: Path, work: Path) -> list[Path]:
    """Compile a copy of the package in `work`; returns the libraries, lying as they will in the wheel."""
    shutil.copytree(source / "omnirelay", work / "omnirelay", ignore=shutil.ignore_patterns("__pycache__"))
    modules = [f"omnirelay/{name}.py" for name in COMPILED]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [sys.executable, "-m", "mypyc", "--config-file=", *modules],
        cwd=work,
        env={**environment, "MYPYC_OPT_LEVEL": "3", "MYPYC_DEBUG_LEVEL": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise subprocess.CalledProcessError(done.returncode, "mypyc")
    return [path for path in work.rglob("*.so") if "build" not in path.relative_to(work).parts]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    compile_hot_path(Path(__file__).parent / "src", target)
