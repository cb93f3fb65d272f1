"""The replay of an audit has nothing to say about whatever core decides: every command, options that change, crashes,
new generations, drains and restores, pauses, keys and limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis.stateful import run_state_machine_as_test

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.lakehouse.audit_rules import Findings
from omnirelay.lakehouse.audit_watch import Watch
from tests.builders import stored_and_read
from tests.property.gates_driver import WatchedShard
from tests.property.strategies import LONG, profile
from tests.property.test_core_machine import CoreMachine
from tests.property.test_gates_machine import GatesMachine


class Audited:
    """An audit that sees each command as a commit of its own."""

    def __init__(self) -> None:
        self._findings = Findings("replay", "jobs")
        self._watch = Watch(State(), self._findings)

    def see(self, events: Sequence[ev.Event]) -> None:
        if events:
            self._watch.replay(stored_and_read(events))
            self._watch.end_commit(whole=True)
            assert self._findings.named == []

    @property
    def digest(self) -> str:
        return digest(self._watch.state)


class AuditedCore(CoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.audited = Audited()

    def _log(self, out: list[ev.Event]) -> None:
        super()._log(out)
        self.audited.see(out)
        assert self.audited.digest == self.digest


class AuditedShard(WatchedShard):
    def __init__(self) -> None:
        super().__init__()
        self.audited = Audited()

    def _judge(self, command: cmd.Command, out: list[ev.Event]) -> None:
        super()._judge(command, out)
        self.audited.see(out)


class AuditedGates(GatesMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = AuditedShard()


@pytest.mark.timeout(7_200 if LONG else 900)
@pytest.mark.parametrize("machine", [AuditedCore, AuditedGates])
def test_whatever_core_decides_is_clean(machine: type[AuditedCore | AuditedGates]) -> None:
    run_state_machine_as_test(machine, settings=profile(8, 25))
