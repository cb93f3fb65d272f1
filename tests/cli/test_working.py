"""Putting work in and taking it out."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Relay
from tests.cli.processes import DevNode, command, environment
from tests.cli.scripted import Refused, server
from tests.patience import PATIENCE_S


def item(relay: Relay, sequence_id: int) -> dict[str, Any]:
    found: dict[str, Any] = relay.ok("get", sequence_id, "-o", "jsonl").lines[0]
    return found


# -- enqueue -------------------------------------------------------------------------------------


def test_enqueue_sends_everything_that_was_said(relay: Relay, tmp_path: Path) -> None:
    body = tmp_path / "body.bin"
    body.write_bytes(b"\x00\xff")
    arguments = ["--body-file", body, "--encoding", "application/x-bits", "-p", 2, "--delay", "1h30m", "-a", "team=a=b"]
    more = ["-a", "k=", "--request-id", "r-1", "--max-attempts", 3, "--weight", 4, "--partition-key", "p"]
    said = relay.ok("enqueue", "table", "sales.orders", *arguments, *more)
    assert said.out == "enqueued as item 1 (1 pending, 0 leased)\n"
    found = item(relay, 1)
    assert found["payload"] == {
        "resourceType": "table",
        "resourceId": "sales.orders",
        "partitionKey": "p",
        "payloadEncoding": "application/x-bits",
        "body": base64.b64encode(b"\x00\xff").decode(),
        "attributes": {"team": "a=b", "k": ""},
        "requestId": "r-1",
    }
    assert (found["state"], found["priority"], found["weight"], found["maxAttempts"]) == ("delayed", 2, 4, 3)


def test_enqueue_takes_an_instant(relay: Relay) -> None:
    sequence_id = relay.enqueue("x", "--not-before", "2999-01-31T08:00:00+00:00")
    assert item(relay, sequence_id)["notBefore"] == "2999-01-31T08:00:00.000+00:00"


def test_same_request_id_is_the_same_item_and_another_payload_is_refused(relay: Relay) -> None:
    relay.enqueue("x", "--request-id", "r")
    assert relay.ok("enqueue", "table", "x", "--request-id", "r").out.startswith("was there already as item 1 ")
    said = relay.run("enqueue", "table", "y", "--request-id", "r")
    assert said.code == 5
    assert said.err.startswith("error: ")
    assert said.err.endswith(" (resourcelease.request_id.conflict)\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("table",),
        ("table", "x", "--delay", "30"),
        ("table", "x", "--not-before", "tomorrow"),
        ("table", "x", "--attribute", "novalue"),
        ("table", "x", "--body", "a", "--body-file", "b"),
        ("table", "x", "--body-file", "does-not-exist"),
        ("table", "x", "--priority", "10"),
        ("table", "x", "--from", "items.jsonl"),
        ("", "x"),
        ("--from", "does-not-exist"),
    ],
)
def test_wrong_usage_of_enqueue_ends_with_2_and_enqueues_nothing(relay: Relay, arguments: tuple[str, ...]) -> None:
    said = relay.run("enqueue", *arguments)
    assert said.code == 2
    assert "rror: " in said.err
    assert relay.ok("stats", "-o", "json").json["stats"]["lastSequence"] <= 1


def test_lines_are_items_or_payloads_with_bodies_as_json_or_base64(relay: Relay) -> None:
    lines = [
        {"payload": {"resourceType": "t", "resourceId": "a", "body": "YWJj"}, "priority": 1},
        {"resourceType": "t", "resourceId": "b", "body": {"n": 1}},
        {"resourceType": "t", "resourceId": "c", "body": [1], "payloadEncoding": "x/y", "requestId": "r"},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    said = relay.ok("enqueue", "--from", "-", "--batch", 2, text=text)
    assert said.out == "enqueued 3 items\n"
    found = [item(relay, number) for number in (1, 2, 3)]
    assert [each["priority"] for each in found] == [1, 5, 5]
    assert [base64.b64decode(each["payload"]["body"]) for each in found] == [b"abc", b'{"n":1}', b"[1]"]
    encodings = [each["payload"]["payloadEncoding"] for each in found]
    assert encodings == ["application/octet-stream", "application/json", "x/y"]
    assert [each["payload"].get("requestId") for each in found] == [None, None, "r"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "line 4 of"),
        ("[]", "line 4 of"),
        ('{"id": 1}', "line 4 of"),
        ('{"resourceType": "", "resourceId": "x"}', "line 4:"),
    ],
)
def test_bad_line_is_named_and_what_came_before_it_stays(relay: Relay, tmp_path: Path, bad: str, why: str) -> None:
    good = '{"resourceType": "t", "resourceId": "x"}'
    file = tmp_path / "items.jsonl"
    file.write_text(f"{good}\n{good}\n{good}\n{bad}\n{good}")
    said = relay.run("enqueue", "--from", file, "--batch", 2)
    assert said.code == 2
    assert why in said.err
    assert "2 items up to line 2 were accepted and stay, go on from line 3" in said.err
    assert relay.ok("stats", "-o", "json").json["stats"]["readyCount"] == 2


def test_results_of_lines_come_as_jsonl(relay: Relay) -> None:
    said = relay.ok("enqueue", "--from", "-", "-o", "jsonl", text='{"resourceType": "t", "resourceId": "x"}')
    assert said.lines == [{"sequenceId": 1, "duplicate": False}]


# -- lease and what follows ----------------------------------------------------------------------


def test_lease_prints_a_token_that_complete_takes(relay: Relay) -> None:
    relay.enqueue("sales.orders", "--body", "do it")
    said = relay.ok("lease", "--peer", "me")
    shown = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert shown["body"] == "do it"
    assert shown["owner"] == "me"
    assert shown["then"] == f"omnirelay complete {shown['token']}"
    done = relay.ok("complete", shown["token"], "--result", "done", "--result-encoding", "text/plain")
    assert done.out == "item 1: completed\n"
    found = item(relay, 1)
    assert (found["state"], base64.b64decode(found["result"])) == ("completed", b"done")
    assert found["resultEncoding"] == "text/plain"


def test_lease_that_got_nothing_ends_with_4(relay: Relay) -> None:
    said = relay.run("lease")
    assert (said.code, said.out, said.err) == (4, "", "nothing to lease\n")
    assert relay.run("lease", "-o", "json").json == {}
    assert relay.run("lease", "--max", 2, "-o", "json").json == {"leases": []}


def test_lease_obeys_types_tenants_number_and_duration(relay: Relay) -> None:
    for name in ("a", "b", "c"):
        relay.enqueue(name)
    assert relay.run("lease", "--type", "file*").code == 4
    assert relay.run("lease", "--tenant", "nobody").code == 4
    said = relay.ok("lease", "--type", "nothing", "--type", "tab*", "--max", 2, "--duration", "10m", "-o", "json")
    leases = said.json["leases"]
    assert len(leases) == 2
    assert 9 * 60_000 < leases[0]["remainingMs"] <= 10 * 60_000
    again = relay.ok("lease", "--max", 5)
    assert "sales" not in again.out


def test_lease_waits_for_work(relay: Relay) -> None:
    waiting = subprocess.Popen(
        command("lease", "--wait", "2m", "-o", "json", "--url", relay.url, "--namespace", relay.namespace),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    sequence_id = relay.enqueue()
    out, _ = waiting.communicate(timeout=PATIENCE_S)
    assert json.loads(out)["sequenceId"] == sequence_id


def test_repeated_lease_with_a_request_id_gets_the_same_lease(relay: Relay) -> None:
    relay.enqueue("a")
    relay.enqueue("b")
    first = relay.ok("lease", "--request-id", "once", "-o", "json").json
    assert relay.ok("lease", "--request-id", "once", "-o", "json").json["ownershipToken"] == first["ownershipToken"]


def test_leases_are_piped_into_complete(node: DevNode, relay: Relay) -> None:
    relay.enqueue("a")
    env = environment(OMNIRELAY_URL=node.url, OMNIRELAY_NAMESPACE=relay.namespace)
    lease = subprocess.Popen(command("lease", "-o", "json"), stdout=subprocess.PIPE, env=env)
    complete = subprocess.Popen(
        command("complete", "-"), stdin=lease.stdout, stdout=subprocess.PIPE, text=True, env=env
    )
    out, _ = complete.communicate(timeout=PATIENCE_S)
    lease.communicate()
    assert (lease.returncode, complete.returncode, out) == (0, 0, "item 1: completed\n")


@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_several_leases_are_acknowledged_at_once(relay: Relay, output: str) -> None:
    for name in ("a", "b"):
        relay.enqueue(name)
    leases = relay.ok("lease", "--max", 2, "-o", output).out
    assert relay.ok("complete", "-", text=leases).out == "item 1: completed\nitem 2: completed\n"
    again = relay.run("fail", "-", text=leases)
    assert again.code == 5
    assert "2 of 2 were refused" in again.err


def test_an_empty_lease_in_a_pipe_ends_with_4(relay: Relay) -> None:
    said = relay.run("complete", "-", text="{}\n")
    assert (said.code, said.err) == (4, "error: there is no lease in the input\n")


@pytest.mark.parametrize("token", ["x", "1:2", "1:x:y", "1:2:y:z", "{", '{"a":1}', "[3]"])
def test_what_is_no_token_ends_with_2(relay: Relay, token: str) -> None:
    assert relay.run("complete", token).code == 2


def test_tokens_come_without_fence_and_as_json_too(relay: Relay) -> None:
    relay.enqueue()
    token = relay.lease()
    number, attempt, lease_id, _ = token.split(":")
    relay.ok("heartbeat", f"{number}:{attempt}:{lease_id}")
    relay.ok("complete", json.dumps({"SequenceId": int(number), "Attempt": int(attempt), "LeaseId": lease_id.upper()}))


def test_stale_tokens_wrong_fences_and_other_owners_are_refused_with_5(relay: Relay) -> None:
    relay.enqueue()
    token = relay.lease()
    wrong = f"{token.rpartition(':')[0]}:99999"
    assert "error.resourcelease.fence_mismatch" in relay.run("complete", wrong).err
    assert relay.run("complete", wrong).code == 5
    said = relay.run("heartbeat", token, "--peer", "somebody-else")
    assert said.code == 5
    assert "error.resourcelease.not_owner" in said.err
    relay.ok("release", token)
    said = relay.run("complete", token)
    assert said.code == 5
    assert "error.taskqueue.lease_inactive" in said.err


def test_heartbeat_keeps_progress_and_hears_of_a_cancel(relay: Relay) -> None:
    relay.enqueue()
    token = relay.lease()
    said = relay.ok("heartbeat", token, "--fraction", 0.5, "--message", "half", "--data", '{"file": 12}')
    assert said.out.startswith("item 1: kept for ")
    assert item(relay, 1)["progress"] == {"fraction": 0.5, "message": "half", "data": {"file": 12}}
    relay.ok("cancel", 1)
    assert "a cancel was requested" in relay.ok("heartbeat", token).out
    assert relay.run("heartbeat", token, "--data", "{").code == 2


def test_fail_tries_again_later_releases_or_kills(relay: Relay) -> None:
    relay.enqueue()
    said = relay.ok("fail", relay.lease(), "--reason", "disk", "--error-code", "io", "--delay", "1h")
    assert said.out.startswith("item 1: it is delayed now, again in ")
    assert item(relay, 1)["lastError"] == {"message": "disk", "code": "io"}
    relay.enqueue("b")
    assert "ready" in relay.ok("fail", relay.lease(), "--mode", "release", "--delay", "0s").out
    assert "dead" in relay.ok("fail", relay.lease(), "--mode", "dead").out


def test_release_hands_the_item_back_without_burning_the_attempt(relay: Relay) -> None:
    relay.enqueue()
    relay.ok("release", relay.lease())
    assert (item(relay, 1)["state"], item(relay, 1)["attempt"]) == ("ready", 1)
    relay.ok("release", relay.lease(), "--delay", "1h")
    assert item(relay, 1)["state"] == "delayed"


def test_batches_that_are_too_large_for_a_node_are_sent_in_parts(relay: Relay, tmp_path: Path) -> None:
    lines = "".join(f'{{"resourceType": "t", "resourceId": "r{number}"}}\n' for number in range(9_000))
    assert relay.ok("enqueue", "--from", "-", "--batch", 10_000, text=lines).out == "enqueued 9000 items\n"
    file = tmp_path / "pending.jsonl"
    relay.ok("drain", "--to", file)
    drained = [json.loads(line)["payload"]["resourceId"] for line in file.read_text().splitlines()]
    assert drained == [f"r{number}" for number in range(9_000)]
    assert relay.ok("restore", "--from", file, "--batch", 10_000).out == "restored 9000 items, 0 were there already\n"


def test_parts_of_a_batch_are_as_small_as_they_must_be_and_name_their_lines() -> None:
    refused = Refused(413, "resourcelease.payload.too_large", {"field": "items"})
    accepted = json.dumps({"results": [{"sequenceId": 1, "duplicate": False}] * 2, "stats": {}}).encode()
    bad = Refused(400, "resourcelease.priority.invalid", {"index": "1"})
    lines = "".join(f'{{"resourceType": "t", "resourceId": "r{number}"}}\n' for number in range(1, 7))
    with server(refused, accepted, bad) as node:
        said = node.run("enqueue", "--from", "-", "--batch", 4, text=lines)
    sent = [[item["payload"]["resourceId"] for item in body["items"]] for _, body in node.asked]
    assert sent == [["r1", "r2", "r3", "r4"], ["r1", "r2"], ["r3", "r4"]]
    assert said.code == 2
    assert "line 4: " in said.err
    assert "2 items up to line 2 were accepted and stay, go on from line 3" in said.err


def test_item_that_is_too_large_by_itself_is_not_divided() -> None:
    refused = Refused(413, "resourcelease.payload.too_large", {"index": "1"})
    with server(refused) as node:
        said = node.run("enqueue", "--from", "-", text='{"resourceType": "t", "resourceId": "r"}\n' * 2)
    assert said.code == 2
    assert "line 2: " in said.err
