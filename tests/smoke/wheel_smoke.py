"""Uses the installed wheel as a stranger would. Run by `make wheel-test`, outside the source tree.

A plain script: the environment it runs in has the runtime dependencies and no test tools.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import omnirelay
from omnirelay import Caller, NewItem, Payload, Shard, SqliteLog
from omnirelay.core import schedule


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


async def check_shard(directory: Path) -> None:
    """Work through the three verbs, close, and find everything again."""
    me = Caller(peer_id="smoke")
    async with await Shard.open(SqliteLog.open(directory, "smoke")) as shard:
        answer = await shard.enqueue([NewItem(payload=Payload(resource_type="table", resource_id=n)) for n in "ab"])
        [lease] = await shard.lease(me)
        await shard.complete(lease.token, caller=me, result=b"done")
        await shard.snapshot()
    async with await Shard.open(SqliteLog.open(directory, "smoke")) as shard:
        first, second = [await shard.get(result.sequence_id) for result in answer.results]
        check((first.state, first.result) == ("completed", b"done"), f"the completed item came back as {first}")
        check(second.state == "ready", f"the pending item came back as {second}")
        await shard.log.verify()


def check_compiled(expected: bool) -> None:
    found = not str(schedule.__file__).endswith(".py")
    check(found == expected, f"core comes from {schedule.__file__}")


def main() -> None:
    check_package()
    check_compiled(sys.argv[1] == "compiled")
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check_shard(Path(directory)))
    print(f"wheel-test: ok, {sys.argv[1]} omnirelay {omnirelay.__version__} on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
