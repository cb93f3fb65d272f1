"""What the command line makes of servers that break off, or are no nodes at all."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.scripted import Refused, server


def test_what_was_drained_before_the_node_broke_off_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pending.jsonl"
    page = json.dumps({"items": [{"sequenceId": 1}, {"sequenceId": 2}], "remainingCount": 1}).encode()
    with server(b"{}", page, None) as relay:
        said = relay.run("drain", "--to", file)
    assert said.code == 3
    assert f"2 drained items are safe in {file}" in said.err
    assert "its items are in the node's log only" in said.err
    assert [json.loads(line)["sequenceId"] for line in file.read_text().splitlines()] == [1, 2]


def test_call_without_an_answer_may_have_taken_effect() -> None:
    with server(None) as relay:
        said = relay.run("enqueue", "table", "x")
    assert said.code == 3
    assert "whether the call took effect is not known" in said.err


def test_what_was_enqueued_before_the_node_broke_off_is_said() -> None:
    accepted = json.dumps({"results": [{"sequenceId": 1, "duplicate": False}], "stats": {}}).encode()
    lines = '{"resourceType": "t", "resourceId": "x"}\n' * 2
    with server(accepted, None) as relay:
        said = relay.run("enqueue", "--from", "-", "--batch", 1, text=lines)
    assert said.code == 3
    assert "1 items up to line 1 were accepted and stay, go on from line 2" in said.err


def test_server_that_is_no_node_is_recognised() -> None:
    with server(b"<html>") as relay:
        said = relay.run("stats")
    assert said.code == 1
    assert "is not an OmniRelay node" in said.err


def test_proxy_whose_node_is_away_is_not_reachable() -> None:
    with server(Refused(502, "", {}, body=b"<html>")) as relay:
        said = relay.run("stats")
    assert said.code == 3
    assert "answers HTTP 502 in place of a node" in said.err
