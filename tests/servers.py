"""Real servers for the tests of sinks: PostgreSQL, NATS with JetStream, and Kafka, each on a free port of loopback.

A program that is missing is an error that names it, never a skipped test. `stop` and `kill` may come at any time, and
`start` again after them: data and port stay.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.processes import children_of, freeze, thaw, wait_gone

PASSWORD_USER = "careful"
KAFKA = Path(__file__).parents[1] / "build" / "kafka"


_OWNED: list[socket.socket] = []
"""What keeps the ports of this process from every other one, until it ends."""


def free_port() -> int:
    """A port that nobody has, and that nobody gets before the server has it, nor while it is down for a moment.

    Connections of all processes leave from the upper half of the numbers: a port from there could be taken by any of
    them meanwhile, and whoever tries it before somebody listens may even be connected with itself. So it is one from
    below, and tests that run beside us see by a name that belongs to the same network that it is given away.
    """
    for port in random.SystemRandom().sample(range(15_000, 30_000), 1_000):
        owner = socket.socket(socket.AF_UNIX)
        try:
            owner.bind(f"\0omnirelay-tests-port-{port}")
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
        except OSError:
            owner.close()
            continue
        _OWNED.append(owner)
        return port
    raise AssertionError("no port of a thousand is free")


def program(name: str, *, fetched_by: str) -> str:
    """The path of a program. Fails the test that needs it when it is not there."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    path = str(found[-1]) if found else shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    assert path, f"{name} is missing: run {fetched_by}"
    return path


class Server(ABC):
    """One process with its files in a directory of its own, which goes when the server is removed."""

    user: str | None = None
    at_once = signal.SIGKILL
    """The quickest end there is when nothing need be kept."""

    def __init__(self) -> None:
        # Not below pytest's directories: those belong to us alone, and some servers refuse to run as root.
        self.directory = Path(tempfile.mkdtemp(prefix="omnirelay-server-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self.user is not None:
            shutil.chown(self.directory, self.user, self.user)

    @abstractmethod
    def command(self) -> Sequence[str | Path]: ...

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        """Returns when it takes connections."""
        assert self._process is None, "it runs already"
        with open(self.directory / "output", "ab") as output:
            self._process = subprocess.Popen(
                [str(part) for part in self.command()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=self.environment(),
                user=self.user,
                group=self.user,
                extra_groups=[] if self.user else None,
            )
        self._wait(self.takes_connections)

    def takes_connections(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), PATIENCE_S).close()
        except OSError:
            return False
        return True

    def _wait(self, ready: Callable[[], bool]) -> None:
        process = self._process
        assert process is not None
        pause = threading.Event()
        until = time.monotonic() + PATIENCE_S
        while not ready():
            assert process.poll() is None, f"it ended by itself:\n{self.output()[-3_000:]}"
            assert time.monotonic() < until, f"it did not start:\n{self.output()[-3_000:]}"
            pause.wait(0.02)  # Nothing tells that a port is open.

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """As kill -9 would."""
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """It hangs: connections stay, and nothing is answered until `resume`. True when this returns."""
        assert self._process is not None
        freeze(self._process)

    def resume(self) -> None:
        assert self._process is not None
        thaw(self._process)

    def remove(self) -> None:
        self.stop(self.at_once)
        shutil.rmtree(self.directory, ignore_errors=True)


class PostgresServer(Server):
    """As initdb makes it. It refuses to run as root; then it runs as the user `postgres`."""

    user = "postgres" if os.geteuid() == 0 else None
    at_once = signal.SIGQUIT

    def __init__(self, *, fsync: bool = False) -> None:
        super().__init__()
        self._fsync = fsync
        initdb = program("initdb", fetched_by="scripts/install-servers")
        subprocess.run(
            [initdb, "-D", "data", "-U", "postgres", "-A", "trust", "--no-sync", "--encoding=UTF8", "--locale=C"],
            check=True,
            cwd=self.directory,
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            stdout=subprocess.DEVNULL,
        )

        # Everybody is let in, except for one user who has to know a password.
        rules = self.directory / "data" / "pg_hba.conf"
        rules.write_text(f"host all {PASSWORD_USER} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")

    def command(self) -> Sequence[str | Path]:
        options = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [program("postgres", fetched_by="scripts/install-servers"), "-D", "data", *settings]

    def takes_connections(self) -> bool:
        ready = program("pg_isready", fetched_by="scripts/install-servers")
        command = [ready, "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends its connections instead of waiting for them."""
        if number == signal.SIGKILL and self._process is not None:
            # Its children go on for a moment after it and hold on to the port and to shared memory. It is stopped
            # first, so that it starts none while they are counted.
            freeze(self._process)
            children = children_of(self._process.pid)
            super().stop(number)
            wait_gone(children)
            (self.directory / "data" / "postmaster.pid").unlink(missing_ok=True)
            return
        super().stop(number)

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"


class NatsServer(Server):
    """With JetStream on files; `more` is text of its configuration."""

    def __init__(self, more: str = "") -> None:
        super().__init__()
        (self.directory / "nats.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.directory}/jetstream" }}\n{more}\n'
        )

    def command(self) -> Sequence[str | Path]:
        return [program("nats-server", fetched_by="scripts/install-servers"), "-c", "nats.conf"]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


class KafkaServer(Server):
    """One broker that is its own controller. `scripts/fetch-kafka` brings the jars."""

    def __init__(self) -> None:
        super().__init__()
        jars = KAFKA / "jars"
        assert list(jars.glob("kafka_*.jar")), f"Kafka is missing in {KAFKA}: run scripts/fetch-kafka"
        self._classes = f"{jars}/*"
        controller = free_port()
        (self.directory / "server.properties").write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}
controller.listener.names=CONTROLLER
log.dirs={self.directory}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
num.partitions=3
"""
        )
        self._java("kafka.tools.StorageTool", "format", "-t", "b21uaXJlbGF5LXRlc3RzMQ", "-c", "server.properties")

    def _java_command(self, *arguments: str) -> list[str]:
        java = program("java", fetched_by="the installation of a Java of version 17 or later")
        return [java, "-Xmx512m", "-cp", self._classes, *arguments]

    def _java(self, *arguments: str) -> None:
        done = subprocess.run(
            self._java_command(*arguments), cwd=self.directory, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def command(self) -> Sequence[str | Path]:
        return self._java_command("kafka.Kafka", "server.properties")

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"
