"""Uses the installed wheel as a stranger would. Run by `make wheel-test`, outside the source tree.

A plain script: the environment it runs in has the runtime dependencies and no test tools.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import omnirelay


def check(condition: bool, what: str) -> None:
    if not condition:
        sys.exit(f"wheel-test: FAILED: {what}")


def check_package() -> None:
    home = Path(omnirelay.__file__).resolve()
    check(home.is_relative_to(Path(sys.prefix).resolve()), f"omnirelay comes from {home}, not from the wheel")
    check(files("omnirelay").joinpath("py.typed").is_file(), "py.typed is missing from the wheel")
    check(version("omnirelay") == omnirelay.__version__, "metadata and __version__ differ")
    for name in omnirelay.__all__:
        check(hasattr(omnirelay, name), f"omnirelay.{name} does not resolve")


def main() -> None:
    check_package()
    print(f"wheel-test: ok, omnirelay {omnirelay.__version__} on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
