"""What the engine asks for by itself: time, caps, options, leadership, generations; and what a replay gives."""

from __future__ import annotations

import msgspec
import pytest

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.evolve import evolve
from omnirelay.core.options import QueueOptions
from omnirelay.core.snapshot import digest, dump, load
from omnirelay.core.state import State
from omnirelay.errors import LogDamaged
from tests.builders import Kernel, new_item, replay, stored_and_read

SECOND = 1_000
JUMP = 1 << 32


# -- time and caps -------------------------------------------------------------------------------


def test_a_quiet_shard_has_nothing_to_do() -> None:
    kernel = Kernel()
    assert kernel.state.next_due() is None
    assert not kernel.state.time_has_work(kernel.now_ms + 10**9)


def test_the_next_thing_to_happen_is_known() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a", delay_ms=5_000), new_item("b"))
    assert kernel.state.next_due() == kernel.now_ms + 5_000
    token = kernel.lease_one(lease_duration_ms=2_000).token
    assert kernel.state.next_due() == kernel.now_ms + 2_000
    kernel.complete(token)
    assert kernel.state.next_due() == kernel.now_ms + 5_000


def test_dead_letters_beyond_their_cap_are_purged_oldest_first() -> None:
    kernel = Kernel(QueueOptions(dead_letter_max=2))
    ids = [kernel.dead_item(str(n)) for n in range(4)]
    assert kernel.state.caps_exceeded()
    assert kernel.do(cmd.EnforceCaps()) == 2
    assert [kernel.state_of(each) for each in ids] == ["unknown", "unknown", "dead", "dead"]
    [purged] = kernel.events[-1:]
    assert isinstance(purged, ev.Purged)
    assert (purged.reason, purged.sequence_ids) == ("cap", ids[:2])
    assert kernel.do(cmd.EnforceCaps()) == 0
    assert kernel.events[-1] is purged


def test_dead_letters_beyond_their_bytes_are_purged() -> None:
    kernel = Kernel(QueueOptions(dead_letter_bytes_max=25))
    ids = [kernel.dead_item(str(n), body=b"x" * 10) for n in range(4)]
    kernel.pass_time()
    assert [kernel.state_of(each) for each in ids] == ["unknown", "unknown", "dead", "dead"]
    assert kernel.state.dead.bytes == 20


def test_results_beyond_their_cap_are_forgotten_oldest_first() -> None:
    kernel = Kernel(QueueOptions(result_max=2, result_bytes_max=1_000))
    kernel.enqueue(*[new_item(str(n)) for n in range(4)])
    for granted in kernel.lease(3):
        kernel.complete(granted.token, result=b"r")
    kernel.do(cmd.CancelItem(4))
    kernel.pass_time()
    assert [kernel.state_of(each) for each in (1, 2, 3, 4)] == ["unknown", "unknown", "completed", "cancelled"]
    assert kernel.state.finished_bytes == 1


def test_results_count_by_their_bytes_too() -> None:
    kernel = Kernel(QueueOptions(result_bytes_max=10))
    kernel.enqueue(*[new_item(str(n), body=b"1") for n in range(2)])
    for granted in kernel.lease(2):
        kernel.complete(granted.token, result=b"x" * 8)
    kernel.pass_time()
    assert [kernel.state_of(each) for each in (1, 2)] == ["unknown", "completed"]


# -- options -------------------------------------------------------------------------------------


def test_options_take_effect_by_an_event_and_only_when_they_differ() -> None:
    kernel = Kernel(QueueOptions(capacity=5))
    assert kernel.kinds(1) == ["OptionsChanged"]
    written = len(kernel.events)
    kernel.do(cmd.ChangeOptions(QueueOptions(capacity=5)))
    assert len(kernel.events) == written
    assert kernel.replayed().options.capacity == 5


def test_lowering_the_capacity_loses_nothing() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item(str(n)) for n in range(5)])
    kernel.do(cmd.ChangeOptions(QueueOptions(capacity=1, reserve=0)))
    assert kernel.state.live_count == 5
    for granted in kernel.lease(5):
        kernel.fail(granted.token)
    assert kernel.state.pending_count == 5


# -- leadership ----------------------------------------------------------------------------------


def test_a_restart_moves_live_leases_by_the_outage() -> None:
    kernel = Kernel()
    kernel.enqueue()
    granted = kernel.lease_one()
    kernel.pass_time(10 * SECOND)
    kernel.do(cmd.AdvanceTime())
    kernel.restart(down_ms=100 * SECOND)
    assert kernel.state.leased.first_key() == granted.expires_at + 100 * SECOND
    kernel.pass_time(19_999)
    kernel.complete(granted.token)


def test_a_lease_whose_owner_died_with_the_shard_still_ends() -> None:
    kernel = Kernel()
    kernel.enqueue()
    granted = kernel.lease_one()
    kernel.restart(down_ms=100 * SECOND)
    kernel.pass_time(30 * SECOND)
    assert kernel.state_of(1) == "ready"
    assert kernel.lease_one().fence > granted.fence


def test_the_first_start_of_a_log_moves_nothing() -> None:
    kernel = Kernel()
    kernel.do(cmd.ElectLeader(1, "node-1"))
    [elected] = kernel.events
    assert isinstance(elected, ev.LeaderElected)
    assert elected.down_from == elected.timestamp


def test_a_generation_jumps_past_everything_known_anywhere() -> None:
    kernel = Kernel()
    kernel.enqueue()
    kernel.do(cmd.StartGeneration("restored backup", 10**15))
    assert kernel.state.sequence == 10**15 + JUMP
    assert kernel.state.generation == 2
    assert kernel.lease_one().fence > 10**15 + JUMP
    assert kernel.enqueue() == [2 + JUMP]


def test_a_generation_does_not_hide_the_outage_before_it() -> None:
    """A start on unproven history writes GenerationStarted first; leases move by the outage all the same."""
    kernel = Kernel()
    kernel.enqueue()
    granted = kernel.lease_one()
    last_sign_of_life = kernel.now_ms
    kernel.now_ms += 100 * SECOND
    kernel.do(cmd.StartGeneration("witness missing", 0))
    kernel.do(cmd.ElectLeader(2, "node-1", last_sign_of_life))
    assert kernel.state.leased.first_key() == granted.expires_at + 100 * SECOND


# -- replay and snapshots ------------------------------------------------------------------------


def busy_kernel() -> Kernel:
    """A shard with something of everything."""
    kernel = Kernel(QueueOptions(requeue_delay_ms=1_000, max_delivery_attempts=2))
    kernel.enqueue(*[new_item(str(n), body=b"body", attributes={"n": str(n)}, request_id=f"r{n}") for n in range(12)])
    tokens = [granted.token for granted in kernel.lease(8, request_id="call-1")]
    kernel.complete(tokens[0], result=b"42", follow_ups=[new_item("next", delay_ms=100)])
    kernel.fail(tokens[1], reason="boom")
    kernel.fail(tokens[2], mode="dead")
    kernel.release(tokens[3], delay_ms=50)
    kernel.heartbeat(tokens[4], progress=cmd.Progress(fraction=0.25))
    kernel.do(cmd.CancelItem(tokens[5].sequence_id, reason="stop"))
    kernel.do(cmd.CancelItem(12))
    kernel.pass_time(31 * SECOND)
    kernel.do(cmd.RestoreItems(kernel.do(cmd.DrainItems(2)).items))
    kernel.lease(1, request_id="call-2")
    return kernel


def test_a_replay_gives_the_live_state() -> None:
    kernel = busy_kernel()
    assert digest(kernel.replayed()) == kernel.digest()


def test_a_snapshot_gives_the_live_state_and_goes_on_like_it() -> None:
    kernel = busy_kernel()
    header, chunks = dump(kernel.state)
    other = Kernel()
    other.state, other.now_ms = load(header, list(chunks)), kernel.now_ms
    assert other.digest() == kernel.digest()
    other.ids = kernel.ids = lambda: "same"
    assert other.lease(20, request_id="call-1") == kernel.lease(20, request_id="call-1")
    for each in (kernel, other):
        each.pass_time(200 * SECOND)
        each.do(cmd.RedriveItems(cmd.DeadLetterSelection(everything=True)))
    assert other.digest() == kernel.digest()


def test_every_prefix_of_a_log_is_a_state_that_goes_on_to_the_end() -> None:
    kernel = busy_kernel()
    for cut in range(len(kernel.events)):
        header, chunks = dump(replay(kernel.events[:cut]))
        assert digest(replay(kernel.events[cut:], load(header, list(chunks)))) == kernel.digest()


def test_the_digest_sees_every_event() -> None:
    kernel = busy_kernel()
    state, seen = State(), set()
    for event in stored_and_read(kernel.events):
        evolve(state, event)
        seen.add(digest(state))
    assert len(seen) == len(kernel.events)


def test_a_snapshot_that_lost_a_chunk_is_refused() -> None:
    header, chunks = dump(busy_kernel().state)
    whole = list(chunks)
    for missing in range(len(whole)):
        with pytest.raises(LogDamaged):
            load(header, whole[:missing] + whole[missing + 1 :])


def test_a_snapshot_of_another_version_or_of_noise_is_refused() -> None:
    header, chunks = dump(busy_kernel().state)
    whole = list(chunks)
    newer = msgspec.msgpack.encode([99, *msgspec.msgpack.decode(header)[1:]])
    for bad, rest in ((newer, whole), (b"noise", whole), (b"", whole), (header, [b"\xc1"]), (header, [whole[0][:-1]])):
        with pytest.raises(LogDamaged):
            load(bad, rest)


def test_events_are_stored_under_their_fixed_names() -> None:
    kinds = {type(event).__name__ for event in busy_kernel().events}
    assert kinds <= set(ev.EVENT_NUMBERS)
    assert len(set(ev.EVENT_NUMBERS.values())) == len(ev.EVENT_NUMBERS)
    assert [ev.EVENT_NUMBERS[name] for name in ("Enqueue", "LeaseGranted", "Heartbeat", "Completed")] == [1, 2, 3, 4]
    assert [ev.EVENT_NUMBERS[name] for name in ("Failed", "DrainSnapshot", "RestoreSnapshot")] == [5, 6, 7]
