"""`log backup`: copies of logs that are in use, in a directory or an object store, proved before they count."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnirelay.cli.commands import command
from omnirelay.cli.directories import DEFAULT_DATA, check_can_be_directory, chosen, with_log
from omnirelay.cli.exits import usage
from omnirelay.cli.log_checks import Data, NotByUrl, need_files
from omnirelay.cli.log_places import StoreOptions, is_path, read_options
from omnirelay.cli.logs import LogNamespace
from omnirelay.cli.printing import note, progress
from omnirelay.cli.running import run_async

if TYPE_CHECKING:
    from omnirelay.replication.proving import Restored


def add_to(group: typer.Typer) -> None:
    command(group, "backup", _BACKUP)(backup)


_BACKUP = """
    omnirelay log backup backups/monday --data omnirelay-data
    omnirelay log backup s3://bucket/backups/monday --data omnirelay-data
    omnirelay log verify backups/monday
    omnirelay log restore --from backups/monday --data new-data
"""


def backup(
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="A directory, or the address of an object store such as s3://b/p.")
    ],
    data: Data = DEFAULT_DATA,
    namespace: LogNamespace = None,
    option: StoreOptions = None,
    url: NotByUrl = None,
) -> None:
    """Copy logs while they are in use, to DEST/NAMESPACE. Each copy is read back and replayed before it counts.

    Without --namespace all logs of the directory are copied. What is there already is not overwritten. A copy that
    goes to an object store is made in the directory for temporary files (TMPDIR) first.
    """
    need_files(url, "backup")
    options = read_options(option)
    names = chosen(data, namespace)
    if is_path(destination):
        if options:
            raise usage("--option is for object stores: a directory has none")
        _to_directory(data, names, _path_of(destination))
    else:
        run_async(_free(destination, names, options))
        for name in names:
            _to_store(data, name, destination, options)


def _path_of(address: str) -> Path:
    from omnirelay.segments.connecting import path_of

    return path_of(address)


def _to_directory(data: Path, names: list[str], destination: Path) -> None:
    check_can_be_directory(destination)
    for name in names:
        if (destination / name).exists():
            raise usage(f"{destination / name} exists already and is not overwritten")
    for name in names:
        beside = destination / f".{name}.partial-{secrets.token_hex(4)}"
        try:
            _copied(data, name, beside)
            _named(beside / name, destination / name)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        note(f"copied {data / name} to {destination / name}")


def _named(copy: Path, final: Path) -> None:
    from omnirelay.log.files import sync_directory

    try:
        os.rename(copy, final)
        sync_directory(final.parent)
    except OSError as error:
        raise usage(f"cannot give the copy the name {final}: {error.strerror or error}") from None


def _copied(data: Path, name: str, directory: Path) -> Restored:
    """Copy a log to `directory/name` and prove the copy."""

    async def proved() -> Restored:
        from omnirelay.log.sqlite.restoring import read_history
        from omnirelay.replication.proving import prove

        with progress(f"prove {name}") as move:
            return await prove(directory, read_history(directory, name), move)

    with_log(data, name, lambda log: log.backup(directory / name))
    return run_async(proved())


async def _free(address: str, names: list[str], options: dict[str, object]) -> None:
    """Fail before anything is copied when the store cannot be used, or has such a backup already."""
    from omnirelay.segments.backups import find_backup
    from omnirelay.segments.connecting import connect

    store = await connect(address, options)
    for name in names:
        if await find_backup(store, name) is not None:
            raise usage(f"{store.address}/{name} exists already and is not overwritten")


def _to_store(data: Path, name: str, address: str, options: dict[str, object]) -> None:
    import tempfile

    async def put(directory: Path, copy: Restored) -> None:
        import time

        from omnirelay.errors import AlreadyExists
        from omnirelay.segments.backups import BackupManifest, put_backup
        from omnirelay.segments.connecting import connect

        about = BackupManifest(
            shard=name,
            log_id=copy.log_id,
            last=copy.last,
            chain=copy.chain,
            written_ms=time.time_ns() // 1_000_000,
            files=(),
        )
        store = await connect(address, options, writable=False)
        with progress(f"put {name}", in_bytes=True) as move:
            try:
                manifest = await put_backup(store, directory / name, about, move)
            except AlreadyExists as error:
                raise usage(error.message) from None
        note(f"copied {data / name} to {store.address}/{name}, {manifest.size} bytes")

    with tempfile.TemporaryDirectory(prefix="omnirelay-backup-") as temporary:
        directory = Path(temporary)
        run_async(put(directory, _copied(data, name, directory)))
