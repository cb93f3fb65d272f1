from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from omnirelay.cli.app import app
from tests.cli.processes import DevNode

NAMESPACES = [f"shard{number:03d}" for number in range(200)]


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Relay:
    """The command line in this process, pointed at a namespace that no other test uses."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace

    def run(self, *arguments: object, text: str | bytes | None = None) -> Said:
        env = {"OMNIRELAY_URL": self.url, "OMNIRELAY_NAMESPACE": self.namespace, "NO_COLOR": "1"}
        result = CliRunner(env=env).invoke(app, [str(argument) for argument in arguments], input=text)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    def ok(self, *arguments: object, text: str | bytes | None = None) -> Said:
        said = self.run(*arguments, text=text)
        assert said.code == 0, said
        return said

    def enqueue(self, resource_id: str = "sales.orders", *arguments: object) -> int:
        sequence_id: int = self.ok("enqueue", "table", resource_id, *arguments, "-o", "json").json["sequenceId"]
        return sequence_id

    def lease(self) -> str:
        """A token in its short form."""
        token = self.ok("lease", "-o", "json").json["ownershipToken"]
        return f"{token['sequenceId']}:{token['attempt']}:{token['leaseId']}:{token['fence']}"

    def dead(self, resource_id: str = "sales.orders", *arguments: object, error_code: str = "bad.schema") -> int:
        """An item that died."""
        sequence_id = self.enqueue(resource_id, *arguments)
        self.ok("fail", self.lease(), "--mode", "dead", "--reason", "no such column", "--error-code", error_code)
        return sequence_id


@pytest.fixture(scope="session")
def node() -> Iterator[DevNode]:
    """One node for all tests that only call; each has a namespace of its own."""
    arguments = [argument for name in NAMESPACES for argument in ("--namespace", name)]
    with DevNode("--ephemeral", *arguments) as node:
        yield node


@pytest.fixture(scope="session")
def free_namespaces() -> Iterator[str]:
    return iter(NAMESPACES)


@pytest.fixture
def relay(node: DevNode, free_namespaces: Iterator[str]) -> Relay:
    return Relay(node.url, next(free_namespaces))
