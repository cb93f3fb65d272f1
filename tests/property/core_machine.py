"""The driver of the core's state machine: does a thing to core and to the model, and knows what must hold.

Every event goes through JSON into a second state, the *shadow*, as a replica would have it; its digest
must be the live one at all times. The live state is now and then thrown away for a replay or a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.decide import apply
from omnirelay.core.evolve import evolve
from omnirelay.core.options import QueueOptions
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.errors import OmniRelayError
from tests.builders import START_MS, lease_ids, replay, stored_and_read
from tests.property import strategies as draw
from tests.property.comparing import assert_same_state
from tests.property.model import Record, Refused, Token, Who
from tests.property.model_handling import Model

T = TypeVar("T")
PICKS = st.integers(0, 40)


class CoreDriver(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.shadow = State()
        self.model = Model(draw.plain_options(QueueOptions()))
        self.now = START_MS
        self.ids = lease_ids()
        self.events: list[ev.Event] = []
        self.deaths: list[int] = []
        """Numbers of DeadLettered events: where a listing of dead letters goes on."""
        self.tokens: list[tuple[Token, Who]] = []
        self.drained: list[tuple[bytes, Record]] = []
        """What left by a drain: as JSON, and as the model knows it."""
        self.acknowledged: set[int] = set()
        self.live_before = 0
        self.digest = digest(self.state)
        self.sound = True
        """Whether the last command went through: after a failure its replay would only add noise."""

    @initialize(options=draw.OPTIONS)
    def start(self, options: QueueOptions) -> None:
        self.command(cmd.ChangeOptions(options), lambda: self.model.change_options(draw.plain_options(options)))

    # -- doing a thing twice -------------------------------------------------------------------

    def command(
        self, command: cmd.Command, expect: Callable[[], T], arrived: int | None = None
    ) -> tuple[Any, T] | None:
        """Do it to the model and to core: both refuse with one code, or both answer. None when refused."""
        self.sound = False
        refused: str | None = None
        expected: T | None = None
        try:
            expected = expect()
        except Refused as error:
            refused = error.code
        out: list[ev.Event] = []
        arrived = self.now if arrived is None else arrived
        try:
            answer = apply(self.state, command, self.now, arrived, self.ids, out)
        except OmniRelayError as error:
            self._check_refusal(error, refused, out)
            return None
        assert refused is None, f"answered {answer!r}, the model says {refused}"
        self._log(out)
        self.model.settle(lambda sequence_id: self.state.items[sequence_id].not_before)
        self.sound = True
        return answer, cast(T, expected)

    def _check_refusal(self, error: OmniRelayError, refused: str | None, out: list[ev.Event]) -> None:
        assert error.code == refused, f"refused with {error!r}, the model says {refused}"
        assert not out
        assert digest(self.state) == self.digest, "a refused command changed something"
        self.sound = True

    def _log(self, out: list[ev.Event]) -> None:
        last = self.events[-1].sequence_number if self.events else 0
        for event in out:
            if not isinstance(event, ev.GenerationStarted):
                assert event.sequence_number == last + 1, "numbers jump only where a generation starts"
            assert event.sequence_number > last
            assert event.timestamp == self.now
            last = event.sequence_number
            if isinstance(event, ev.DeadLettered):
                self.deaths.append(event.sequence_number)
        assert len(self.deaths) == len(self.model.deaths)
        for event in stored_and_read(out):
            evolve(self.shadow, event)
        self.events += out
        self.digest = digest(self.state)
        assert digest(self.shadow) == self.digest, "replay does not give the live state"

    # -- what holds after every step -----------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        assert_same_state(self.state, self.model)
        self._at_most_one_live_lease_per_item()
        self._room_is_never_exceeded()
        self._no_acknowledged_item_vanishes()
        assert self.state.next_due() == self.model.next_due(), "an engine would miss something"

    def _at_most_one_live_lease_per_item(self) -> None:
        live = [item.lease.token for item in self.state.items.values() if item.lease is not None]
        assert len({token.lease_id for token in live}) == len(live)
        assert all(self.state.ended.find(token.sequence_id, token.lease_id) is None for token in live)
        assert len({token.sequence_id for token in live}) == len(live)

    def _room_is_never_exceeded(self) -> None:
        """Beyond capacity and reserve only when the options were lowered, and then it must not grow."""
        live = self.state.live_count
        assert live <= max(self.state.options.items_max, self.live_before)
        self.live_before = live

    def _no_acknowledged_item_vanishes(self) -> None:
        for sequence_id in self.acknowledged:
            assert sequence_id in self.state.items or sequence_id in self.model.gone, sequence_id

    def teardown(self) -> None:
        if self.sound:
            assert digest(replay(self.events)) == digest(self.state)
