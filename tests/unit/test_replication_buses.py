"""What the sinks of PostgreSQL, NATS, Kafka and OpenTelemetry make of events and settings, without a server."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from omnirelay.errors import Unavailable
from omnirelay.replication.addresses import governance_target, holds_password
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.kafka_topic import KafkaSink
from omnirelay.replication.kinds import SinkPlace, make_sink
from omnirelay.replication.loops import OneLoop
from omnirelay.replication.nats_stream import NatsSink, _covers, _credentials, _servers
from omnirelay.replication.otel_logs import OtelSink
from omnirelay.replication.otel_records import request_of
from omnirelay.replication.postgres_rows import storable
from omnirelay.replication.settings import OWN_KINDS, SinkSettings
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.testing.sinks import SHARD, made_event

# -- PostgreSQL ----------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from(["\0", "\\", "u", "0", '"', "a", "\ufffd", "😀"]))
DOCUMENTS = st.recursive(TEXTS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))


def without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [without_nul(each) for each in value]
    return {without_nul(name): without_nul(each) for name, each in value.items()} if isinstance(value, dict) else value


@given(DOCUMENTS)
def test_only_nul_is_replaced_for_jsonb(document: Any) -> None:
    text = json.dumps(document)
    assert json.loads(storable(text)) == without_nul(document)


# -- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "target"),
    [
        (None, "file"),
        ("https://x/y", "webhook"),
        ("nats://x", "nats"),
        ("tls://x", "nats"),
        ("kafka://x:9092,y:9092", "kafka"),
    ],
)
def test_where_governance_goes_is_told_by_the_address(url: str | None, target: str) -> None:
    assert governance_target(url) == target


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me@x/y", False),
        ("postgresql://me:secret@x/y", True),
        ("postgresql://x/y?user=me&PASSWORD=secret", True),
        ("postgresql://x/y?sslpassword=secret", True),
        ("kafka://x:9092,y:9092", False),
        ("nats://me:@x", True),
    ],
)
def test_a_password_in_an_address_is_seen(url: str, expected: bool) -> None:
    assert holds_password(url) is expected


def test_servers_of_nats_are_told_apart() -> None:
    assert _servers("nats://me@a:1,b:2, nats://c:3/") == ["nats://a:1", "nats://b:2", "nats://c:3"]
    assert _credentials("nats://me@a:1,b:2", "x") == {"user": "me", "password": "x"}
    assert _credentials("tls://a:1", "x") == {"token": "x"}
    assert _credentials("nats://a:1", None) == {}


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.b", "a.b", True),
        ("a.b.c", "a.b", False),
        (">", "a", True),
    ],
)
def test_subjects_are_matched_as_a_server_does(pattern: str, subject: str, expected: bool) -> None:
    assert _covers(pattern, subject) is expected


# -- what cannot work ----------------------------------------------------------------------------


def place(directory: Path) -> SinkPlace:
    return SinkPlace("bus", SHARD, directory, lambda item, lease: None)


URLS = {"postgres": "postgresql://x/y", "nats": "nats://x", "kafka": "kafka://x", "otel": "http://x"}


@pytest.mark.parametrize("kind", ["postgres", "nats", "kafka"])
def test_a_password_that_cannot_be_read_is_named(kind: str, tmp_path: Path) -> None:
    settings = SinkSettings(name="bus", kind=kind, url=URLS[kind], password_file="secret")
    with pytest.raises(SinkUnusable, match=r"cannot read the password in .*secret: No such file"):
        make_sink(settings, place(tmp_path))
    (tmp_path / "secret").write_text(" \n")
    with pytest.raises(SinkUnusable, match=r"the password in .*secret is empty"):
        make_sink(settings, place(tmp_path))
    (tmp_path / "secret").write_bytes(b"\xff")
    with pytest.raises(SinkUnusable, match=r"the password in .*secret is no text"):
        make_sink(settings, place(tmp_path))
    (tmp_path / "secret").write_text("x\n")
    make_sink(settings, place(tmp_path))


@pytest.mark.parametrize("made", [NatsSink, KafkaSink, OtelSink])
def test_an_address_of_something_else_is_refused(made: Any) -> None:
    with pytest.raises(SinkUnusable, match=r"the url of an? .* sink begins with"):
        made("ftp://x")


def test_properties_that_would_lose_events_are_refused() -> None:
    with pytest.raises(SinkUnusable, match=r"properties\.acks is always all here"):
        KafkaSink("kafka://x", properties={"acks": "1"})


async def test_a_property_that_does_not_exist_is_named() -> None:
    sink = KafkaSink("kafka://127.0.0.1:1", properties={"no.such.thing": "1"})
    with pytest.raises(SinkUnusable, match=r'No such configuration property: "no\.such\.thing"'):
        await sink.open(SHARD)
    await sink.close()


async def test_a_subject_with_empty_parts_is_refused() -> None:
    sink = NatsSink("nats://127.0.0.1:1")
    with pytest.raises(SinkUnusable, match=r"omnirelay\.events\.a\.\.b is no subject"):
        await sink.open("a..b")
    await sink.close()


async def opened_and_applied(sink: ReplicationSink) -> None:
    await sink.open(SHARD)
    await sink.apply([made_event(1)])


@pytest.mark.parametrize(
    "sink",
    [
        NatsSink("nats://127.0.0.1:1", password="hidden", timeout_ms=2_000),
        KafkaSink("kafka://127.0.0.1:1", timeout_ms=1_000),
        OtelSink("http://127.0.0.1:1/v1/logs"),
    ],
    ids=["nats", "kafka", "otel"],
)
async def test_a_target_that_is_not_there_is_named_and_tried_again(sink: ReplicationSink) -> None:
    refused = 0
    while refused < 2:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1") as caught:
            await opened_and_applied(sink)
        assert "hidden" not in repr(caught.value)
        # On a machine that stands still for a while its time may be over before it hears of the refusal.
        refused += re.search("refused|Connect call failed", caught.value.message) is not None
    await sink.close()


# -- libraries -----------------------------------------------------------------------------------

LIBRARIES = {"postgres": "psycopg", "nats": "nats", "kafka": "confluent_kafka", "otel": "opentelemetry.proto"}


def run_python(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_library_that_is_missing_is_named_with_what_brings_it(kind: str) -> None:
    said = run_python(f"""
import sys
sys.modules[{LIBRARIES[kind]!r}] = None
from pathlib import Path
from omnirelay.replication.kinds import SinkPlace, make_sink
from omnirelay.replication.settings import SinkSettings
from omnirelay.replication.sinks import SinkUnusable
try:
    make_sink(SinkSettings(name="a", kind={kind!r}, url={URLS[kind]!r}), SinkPlace("a", "b", Path(), None))
except SinkUnusable as error:
    print(error)
""")
    assert said.endswith(f"is not installed; pip install 'omnirelay[{kind}]' brings it")


def test_nothing_optional_is_imported_before_it_is_needed() -> None:
    loaded = run_python("""
import sys
import omnirelay, omnirelay.cli.app, omnirelay.node.node
from pathlib import Path
from omnirelay.replication.kinds import SinkPlace, make_sink
from omnirelay.replication.settings import SinkSettings
make_sink(SinkSettings(name="a", kind="governance"), SinkPlace("a", "b", Path(), None))
print(*sorted({name.partition(".")[0] for name in sys.modules}))
""").split()
    assert not {"psycopg", "nats", "confluent_kafka", "opentelemetry", "google"} & set(loaded)
    assert set(LIBRARIES) < set(OWN_KINDS)


# -- OpenTelemetry -------------------------------------------------------------------------------


def test_a_record_has_the_event_and_what_is_needed_to_find_it() -> None:
    good, bad = made_event(1), made_event(2, event_type="Failed")
    [resource] = ExportLogsServiceRequest.FromString(request_of([good, bad])).resource_logs
    assert {each.key: each.value.string_value for each in resource.resource.attributes} == {
        "service.name": "omnirelay",
        "cloud.region": "local",
    }
    [scope] = resource.scope_logs
    first, second = scope.log_records
    assert first.body.string_value.encode() == good.json()
    assert (first.time_unix_nano, first.severity_text) == (good.timestamp * 1_000_000, "INFO")
    assert (second.severity_text, second.severity_number) == ("WARN", 13)
    attributes = {each.key: each.value for each in first.attributes}
    assert attributes["omnirelay.sequence"].int_value == 1
    assert attributes["omnirelay.event.type"].string_value == "Enqueue"
    assert attributes["omnirelay.shard"].string_value == SHARD


TIMES = st.sampled_from([-1, 0, 1, 1_700_000_000_000, (1 << 63) // 1_000_000, 1 << 62])
RECORDED = st.builds(
    lambda sequence, event_type, shard, region, timestamp, text: ReplicatedEvent(
        shard, sequence, sequence - 1, event_type, timestamp, msgspec.json.encode({"body": text}), region
    ),
    st.integers(0, (1 << 63) - 1),
    st.sampled_from(["Enqueue", "Failed", "Später"]),
    st.sampled_from(["jobs", "grün"]),
    st.sampled_from(["local", "eu", ""]),
    TIMES,
    st.text().flatmap(lambda text: st.sampled_from([text, text * 200, text * 20_000])),
)


@given(st.lists(RECORDED, max_size=8))
def test_a_request_has_the_bytes_that_the_library_makes_of_it(events: list[ReplicatedEvent]) -> None:
    made = request_of(events)
    request = ExportLogsServiceRequest.FromString(made)
    assert request.SerializeToString() == made
    records = [
        (resource.resource.attributes[1].value.string_value, record)
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    latest_ms = (1 << 63) // 1_000_000
    assert [
        (region, record.body.string_value.encode(), record.time_unix_nano, record.severity_text)
        for region, record in records
    ] == [
        (
            event.region,
            event.json(),
            min(max(0, event.timestamp), latest_ms) * 1_000_000,
            "WARN" if event.event_type == "Failed" else "INFO",
        )
        for event in events
    ]
    assert [
        (attributes[0].value.string_value, attributes[1].value.string_value, attributes[2].value.int_value)
        for attributes in (record.attributes for _, record in records)
    ] == [(event.event_type, event.shard, event.sequence) for event in events]


# -- a loop of its own ---------------------------------------------------------------------------


async def test_work_runs_in_another_thread_one_after_the_other() -> None:
    loop = OneLoop("test")
    running, most = 0, 0

    async def work() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return threading.current_thread().name

    names = [await loop.run(work) for _ in range(3)]
    assert (names, most) == (["test"] * 3, 1)
    loop.close()
    assert await loop.run(work) == "test"
    loop.close()


async def test_what_is_given_up_has_ended_before_the_next_begins() -> None:
    loop = OneLoop("test")
    begun, said = threading.Event(), []

    async def slow() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            said.append("ended")

    async def next_one() -> None:
        said.append("next")

    call = asyncio.create_task(loop.run(slow))
    await asyncio.to_thread(begun.wait)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await loop.run(next_one)
    assert said == ["ended", "next"]
    loop.close()


async def test_closing_ends_what_is_under_way() -> None:
    loop = OneLoop("test")
    begun = threading.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    call = asyncio.create_task(loop.run(hang))
    await asyncio.to_thread(begun.wait)
    loop.close()
    with pytest.raises(Unavailable, match="closed"):
        await call


async def test_what_work_raises_comes_out() -> None:
    loop = OneLoop("test")

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await loop.run(fail)
    loop.close()
