"""PostgreSQL with a table as the queue: COPY in, SKIP LOCKED for the lease, DELETE by ids for the end.

A server of its own as initdb makes it, with fsync and synchronous_commit on, more shared memory and room for the log.
It refuses to run as root; then it runs as the user `postgres`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers_load import LEASE_SECONDS, Peer, bodies
from benchmarks.peers_processes import Server, free_port, until_up

USER = "postgres"
TABLE = (
    """CREATE TABLE queue
    (id bigserial PRIMARY KEY, body bytea NOT NULL, attempt int NOT NULL DEFAULT 0, leased_until timestamptz)""",
    "CREATE INDEX ready ON queue (id) WHERE leased_until IS NULL",
)
ENQUEUE = "INSERT INTO queue (body) VALUES (%b)"
COPY = "COPY queue (body) FROM STDIN (FORMAT BINARY)"
COPY_HEAD = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
COPY_END = b"\xff\xff"
LEASE = (
    f"UPDATE queue SET leased_until = now() + interval '{LEASE_SECONDS} s', attempt = attempt + 1 WHERE id = ANY(ARRAY("
    "SELECT id FROM queue WHERE leased_until IS NULL ORDER BY id LIMIT %b FOR UPDATE SKIP LOCKED)) RETURNING id, body"
)
DELETE = "DELETE FROM queue WHERE id = %b"
DELETE_MANY = "DELETE FROM queue WHERE id = ANY(%b)"


def binary(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else shutil.which(name) or name


class PostgreSQL:
    name = "PostgreSQL SKIP LOCKED"
    hands_off = False
    batches = True

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.server = Server(directory / "output")
        self._data = directory / "data"
        self._user = USER if os.geteuid() == 0 else None
        self._library: Any = import_module("psycopg")
        self._port = free_port()
        if self._user is not None:
            shutil.chown(directory, self._user)
        subprocess.run(
            [binary("initdb"), "-D", str(self._data), "-U", USER, "-A", "trust", "--no-sync"],
            check=True,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            cwd=directory,
            stdout=subprocess.DEVNULL,
        )

    def start(self) -> None:
        options = {
            "port": self._port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "shared_buffers": "512MB",
            "max_wal_size": "8GB",
            "checkpoint_timeout": "30min",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self.server.start([binary("postgres"), "-D", self._data, *settings], user=self._user, cwd=self._data)

    async def _connected(self) -> Any:
        async def connect() -> Any:
            return await self._library.AsyncConnection.connect(
                f"host=127.0.0.1 port={self._port} user={USER} dbname={USER}", autocommit=True, prepare_threshold=0
            )

        return await until_up(connect, (self._library.OperationalError,))

    async def prepare(self) -> None:
        connection = await self._connected()
        await connection.execute("DROP TABLE IF EXISTS queue")
        for statement in TABLE:
            await connection.execute(statement)
        await connection.close()

    async def connect(self) -> Peer:
        return PostgresPeer(await self._connected())

    async def fill(self, count: int) -> None:
        peer = await self.connect()
        for first in range(0, count, 10_000):
            await peer.enqueue(bodies(first, 10_000))
        await peer.close()


class PostgresPeer:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursor = connection.cursor(binary=True)

    async def enqueue(self, bodies: list[bytes]) -> None:
        if len(bodies) == 1:
            await self._cursor.execute(ENQUEUE, bodies)
            return
        async with self._cursor.copy(COPY) as copy:
            rows = [b"\x00\x01%b%b" % (len(body).to_bytes(4, "big"), body) for body in bodies]
            await copy.write(b"".join((COPY_HEAD, *rows, COPY_END)))

    async def lease(self, count: int) -> list[Any]:
        await self._cursor.execute(LEASE, (count,))
        return [row[0] for row in await self._cursor.fetchall()]

    async def complete(self, leases: list[Any]) -> None:
        if len(leases) == 1:
            await self._cursor.execute(DELETE, leases)
        elif leases:
            await self._cursor.execute(DELETE_MANY, (leases,))

    async def wait(self) -> Any:
        raise NotImplementedError("a client of PostgreSQL polls")

    async def close(self) -> None:
        await self._connection.close()
