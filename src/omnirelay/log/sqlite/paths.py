"""Where the files of one shard's log lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omnirelay.errors import InvalidArgument


@dataclass(frozen=True)
class LogPaths:
    """Names below `DIR/{namespace}`. The witness may lie on another disk; that makes it worth more."""

    directory: Path
    witness: Path

    @classmethod
    def of(cls, directory: Path, namespace: str, witness: Path | None = None) -> LogPaths:
        if namespace in ("", ".", "..") or "/" in namespace or "\0" in namespace:
            raise InvalidArgument(
                f"the namespace {namespace!r} cannot be the name of a directory", field="namespace", found=namespace
            )
        root = directory / namespace
        return cls(root, witness if witness is not None else root / "leases.witness")

    @property
    def database(self) -> Path:
        return self.directory / "leases.db"

    @property
    def wal(self) -> Path:
        return self.directory / "leases.db-wal"

    @property
    def shared_memory(self) -> Path:
        """SQLite's index of the WAL. Holds nothing that is not in the WAL and is rebuilt from it."""
        return self.directory / "leases.db-shm"

    @property
    def redo(self) -> Path:
        """Frames that are durable and may not be in the database yet; there while a writer runs, and after a crash."""
        return self.directory / "leases.redo"

    @property
    def lock(self) -> Path:
        return self.directory / "leases.lock"

    @property
    def suspect(self) -> Path:
        """Left behind by a failed flush: what the page cache shows may not be on the disk."""
        return self.directory / "leases.suspect"

    @property
    def new(self) -> Path:
        """A database being built. Worth nothing unless `replacement` says that it is complete."""
        return self.directory / "leases.db.new"

    @property
    def replacement(self) -> Path:
        """Says that `new` is complete and is to take the database's place."""
        return self.directory / "leases.replacement"

    def free_aside(self, label: str) -> str:
        """An unused name `leases.db.{label}-N` to keep an old database under."""
        number = 1
        while (self.directory / f"leases.db.{label}-{number}").exists():
            number += 1
        return f"leases.db.{label}-{number}"

    def free_redo_aside(self) -> Path:
        """An unused name `leases.redo.damaged-N` to keep a redo file under that did not check out."""
        number = 1
        while (aside := self.directory / f"{self.redo.name}.damaged-{number}").exists():
            number += 1
        return aside
