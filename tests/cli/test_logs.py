"""Reading the log of a shard: from a running node, and from files."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apsw
import httpx
import pytest

from omnirelay import NewItem, Payload, Shard, SqliteLog
from omnirelay.log.files import WriterLock
from omnirelay.log.sqlite.redo_file import RedoPlan
from omnirelay.log.sqlite.redo_layout import BLOCK_BYTES
from tests.cli.conftest import Relay
from tests.cli.processes import DevNode, command, environment, spawned
from tests.patience import PATIENCE_S

DEFAULT = "resourcelease"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Relay, Path]]:
    """A node with a data directory and four items in it, one of them completed: it runs while the tests read it."""
    data = tmp_path_factory.mktemp("stored")
    with DevNode("--data", data) as node:
        relay = Relay(node.url, DEFAULT)
        for name in ("a", "b", "c", "d"):
            relay.enqueue(name)
        relay.ok("complete", relay.lease())
        yield relay, data


def test_tail_shows_events_and_ends_when_told(relay: Relay) -> None:
    relay.enqueue()
    relay.lease()
    lines = relay.ok("log", "tail", "--no-follow").out.splitlines()
    assert [line.split()[1:3] for line in lines] == [["1", "LeaderElected"], ["2", "Enqueue"], ["3", "LeaseGranted"]]
    assert "payload=table/sales.orders" in lines[1]
    events = relay.ok("log", "tail", "--no-follow", "--from", 2, "--types", "enqueue", "-o", "jsonl").lines
    assert [event["eventType"] for event in events] == ["Enqueue"]
    assert relay.ok("log", "tail", "--no-follow", "--from", 3, "-o", "json").json["sequenceNumber"] == 3


def test_tail_shows_the_progress_of_a_heartbeat(relay: Relay) -> None:
    relay.enqueue()
    relay.ok("heartbeat", relay.lease(), "--fraction", 0.5, "--data", '{"timestamp": 1}')
    [event] = relay.ok("log", "tail", "--no-follow", "--types", "Heartbeat", "-o", "jsonl").lines
    assert event["progress"] == {"fraction": 0.5, "data": {"timestamp": 1}}
    assert 'progress={"fraction":0.5' in relay.ok("log", "tail", "--no-follow", "--types", "Heartbeat").out


def test_tail_shows_what_is_in_a_list(relay: Relay, tmp_path: Path) -> None:
    for name in range(12):
        relay.enqueue(str(name))
    first, rest = tmp_path / "first.jsonl", tmp_path / "rest.jsonl"
    relay.ok("drain", "--to", first, "--max", 1)
    relay.ok("drain", "--to", rest)
    relay.ok("restore", "--from", rest)
    lines = relay.ok("log", "tail", "--no-follow", "--from", 14).out.splitlines()
    assert "=[1]" in lines[0]
    assert "=[2,3,4,5,6,7,8,9,10,11,1 more]" in lines[1]
    assert "=[11 objects]" in lines[2]


def test_tail_follows_new_events(relay: Relay) -> None:
    arguments = ["--from", 2, "-o", "jsonl", "--url", relay.url, "--namespace", relay.namespace]
    tail = spawned("log", "tail", *arguments)
    assert tail.stdout is not None
    for number in (2, 3):
        relay.enqueue()
        assert json.loads(tail.stdout.readline())["sequenceNumber"] == number
    tail.send_signal(signal.SIGINT)
    tail.communicate(timeout=PATIENCE_S)
    assert tail.returncode == 130


def test_tail_ends_when_nobody_reads_it_any_more(relay: Relay) -> None:
    """As with `| head -1`: no further event comes that would tell it so."""
    tail = spawned("log", "tail", "--from", 1, "--url", relay.url, "--namespace", relay.namespace)
    assert tail.stdout is not None
    assert "LeaderElected" in tail.stdout.readline()
    tail.stdout.close()
    assert tail.wait(PATIENCE_S) == 1
    assert tail.stderr is not None
    assert tail.stderr.read() == ""
    tail.stderr.close()


def test_tail_goes_on_behind_the_last_event_when_the_node_is_back(tmp_path: Path) -> None:
    with DevNode("--data", tmp_path) as node:
        port = node.url.rpartition(":")[2]
        tail = spawned("log", "tail", "--from", 1, "-o", "jsonl", "--url", node.url)
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert json.loads(tail.stdout.readline())["eventType"] == "LeaderElected"
        Relay(node.url, DEFAULT).enqueue()
        assert json.loads(tail.stdout.readline())["eventType"] == "Enqueue"
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
        assert tail.stderr.readline().endswith("; waiting for the node, to go on with event 3\n")
    with DevNode("--data", tmp_path, "--port", port) as node:
        Relay(node.url, DEFAULT).enqueue()
        seen = [json.loads(tail.stdout.readline()) for _ in range(2)]
        assert [event["eventType"] for event in seen] == ["LeaderElected", "Enqueue"]
        assert [event["sequenceNumber"] for event in seen] == [3, 4]
        assert node.stop() == 0
        assert "the node ended the stream; waiting for the node" in tail.stderr.readline()
    tail.send_signal(signal.SIGINT)
    assert tail.communicate(timeout=PATIENCE_S)[0] == ""
    assert tail.returncode == 130


def test_tail_from_now_on_shows_what_happened_before_it_was_connected_again(tmp_path: Path) -> None:
    """Nothing had come yet when the connection broke: what is next was decided before."""
    with DevNode("--data", tmp_path) as node:
        port = node.url.rpartition(":")[2]
        relay = Relay(node.url, DEFAULT)
        relay.enqueue()
        tail = spawned("log", "tail", "--types", "Enqueue", "-o", "jsonl", "--url", node.url)
        assert tail.stdout is not None
        assert tail.stderr is not None
        watched = 'omnirelay_rpc_requests_total{procedure="resourcelease::stats"'
        while watched not in httpx.get(f"{node.url}/metrics").text:
            assert tail.poll() is None
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
        assert tail.stderr.readline().endswith("; waiting for the node, to go on with event 3\n")
    with DevNode("--data", tmp_path, "--port", port) as node:
        Relay(node.url, DEFAULT).enqueue()
        assert json.loads(tail.stdout.readline())["sequenceNumber"] == 4
        tail.send_signal(signal.SIGTERM)
        tail.communicate(timeout=PATIENCE_S)


def test_tail_does_not_go_on_in_another_log() -> None:
    with DevNode("--ephemeral") as node:
        port = node.url.rpartition(":")[2]
        relay = Relay(node.url, DEFAULT)
        relay.enqueue()
        tail = spawned("log", "tail", "--from", 2, "-o", "jsonl", "--url", node.url)
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["sequenceNumber"] == 2
        assert node.stop() == 0
    with DevNode("--ephemeral", "--port", port):
        _, err = tail.communicate(timeout=PATIENCE_S)
    assert tail.returncode == 6
    assert "ends with event 1 now, and was followed up to 2: it is another one" in err
    assert err.endswith("(error.log.regressed)\n")


def test_tail_where_nothing_answers_ends_with_3(relay: Relay) -> None:
    said = relay.run("log", "tail", "--url", "http://127.0.0.1:1")
    assert said.code == 3
    assert said.err.startswith("error: nothing answers at http://127.0.0.1:1: connection refused")


def test_export_is_the_same_from_the_node_and_from_its_files(stored: tuple[Relay, Path], tmp_path: Path) -> None:
    relay, data = stored
    by_url, by_files = tmp_path / "url.jsonl", tmp_path / "files.jsonl"
    said = relay.ok("log", "export", "--to-file", by_url)
    assert said.err == "exported 7 events up to 7\n"
    relay.ok("log", "export", "--to-file", by_files, "--data", data)
    assert by_url.read_bytes() == by_files.read_bytes()
    some = relay.ok("log", "export", "--to-file", "-", "--data", data, "--from", 3, "--to", 5)
    assert [event["sequenceNumber"] for event in some.lines] == [3, 4, 5]
    assert relay.ok("log", "export", "--to-file", "-", "--from", 3, "--to", 5).out == some.out
    assert relay.run("log", "export", "--to-file", by_url).code == 2
    beyond = relay.run("log", "export", "--to-file", "-", "--from", 8)
    assert (beyond.code, "has no event from 8 on; nothing was exported" in beyond.err) == (4, True)
    assert relay.run("log", "export", "--to-file", "-", "--from", 5, "--to", 3).code == 2
    assert relay.ok("log", "tail", "--data", data, "--types", "Completed").out.split()[2] == "Completed"


def test_verify_says_what_it_checked_while_the_node_runs(stored: tuple[Relay, Path]) -> None:
    relay, data = stored
    report = relay.ok("log", "verify", "--data", data, "-o", "json").json
    assert (report["namespace"], report["result"], report["horizon"]) == (DEFAULT, "whole", 0)
    assert (report["frames"], report["events"], report["lastSequence"]) == (7, 7, 7)
    assert len(report["chainHead"]) == 64
    assert report["chainHead"] in relay.ok("log", "verify", "--data", data).out


def test_verify_takes_all_namespaces_unless_told(tmp_path: Path) -> None:
    with DevNode("--data", tmp_path / "data", "-n", "one", "-n", "two") as node:
        relay = Relay(node.url, "")
        reports = relay.ok("log", "verify", "--data", tmp_path / "data", "-o", "jsonl").lines
        assert [report["namespace"] for report in reports] == ["one", "two"]
        only = relay.ok("log", "verify", "--data", tmp_path / "data", "-n", "two", "-o", "jsonl").lines
        assert [report["namespace"] for report in only] == ["two"]
        assert relay.run("log", "at", 1, "--data", tmp_path / "data").code == 2


def damage(data: Path) -> None:
    """Flip a bit of the third event."""
    connection = apsw.Connection(str(data / DEFAULT / "leases.db"))
    [[frame]] = connection.execute("SELECT data FROM frames WHERE first = 3").fetchall()
    flipped = bytearray(frame if isinstance(frame, bytes) else str(frame).encode())
    flipped[flipped.index(b'"table"') + 1] ^= 1
    connection.execute("UPDATE frames SET data = ? WHERE first = 3", (flipped.decode(),))
    connection.close()


def test_flipped_byte_is_named_and_ends_with_6(stored: tuple[Relay, Path], tmp_path: Path) -> None:
    relay, data = stored
    relay.ok("log", "backup", tmp_path / "copy", "--data", data)
    damage(tmp_path / "copy")
    said = relay.run("log", "verify", "--data", tmp_path / "copy")
    assert said.code == 6
    assert "frame 3..3 of 'resourcelease'" in said.err
    assert said.err.endswith("(error.log.damaged)\n")
    assert relay.run("log", "verify", "--data", tmp_path / "copy", "-o", "json").json["result"] == "damaged"
    started = spawned("dev", "--port", 0, "--data", tmp_path / "copy")
    _, err = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 6
    assert err.endswith("(error.log.damaged)\n")


def test_state_at_an_event_and_at_a_time(stored: tuple[Relay, Path]) -> None:
    relay, data = stored
    early = relay.ok("log", "at", 3, "--data", data, "-o", "json").json
    assert (early["sequence"], early["ready"], early["ended"]) == (3, 2, 0)
    late = relay.ok("log", "at", 7, "--data", data, "-o", "json").json
    assert (late["ready"], late["ended"], late["leased"]) == (3, 1, 0)
    assert late["digest"] != early["digest"]
    by_time = relay.ok("log", "at", "--time", late["time"], "--data", data, "-o", "json").json
    assert by_time == late
    assert early["digest"] in relay.ok("log", "at", 3, "--data", data).out
    assert relay.run("log", "at", 99, "--data", data).code == 4
    assert relay.run("log", "at", "--time", "1999-01-01", "--data", data).code == 4
    assert relay.run("log", "at", "--data", data).code == 2
    assert relay.run("log", "at", 3, "--time", "1999-01-01", "--data", data).code == 2


def test_backup_of_a_running_node_is_a_directory_that_a_node_goes_on_from(
    stored: tuple[Relay, Path], tmp_path: Path
) -> None:
    relay, data = stored
    copy = tmp_path / "backups" / "monday"
    relay.ok("log", "backup", copy, "--data", data)
    assert relay.ok("log", "verify", "--data", copy, "-o", "json").json["events"] == 7
    assert relay.run("log", "backup", copy, "--data", data).code == 2
    with DevNode("--data", copy) as node:
        stats = Relay(node.url, DEFAULT).ok("stats", "-o", "json").json["stats"]
    assert (stats["readyCount"], stats["completedCount"]) == (3, 1)


@pytest.mark.parametrize("arguments", [("verify",), ("at", "1"), ("backup", "copy")])
def test_what_needs_files_says_so(relay: Relay, arguments: tuple[str, ...]) -> None:
    said = relay.run("log", *arguments, "--url", relay.url)
    assert said.code == 2
    assert "--data DIR" in said.err


def test_directory_without_logs_ends_with_4(relay: Relay, tmp_path: Path) -> None:
    assert relay.run("log", "verify", "--data", tmp_path).code == 4
    assert relay.run("log", "verify", "--data", tmp_path / "nowhere").code == 4
    assert relay.run("log", "tail", "--data", tmp_path).code == 4


# -- recovery ------------------------------------------------------------------------------------


def test_refused_log_names_the_command_that_makes_the_best_of_it(stored: tuple[Relay, Path], tmp_path: Path) -> None:
    relay, data = stored
    copy = tmp_path / "copy"
    relay.ok("log", "backup", copy, "--data", data)
    damage(copy)
    started = spawned("dev", "--port", 0, "--data", copy)
    _, err = started.communicate(timeout=PATIENCE_S)
    before = (copy / DEFAULT / "leases.db").read_bytes()
    assert f"`omnirelay log recover --data {copy}` what can be kept" in err
    said = relay.run("log", "recover", "--data", copy)
    assert said.code == 6
    assert "kept: the events up to 2; lost: 3 to 7" in said.err
    assert "nothing was changed: --accept-loss gives it up" in said.err
    unasked = relay.run("log", "recover", "--data", copy, "--accept-loss")
    assert unasked.code == 2
    assert "say --yes" in unasked.err
    assert (copy / DEFAULT / "leases.db").read_bytes() == before


def test_accepted_loss_keeps_what_is_whole_and_starts_a_generation(stored: tuple[Relay, Path], tmp_path: Path) -> None:
    relay, data = stored
    copy = tmp_path / "copy"
    relay.ok("log", "backup", copy, "--data", data)
    damage(copy)
    recovered = relay.ok("log", "recover", "--data", copy, "--accept-loss", "--yes", "-o", "json").json
    assert (recovered["result"], recovered["lastSequence"]) == ("recovered", 2)
    assert recovered["fencesAbove"] >= 7
    assert Path(recovered["damagedFile"]).exists()
    with DevNode("--data", copy) as node:
        again = Relay(node.url, DEFAULT)
        assert again.ok("stats", "-o", "json").json["stats"]["readyCount"] == 1
        started = again.ok("log", "tail", "--no-follow", "--types", "GenerationStarted", "-o", "jsonl").lines
        assert [event["generation"] for event in started] == [2]
        assert again.ok("lease", "-o", "json").json["ownershipToken"]["fence"] > 7
    assert relay.ok("log", "recover", "--data", copy).out == f"the log of {DEFAULT} is whole\n"


@pytest.mark.parametrize(("answer", "code", "files"), [("n", 1, 0), ("y", 0, 1)])
def test_recover_says_what_is_lost_and_asks_at_a_terminal(
    stored: tuple[Relay, Path], tmp_path: Path, answer: str, code: int, files: int
) -> None:
    relay, data = stored
    copy = tmp_path / "copy"
    relay.ok("log", "backup", copy, "--data", data)
    damage(copy)
    here, there = pty.openpty()
    process = subprocess.Popen(
        command("log", "recover", "--data", copy, "--accept-loss"),
        stdin=there,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    os.write(here, answer.encode() + b"\n")
    _, err = process.communicate(timeout=PATIENCE_S)
    os.close(here)
    os.close(there)
    assert process.returncode == code
    assert err.index(b"lost: 3 to 7") < err.index(b"for good?")
    assert len(list((copy / DEFAULT).glob("leases.db.damaged-*"))) == files


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "missing"])
def test_recover_says_what_a_lost_redo_file_costs(stored: tuple[Relay, Path], tmp_path: Path, damaged: bool) -> None:
    """It holds the last events of a node that was killed."""
    relay, _ = stored
    asyncio.run(_crash_with_redo(tmp_path))
    redo = tmp_path / DEFAULT / "leases.redo"
    contents = bytearray(redo.read_bytes())
    contents[2 * BLOCK_BYTES + 200] ^= 1
    if damaged:
        redo.write_bytes(contents)
    else:
        redo.unlink()
    assert relay.run("log", "verify", "--data", tmp_path).code == 6
    said = relay.run("log", "recover", "--data", tmp_path)
    assert said.code == 6
    assert str(redo) in said.err
    assert (
        "kept: the events up to 4; lost: 5 to 6" if damaged else "kept: all events that are known of, up to 2"
    ) in said.err
    recovered = relay.ok("log", "recover", "--data", tmp_path, "--accept-loss", "--yes", "-o", "json").json
    assert recovered["lastSequence"] == (4 if damaged else 2)
    assert relay.ok("log", "verify", "--data", tmp_path, "-o", "json").json["result"] == "whole"
    assert (tmp_path / DEFAULT / "leases.redo.damaged-1").exists() == damaged


async def _crash_with_redo(data: Path) -> None:
    """Six events, of which the last four are in the redo file only."""
    log = SqliteLog.open(data, DEFAULT, redo=RedoPlan(after_frames=1, settle_s=3_600.0))
    shard = await Shard.open(log)
    item = NewItem(payload=Payload(resource_type="table", resource_id="a"))
    await shard.enqueue(item)
    await log.drop_snapshots([], 1)  # Behind the making of the file.
    for _ in range(4):
        await shard.enqueue(item)
    log.abandon()


def test_log_of_which_only_the_witness_is_left_can_be_given_up(tmp_path: Path) -> None:
    with DevNode("--data", tmp_path) as node:
        relay = Relay(node.url, DEFAULT)
        relay.enqueue()
        node.stop()
    (tmp_path / DEFAULT / "leases.db").unlink()
    said = relay.run("log", "recover", "--data", tmp_path, "-n", DEFAULT)
    assert said.code == 6
    assert "kept: no event; lost: 1 to 2" in said.err
    relay.ok("log", "recover", "--data", tmp_path, "-n", DEFAULT, "--accept-loss", "--yes")
    assert relay.ok("log", "verify", "--data", tmp_path, "-o", "json").json["result"] == "whole"


def test_log_that_somebody_writes_to_is_not_recovered(stored: tuple[Relay, Path], tmp_path: Path) -> None:
    relay, data = stored
    copy = tmp_path / "copy"
    relay.ok("log", "backup", copy, "--data", data)
    damage(copy)
    held = WriterLock(copy / DEFAULT / "leases.lock")
    said = relay.run("log", "recover", "--data", copy, "--accept-loss", "--yes")
    held.release()
    assert said.code == 1
    assert "(error.log.locked)" in said.err


def test_log_of_a_newer_version_is_not_called_damaged(stored: tuple[Relay, Path], tmp_path: Path) -> None:
    relay, data = stored
    copy = tmp_path / "copy"
    relay.ok("log", "backup", copy, "--data", data)
    connection = apsw.Connection(str(copy / DEFAULT / "leases.db"))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    said = relay.run("log", "verify", "--data", copy, "-o", "json")
    assert (said.code, said.json["result"]) == (5, "too new")
    assert "has schema version 99, this version of omnirelay knows" in said.err
    for arguments in (["tail"], ["at", 1], ["recover", "--accept-loss", "--yes"]):
        said = relay.run("log", *arguments, "--data", copy)
        assert said.code == 5, arguments
        assert said.err.endswith("upgrade omnirelay (error.log.schema_too_new)\n")
    started = spawned("dev", "--port", 0, "--data", copy)
    _, err = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 5
    assert err.endswith("upgrade omnirelay (error.log.schema_too_new)\n")
