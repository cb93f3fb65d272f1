"""Handling items and the queue."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Relay
from tests.cli.processes import command, environment
from tests.cli.scripted import server
from tests.patience import PATIENCE_S


def test_get_finds_items_by_id_and_request_id_and_waits_for_their_end(relay: Relay) -> None:
    relay.enqueue("x", "--request-id", "r")
    by_id = relay.ok("get", "--request-id", "r", "-o", "json").json["item"]
    assert by_id["sequenceId"] == 1
    relay.ok("complete", relay.lease())
    assert relay.ok("get", 1, "--wait", "30s", "-o", "json").json["item"]["state"] == "completed"


def test_get_of_an_unknown_item_ends_with_4(relay: Relay) -> None:
    said = relay.run("get", 99)
    assert said.code == 4
    assert said.err == "error: item 99 is not known here, or was forgotten (error.resourcelease.unknown_item)\n"
    assert relay.run("get").code == 2
    assert relay.run("get", 1, "--request-id", "r").code == 2


def test_cancel_ends_a_pending_item_and_asks_for_a_running_one(relay: Relay) -> None:
    relay.enqueue("a")
    assert relay.ok("cancel", 1, "--reason", "asked twice").out == "item 1: cancelled\n"
    assert relay.ok("get", 1, "-o", "json").json["item"]["cancelReason"] == "asked twice"
    relay.enqueue("b")
    relay.lease()
    assert "its owner is asked to stop" in relay.ok("cancel", 2).out
    assert relay.ok("cancel", 2, "--force").out == "item 2: cancelled\n"
    assert relay.run("cancel", 99).code == 4


def test_cancel_of_an_item_that_has_ended_otherwise_is_refused(relay: Relay) -> None:
    relay.enqueue()
    relay.ok("complete", relay.lease())
    said = relay.run("cancel", 1)
    assert (said.code, said.out) == (5, "item 1: is completed, there is nothing to cancel\n")
    relay.enqueue()
    relay.ok("cancel", 2)
    assert relay.ok("cancel", 2).out == "item 2: cancelled\n"


def test_pause_and_resume(relay: Relay) -> None:
    said = relay.ok("pause", "--type", "table", "--for", "10m", "--reason", "migrating")
    assert "type table" in said.out
    assert "migrating" in said.out
    relay.ok("pause", "--tenant", "acme", "--until", "2999-01-01T00:00:00Z")
    pauses = relay.ok("pause", "--intake", "-o", "jsonl").lines
    assert {pause.get("until") for pause in pauses} >= {None, "2999-01-01T00:00:00.000+00:00"}
    assert [pause["intake"] for pause in pauses if "tenant" not in pause and "resourceType" not in pause] == [True]
    refused = relay.run("enqueue", "table", "x")
    assert refused.code == 1
    assert "(error.resourcelease.paused)" in refused.err
    relay.ok("resume")
    relay.ok("resume", "--tenant", "acme")
    assert relay.ok("resume", "--type", "table").out == "nothing is paused\n"
    relay.ok("enqueue", "table", "x")
    assert relay.run("pause", "--until", "2999-01-01", "--for", "1s").code == 2


def test_a_pause_for_a_while_is_counted_by_the_clock_of_the_node() -> None:
    stats = {"stats": {"backpressure": {"observedAt": "2001-02-03T04:05:06.789+00:00"}}}
    with server(json.dumps(stats).encode(), b'{"success": true, "pauses": []}') as relay:
        relay.ok("pause", "--for", "10m")
    assert [verb for verb, _ in relay.asked] == ["stats", "pause"]
    assert relay.asked[1][1]["until"] == "2001-02-03T04:15:06.789+00:00"


def test_a_pause_that_never_ends_by_itself_is_wrong_usage(relay: Relay) -> None:
    said = relay.run("pause", "--for", "9999999999d")
    assert said.code == 2
    assert "--for must end before the year 10000" in said.err
    assert relay.ok("stats", "-o", "json").json["stats"]["pauses"] == []


# -- drain and restore ---------------------------------------------------------------------------


def test_drained_items_come_back_as_they_were(relay: Relay, tmp_path: Path) -> None:
    lines = "".join(f'{{"resourceType": "t", "resourceId": "r{number}"}}\n' for number in range(1_203))
    relay.ok("enqueue", "--from", "-", text=lines)
    before = relay.ok("peek", "--max", 2_000, "-o", "json").json
    file = tmp_path / "pending.jsonl"
    said = relay.ok("drain", "--to", file)
    assert said.err == f"drained 1203 items to {file}, 0 pending items remain\n"
    assert len(file.read_text().splitlines()) == 1_203
    assert relay.ok("stats", "-o", "json").json["stats"]["pendingCount"] == 0
    assert relay.ok("restore", "--from", file, "--batch", 100).out == "restored 1203 items, 0 were there already\n"
    assert relay.ok("peek", "--max", 2_000, "-o", "json").json == before
    again = relay.ok("restore", "--from", file, "-o", "json").json
    assert again == {"restoredCount": 0, "duplicateCount": 1_203}


def test_items_move_to_a_shard_that_has_their_ids_in_use(relay: Relay, tmp_path: Path) -> None:
    file = tmp_path / "pending.jsonl"
    for name in ("a", "b"):
        relay.enqueue(name)
    relay.ok("drain", "--to", file)
    relay.ok("restore", "--from", file)
    # The same two as another shard would have sent them: the ids are these, the items are not.
    foreign = "".join(
        json.dumps({**json.loads(line), "payload": {"resourceType": "table", "resourceId": f"foreign-{number}"}}) + "\n"
        for number, line in enumerate(file.read_text().splitlines())
    )
    said = relay.ok("restore", "--from", "-", text=foreign)
    assert said.out == "restored 2 items, 0 were there already; 2 got new ids, theirs were taken\n"
    again = relay.ok("restore", "--from", "-", "-o", "json", text=foreign).json
    assert again == {"restoredCount": 0, "duplicateCount": 2}
    pending = relay.ok("peek", "-o", "json").json["items"]
    assert [item["payload"]["resourceId"] for item in pending] == ["a", "b", "foreign-0", "foreign-1"]


def test_drain_takes_no_more_than_asked_and_writes_to_stdout(
    relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        relay.enqueue(name)
    said = relay.ok("drain", "--to", "-", "--max", 2, "--pause-intake")
    assert [item["sequenceId"] for item in said.lines] == [1, 2]
    assert said.err.startswith("drained 2 items to stdout, 1 pending items remain; all of them are in ")
    assert relay.run("enqueue", "table", "d").code == 1


def test_drain_overwrites_nothing_and_makes_no_file_without_a_node(relay: Relay, tmp_path: Path) -> None:
    relay.enqueue()
    file = tmp_path / "pending.jsonl"
    assert relay.run("drain", "--to", file, "--url", "http://127.0.0.1:1").code == 3
    assert not file.exists()
    file.write_text("precious")
    assert relay.run("drain", "--to", file).code == 2
    assert file.read_text() == "precious"
    assert relay.ok("stats", "-o", "json").json["stats"]["readyCount"] == 1


def test_restore_names_a_bad_line(relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relay.enqueue()
    drained = relay.ok("drain", "--to", "-").out
    said = relay.run("restore", "--from", "-", "--batch", 1, text=drained + '{"payload": {}}\n')
    assert said.code == 2
    assert "line 2 of - is no drained item" in said.err
    assert "1 were restored" in said.err
    bad = json.dumps({**json.loads(drained), "sequenceId": 7, "payload": {"resourceType": "t"}})
    said = relay.run("restore", "--from", "-", text=drained + bad)
    assert said.code == 2
    assert "line 2" in said.err


# -- dead letters --------------------------------------------------------------------------------


def test_dead_letters_are_listed_shown_and_filtered(relay: Relay) -> None:
    relay.dead("a")
    relay.dead("b", error_code="other")
    said = relay.ok("deadletters", "list")
    assert said.out.splitlines()[1].split()[:3] == ["1", "table", "a"]
    assert "no such column (bad.schema)" in said.out
    found = relay.ok("deadletters", "list", "--error-code", "other", "-o", "jsonl").lines
    assert [item["sequenceId"] for item in found] == [2]
    assert relay.ok("deadletters", "list", "--type", "file").out == "no dead items\n"
    assert relay.ok("deadletters", "list", "--max", 1, "-o", "json").json["total"] == 2
    assert "no such column" in relay.ok("deadletters", "show", 1).out
    assert relay.run("deadletters", "show", 3).code == 4


def test_edit_changes_what_was_said_and_keeps_the_rest(relay: Relay) -> None:
    relay.dead("a", "--body", "old", "-a", "k=v", "-a", "l=w", "--request-id", "r", "--encoding", "text/plain")
    before = relay.ok("deadletters", "show", 1, "-o", "json").json["item"]["payload"]
    after = relay.ok("deadletters", "edit", 1, "-a", "k=new", "-o", "json").json["item"]["payload"]
    assert after == {**before, "attributes": {"k": "new", "l": "w"}}
    last = relay.ok("deadletters", "edit", 1, "--body", "new", "-o", "json").json["item"]["payload"]
    assert last == {**after, "body": "bmV3"}
    assert relay.run("deadletters", "edit", 1).code == 2


def test_redrive_makes_dead_letters_pending(relay: Relay) -> None:
    for name in ("a", "b", "c"):
        relay.dead(name)
    assert relay.ok("deadletters", "redrive", 1).out == "1 dead letter redriven\n"
    said = relay.ok("deadletters", "redrive", "--type", "table", "--rate", 0.01, "-o", "json")
    assert said.json == {"redrivenCount": 2}
    assert relay.ok("stats", "-o", "json").json["stats"]["delayedCount"] == 1
    assert relay.run("deadletters", "redrive", "--all").code == 4
    assert relay.run("deadletters", "redrive").code == 2
    assert relay.run("deadletters", "redrive", 1, "--all").code == 2


def test_purge_wants_a_yes(relay: Relay) -> None:
    relay.dead()
    said = relay.run("deadletters", "purge", "--all")
    assert said.code == 2
    assert "--yes" in said.err
    assert relay.ok("deadletters", "purge", "--all", "--yes").out == "1 dead letter purged\n"
    assert relay.run("deadletters", "purge", "--error-code", "none", "--yes").code == 4


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 1), ("y", 0, 0)])
def test_purge_asks_at_a_terminal(relay: Relay, answer: str, code: int, left: int) -> None:
    relay.dead()
    here, there = pty.openpty()
    env = environment(OMNIRELAY_URL=relay.url, OMNIRELAY_NAMESPACE=relay.namespace)
    process = subprocess.Popen(
        command("deadletters", "purge", "1"), stdin=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    os.write(here, answer.encode() + b"\n")
    _, err = process.communicate(timeout=PATIENCE_S)
    os.close(here)
    os.close(there)
    assert process.returncode == code
    assert b"Forget dead letters 1 for good?" in err
    assert relay.ok("stats", "-o", "json").json["stats"]["deadLetterCount"] == left
