"""Commands that only look, and the forms in which they print."""

from __future__ import annotations

import signal
import threading

import pytest

from omnirelay.cli.options import interval_of
from tests.cli.conftest import Relay
from tests.cli.processes import spawned
from tests.patience import PATIENCE_S


def cells(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_stats_count_the_shard(relay: Relay) -> None:
    relay.dead("a")
    relay.enqueue("b", "--delay", "1h")
    relay.enqueue("c")
    relay.enqueue("d")
    relay.lease()
    relay.ok("pause", "--reason", "tea")
    shown = relay.ok("stats").out
    for pair in (["ready", "1"], ["delayed", "1"], ["leased", "1"], ["dead", "1"]):
        assert pair in cells(shown)
    assert "everything" in shown
    assert "tea" in shown
    stats = relay.ok("stats", "-o", "json").json["stats"]
    assert stats["pendingCount"] == 2
    assert relay.ok("stats", "-o", "jsonl").lines[0]["readyCount"] == 1


def test_backpressure_shows_the_watermarks(relay: Relay) -> None:
    assert ["backpressure", "off"] in cells(relay.ok("backpressure").out)
    assert relay.ok("backpressure", "-o", "json").json["isActive"] is False


def test_peek_lists_leases_by_age_with_owner_fence_expiry_and_progress(relay: Relay) -> None:
    for name in ("a", "b"):
        relay.enqueue(name)
    relay.ok("lease", "--peer", "slow", "--duration", "10m")
    second = relay.ok("lease", "--peer", "quick", "--duration", "5m", "-o", "json").json["ownershipToken"]
    relay.ok("heartbeat", f"1:1:{relay.ok('get', 1, '-o', 'json').json['item']['ownershipToken']['leaseId']}")
    relay.ok("heartbeat", f"2:1:{second['leaseId']}", "--fraction", 0.25, "--message", "a quarter")
    head, first, other = relay.ok("peek", "--state", "leased").out.splitlines()
    columns = ["id", "type", "resource", "owner", "principal", "fence", "attempt", "expires", "last", "heartbeat"]
    assert head.split() == [*columns, "progress"]
    assert first.split()[:4] == ["1", "table", "a", "slow"]
    assert other.split()[:4] == ["2", "table", "b", "quick"]
    assert str(second["fence"]) in other.split()
    assert other.endswith("25% a quarter")
    assert "ago" in first


def test_peek_pages_until_it_has_enough_and_says_when_there_is_more(relay: Relay) -> None:
    lines = "".join(f'{{"resourceType": "t", "resourceId": "r{number}"}}\n' for number in range(1_500))
    relay.ok("enqueue", "--from", "-", text=lines)
    assert len(relay.ok("peek", "--max", 1_200, "-o", "jsonl").lines) == 1_200
    assert "there are more" in relay.ok("peek", "--max", 5).out
    assert len(relay.ok("peek", "--max", 2_000, "-o", "json").json["items"]) == 1_500
    assert relay.ok("peek", "--type", "other").out == "no ready items\n"
    assert relay.run("peek", "--state", "lost").code == 2


def test_long_tables_have_a_line_for_every_item(relay: Relay) -> None:
    lines = "".join(f'{{"resourceType": "t", "resourceId": "r{number}"}}\n' for number in range(12_000))
    relay.ok("enqueue", "--from", "-", "--batch", 4_000, text=lines)
    heading, *rows = relay.ok("peek", "--max", 20_000).out.splitlines()
    assert heading.split()[:3] == ["id", "type", "resource"]
    assert [row.split()[2] for row in rows] == [f"r{number}" for number in range(12_000)]
    assert len({row.index(" r") for row in rows} | {heading.index(" resource")}) == 1


@pytest.mark.parametrize("state", ["ready", "delayed", "dead", "completed", "cancelled"])
def test_peek_shows_each_state(relay: Relay, state: str) -> None:
    relay.enqueue("ready")
    relay.ok("complete", relay.lease(), "--result", "fine")
    relay.dead("dead")
    relay.enqueue("ready")
    relay.enqueue("delayed", "--delay", "1h")
    relay.ok("cancel", relay.enqueue("cancelled"))
    rows = cells(relay.ok("peek", "--state", state).out)[1:]
    assert [row[2] for row in rows] == [state if state != "completed" else "ready"]


def test_why_has_a_line_per_gate_or_says_that_it_is_next(relay: Relay) -> None:
    relay.enqueue()
    assert relay.ok("why", 1).out == "item 1 is ready: it is next\n"
    relay.ok("pause", "--type", "table", "--reason", "tea", "--until", "2999-01-01T00:00:00Z")
    head, _, gate = relay.ok("why", 1).out.splitlines()
    assert head == "item 1 is ready:"
    assert gate.startswith("pause  ")
    assert "tea" in gate
    assert "2999-01-01" in gate
    assert relay.ok("why", 1, "-o", "jsonl").lines[0]["gate"] == "pause"
    assert relay.run("why", 99).code == 4


def test_introspect_shows_the_node(relay: Relay) -> None:
    shown = relay.ok("introspect").out
    assert ["url", relay.url] in cells(shown)
    assert [relay.namespace, "memory", "ready", "0", "0", "0", "1"] in cells(shown)
    assert relay.ok("introspect", "-o", "json").json["node"]["url"] == relay.url


def test_cells_cannot_move_the_cursor_or_be_markup(relay: Relay) -> None:
    relay.enqueue("[red]x[/red]", "--body", "\x1b[2Jgone [bold]")
    shown = relay.ok("get", 1).out
    assert "[red]x[/red]" in shown
    assert r"\x1b[2Jgone [bold]" in shown
    assert "\x1b" not in shown


def test_watch_looks_again_and_again_until_it_is_interrupted(relay: Relay) -> None:
    arguments = ["--watch", "--interval", "10ms", "-o", "jsonl", "--url", relay.url, "-n", relay.namespace]
    watching = spawned("stats", *arguments)
    assert watching.stdout is not None
    seen = [watching.stdout.readline() for _ in range(3)]
    assert all('"readyCount":0' in line for line in seen)
    relay.enqueue()
    assert any('"readyCount":1' in line for line in watching.stdout)
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=PATIENCE_S)
    assert (watching.returncode, err) == (130, "")


def test_there_is_always_a_pause_between_two_looks() -> None:
    assert interval_of("0s") == interval_of("1ms") == 100
    assert interval_of("2s") == 2_000
    assert interval_of("999999999999999d") / 1000 < threading.TIMEOUT_MAX


def test_nothing_answers(relay: Relay) -> None:
    said = relay.run("stats", "--url", "http://127.0.0.1:1")
    assert said.code == 3
    assert said.err.startswith("error: nothing answers at http://127.0.0.1:1: connection refused; start a node with ")


def test_an_unknown_namespace_fails_and_says_how_to_find_the_right_one(relay: Relay) -> None:
    said = relay.run("stats", "--namespace", "nowhere")
    assert said.code == 1
    assert "omnirelay introspect" in said.err
    assert said.err.endswith("(unimplemented)\n")


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://"])
def test_what_is_no_address_is_wrong_usage(relay: Relay, url: str) -> None:
    assert relay.run("stats", "--url", url).code == 2
