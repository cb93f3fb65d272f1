"""`[sinks.NAME]` in the configuration of a node."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest

from omnirelay.node.loading import Loaded, load, show_rows
from omnirelay.node.secret_values import without_secret_values
from omnirelay.node.settings import InvalidConfiguration
from omnirelay.node.settings_schema import json_schema
from omnirelay.node.sink_keys import SINK_KEYS
from omnirelay.replication.settings import OWN_KINDS, FollowSettings

PAGE = (Path(__file__).parents[2] / "docs/replication/sinks.md").read_text()
SNIPPETS = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


class Config:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "omnirelay.toml"

    def load(self, text: str, environ: dict[str, str] | None = None) -> Loaded:
        self.path.write_text(text)
        return load(self.path, environ or {}, {})

    def problems(self, text: str, environ: dict[str, str] | None = None) -> list[str]:
        with pytest.raises(InvalidConfiguration) as caught:
            self.load(text, environ)
        return [problem.replace(f"{self.path}:", "") for problem in caught.value.problems]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tmp_path)


def test_the_snippet_of_the_page_loads(config: Config) -> None:
    archive, reporting, catalog, audit = config.load(SNIPPETS[0]).settings.sinks
    assert (archive.kind, archive.path, archive.rotate_bytes) == ("file", "archive", 64 * 1024 * 1024)
    assert (reporting.follows("orders"), reporting.follows("invoices")) == (True, False)
    assert (catalog.headers, catalog.follow.timeout_ms) == ({"X-Team": "data-platform"}, 10_000)
    assert (audit.follow.required, audit.follow.on_refusal) == (True, "block")
    assert archive.follow == FollowSettings(batch_events=20_000)


def test_one_object_per_event_is_delivered_in_batches_that_a_slow_store_takes_in_time(config: Config) -> None:
    text = "[sinks.a]\nkind='objects'\n[sinks.b]\nkind='objects'\nformat='json'\n"
    segments, objects = config.load(text).settings.sinks
    assert (segments.follow.batch_events, segments.follow.linger_ms) == (50_000, 5_000)
    assert objects.follow == FollowSettings()
    assert config.load(f"{text}batch_events=7").settings.sinks[1].follow == FollowSettings(batch_events=7)


def test_the_page_lists_every_key_with_its_default() -> None:
    for key in SINK_KEYS.values():
        assert f"| `{key.name}` |" in PAGE or key.name in ("options", "url", "secret_file", "headers"), key.name
    for kind in OWN_KINDS:
        assert f"## `{kind}`" in PAGE
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, re.MULTILINE))
    defaults = {key.name: tomllib.loads(f"x = {rows[key.name]}")["x"] for key in SINK_KEYS.values() if key.name in rows}
    assert {
        name: list(v) if isinstance(v := SINK_KEYS[name].written(SINK_KEYS[name].default), tuple) else v
        for name in defaults
    } == defaults


def test_a_sink_is_shown_and_its_lines_are_the_same_configuration(config: Config) -> None:
    loaded = config.load(f"{SNIPPETS[0]}\n[sinks.each]\nkind = 'objects'\nformat = 'json'")
    rows = show_rows(loaded)
    again = config.load("".join(f"{key} = {value}\n" for key, value, _ in rows))
    assert again.settings == loaded.settings
    origins = {key: origin for key, _, origin in rows}
    assert origins["sinks.archive.kind"].endswith("omnirelay.toml:2")
    assert origins["sinks.archive.linger"] == "default"
    assert "sinks.archive.url" not in origins


SECRETS = """
[sinks.lake]
kind = "objects"
url = "s3://lake/leases"
[sinks.lake.options]
access_key_id = "AKIA"
secret_access_key = "hidden-1"
region = "eu-1"
skip_signature = true
more = { Token = "hidden-2", sasKeys = ["hidden-3"] }
[sinks.hook]
kind = "webhook"
url = "https://lake:hidden-4@hooks.example.org/events?team=data&api_key=hidden-5"
headers = { Authorization = "Bearer hidden-6", X-Team = "data", "X-Auth-Token" = "hidden-7", Cookie = "hidden-8" }
secret_file = "hook.secret"
[sinks.logs]
kind = "otel"
url = "https://otel.example.org/v1/logs"
headers = { "x-api-key" = "hidden-9" }
[sinks.topic]
kind = "kafka"
url = "kafka://localhost:9092"
password_file = "kafka.password"
properties = { "sasl.username" = "omnirelay", "ssl.key.location" = "/etc/key.pem" }
"""


def test_what_is_secret_by_its_name_is_not_shown(config: Config) -> None:
    loaded = config.load(SECRETS)
    shown = {key: value for key, value, _ in show_rows(loaded)}
    assert "hidden" not in repr(shown)
    assert tomllib.loads(f"x = {shown['sinks.lake.options']}")["x"] == {
        "access_key_id": "AKIA",
        "secret_access_key": "***",
        "region": "eu-1",
        "skip_signature": True,
        "more": {"Token": "***", "sasKeys": "***"},
    }
    assert shown["sinks.hook.url"] == '"https://lake:***@hooks.example.org/events?team=data&api_key=***"'
    assert tomllib.loads(f"x = {shown['sinks.hook.headers']}")["x"] == {
        **dict.fromkeys(("Authorization", "X-Auth-Token", "Cookie"), "***"),
        "X-Team": "data",
    }
    assert shown["sinks.hook.secret_file"] == '"hook.secret"'
    assert shown["sinks.topic.password_file"] == '"kafka.password"'
    assert shown["sinks.topic.properties"] == '{ "sasl.username" = "omnirelay", "ssl.key.location" = "/etc/key.pem" }'
    # What is used is what was given.
    assert "hidden-1" in repr(loaded.settings.sinks[0].options)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("nats://omnirelay@a:1,b:2", "nats://omnirelay@a:1,b:2"),
        ("postgresql://me:pw:@db/x?sslmode=verify-full", "postgresql://me:***@db/x?sslmode=verify-full"),
        ("https://a.blob.example/c?sv=2&sig=abc%3D&sp=r", "https://a.blob.example/c?sv=2&sig=***&sp=r"),
        ("https://[::1/x", "***"),
        ("no address: a://b", "no address: a://b"),
    ],
)
def test_passwords_in_addresses_are_not_shown(address: str, shown: str) -> None:
    assert without_secret_values(address) == shown


def test_the_schema_takes_what_is_loaded_and_nothing_else() -> None:
    validator = jsonschema_rs.validator_for(json_schema())
    assert validator.is_valid(tomllib.loads(SNIPPETS[0]))
    assert validator.is_valid({"sinks": {"a": {"kind": "parrot", "options": {"x": [1]}}}})
    for wrong in ({"kind": "file", "pth": "x"}, {"path": "x"}, {"kind": "file", "linger": 5}):
        assert not validator.is_valid({"sinks": {"a": wrong}}), wrong


def test_the_environment_reaches_a_sink(config: Config) -> None:
    environ = {"OMNIRELAY_SINKS__MY_LAKE__LINGER": "2s", "OMNIRELAY_SINKS__MY_LAKE__SHARDS": '["resourcelease"]'}
    [sink] = config.load("[sinks.My-Lake]\nkind = 'memory'", environ).settings.sinks
    assert (sink.name, sink.follow.linger_ms, sink.shards) == ("My-Lake", 2_000, ("resourcelease",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[sinks.a]\nkind='file'\npaht='x'", "3: sinks.a.paht is not a known key; did you mean path?"),
        (
            "[sinks.a]\nkind='fil'",
            '2: sinks.a.kind is "fil", must be one of file, sqlite, webhook, postgres, nats, kafka, otel, ',
        ),
        (
            "[sinks.a]\npath='x'",
            "1: sinks.a.kind is missing: file, sqlite, webhook, postgres, nats, kafka, otel, governance, memory",
        ),
        ("[sinks.a]\nkind='webhook'", "1: sinks.a.url is missing: where shall deliveries go?"),
        (
            "[sinks.a]\nkind='webhook'\nurl='ftp://me:secret@x'",
            '3: sinks.a.url is "ftp", must be an address that begins with http:// or https://',
        ),
        ("[sinks.a]\nkind='file'\nurl='http://x'", '3: sinks.a.url does not go with kind = "file"'),
        ("[sinks.a]\nkind='file'\noptions={}", '3: sinks.a.options does not go with kind = "file"'),
        ("[sinks.a]\nkind='sqlite'\ntable='a b'", '3: sinks.a.table is "a b", must be 1 to 63 letters, digits and '),
        (
            "[sinks.a]\nkind='governance'\nurl='http://x'\npath='y'",
            "3: sinks.a.url and path exclude each other",
        ),
        (
            "[sinks.a]\nkind='file'\nshards=['b']",
            '3: sinks.a.shards names "b", which is no namespace of this node: resourcelease',
        ),
        ("[sinks.a]\nkind='file'\nshards='b'", '3: sinks.a.shards is "b", must be an array of texts'),
        (
            "[sinks.a]\nkind='file'\nbatch_events=0",
            "3: sinks.a.batch_events is 0, must be a whole number between 1 and 100000",
        ),
        ("[sinks.a]\nkind='file'\nretry_first='1m'", "3: sinks.a.retry_first must not be longer than retry_max"),
        ("[sinks.a]\nkind='file'\non_refusal='x'", '3: sinks.a.on_refusal is "x", must be one of park, block'),
        ("[sinks.'a b']\nkind='file'", '1: sinks."a b" is no name for a sink, which has 1 to 64 letters'),
        ("[sinks.a]\nkind='webhook'\nurl='http://x'\nheaders={a=1}", "4: sinks.a.headers.a is 1, must be text"),
        ("[log]\nlinger='1s'", "2: log.linger is not a known key; it belongs in [sinks.NAME]"),
        ("[shards.a]\nnamespace='replication'", "1: shards.a has the namespace replication, which is the node's own"),
        ("[sinks.a]\nkind='postgres'", "1: sinks.a.url is missing: where shall deliveries go?"),
        (
            "[sinks.a]\nkind='postgres'\nurl='http://x'",
            '3: sinks.a.url is "http", must be an address that begins with postgresql:// or postgres://',
        ),
        *(
            (f"[sinks.a]\nkind='{kind}'\nurl='{url}'", "3: sinks.a.url holds a password, which everybody who sees")
            for kind, url in (
                ("postgres", "postgresql://me:hidden@x/y"),
                ("postgres", "postgresql://me@x/y?sslmode=require&password=hidden"),
                ("nats", "nats://me:hidden@x:4222"),
                ("governance", "nats://me:hidden@x:4222"),
            )
        ),
        (
            "[sinks.a]\nkind='nats'\nurl='nats://x'\nsubject='a..b'",
            '4: sinks.a.subject is "a..b", must be words of letters, digits, dashes and underscores, with dots between',
        ),
        ("[sinks.a]\nkind='nats'\nurl='nats://x'\nstream='a.b'", '4: sinks.a.stream is "a.b", must be letters, '),
        ("[sinks.a]\nkind='nats'\nurl='nats://x'\ntopic='t'", '4: sinks.a.topic does not go with kind = "nats"'),
        ("[sinks.a]\nkind='kafka'\nurl='kafka://x'\ntopic='a b'", '4: sinks.a.topic is "a b", must be 1 to 249'),
        (
            "[sinks.a]\nkind='kafka'\nurl='kafka://x'\nproperties={acks='1'}",
            "4: sinks.a.properties.acks is always all here: without it events get lost or repeated",
        ),
        (
            "[sinks.a]\nkind='kafka'\nurl='kafka://x'\nproperties={'sasl.password'='hidden'}",
            '4: sinks.a.properties."sasl.password" is a secret: a file holds it',
        ),
        (
            "[sinks.a]\nkind='governance'\nurl='nats://x'\nsecret_file='y'",
            '4: sinks.a.secret_file does not go with kind = "governance", url = nats://…',
        ),
        (
            "[sinks.a]\nkind='governance'\nsubject='y'",
            '3: sinks.a.subject does not go with kind = "governance"',
        ),
        (
            "[sinks.a]\nkind='objects'\nurl='ftp://x'",
            '3: sinks.a.url is "ftp", must be an address that begins with s3://',
        ),
        ("[sinks.a]\nkind='objects'\nurl='s3://x'\npath='y'", "3: sinks.a.url and path exclude each other"),
        (
            "[sinks.a]\nkind='objects'\nformat='csv'",
            '3: sinks.a.format is "csv", must be one of parquet, jsonl, json',
        ),
        *(
            (
                f"[sinks.a]\nkind='objects'\n{place}\n[sinks.a.options]\nregion='eu'\ntoken='x'",
                "4: sinks.a.options has region, token, but a directory takes none; they go with a url of a bucket",
            )
            for place in ("path='x'", "url='file:///x'", "segment_bytes=9")
        ),
        ("[sinks.a]\nkind='objects'\ncompact_at=1", "3: sinks.a.compact_at is 1, must be 0, or a whole number"),
        ("[sinks.a]\nkind='file'\nretention='1d'", '3: sinks.a.retention does not go with kind = "file"'),
        *(
            (
                f"[sinks.a]\nkind='objects'\nformat='json'\n{key}",
                f'4: sinks.a.{key.partition("=")[0]} does not go with kind = "objects", format = "json"',
            )
            for key in ("retention='1d'", "segment_bytes=9", "compact_at=4")
        ),
        *(
            (f"[sinks.a]\nkind='{kind}'\nurl='{url}'", f"3: sinks.a.url {problem}")
            for kind, url, problem in (
                ("webhook", "http://", "names no server: http:// is followed by HOST or HOST:PORT"),
                ("webhook", "https://[::1", "names no server: https:// is followed by HOST or HOST:PORT"),
                ("otel", "http://x:99999/v1/logs", "names no server"),
                ("otel", "http:///v1/logs", "names no server"),
                ("governance", "http://:80", "names no server"),
                ("nats", "nats://", "names no server: nats:// is followed by HOST:PORT, or by several with commas"),
                ("nats", "nats://me@a:4222,,b:4222", "names no server"),
                ("kafka", "kafka://a:9092,b:x", "names no server"),
                ("objects", "s3://", "names no bucket: s3:// is followed by its name"),
                ("objects", "az:///x", "names no bucket"),
                ("objects", "file://", "is no address of a directory: write file:///and/its/path"),
                ("objects", "file://host/x", "is no address of a directory"),
            )
        ),
        *(
            (
                f"[sinks.a]\nkind='{kind}'\nurl='http://x'\nheaders={{'{name}'=\"{value}\"}}",
                f"4: sinks.a.headers{problem}",
            )
            for kind, name, value, problem in (
                ("webhook", "X Team", "a", '."X Team" is no name of a header'),
                ("webhook", "", "a", '."" is no name of a header'),
                ("webhook", "Idempotency-Key", "a", ".Idempotency-Key is what the sink says itself"),
                ("otel", "content-type", "a", ".content-type is what the sink says itself"),
                ("otel", "X-Team", "a\\nb", ".X-Team has characters that no header can have"),
                ("governance", "X-Team", "\u00e4", ".X-Team has characters that no header can have"),
            )
        ),
        *(
            (
                f"[sinks.a]\nkind='sqlite'\ntable='{name}'",
                f'3: sinks.a.table is "{name}", which SQLite, or this sink, has',
            )
            for name in ("sqlite_events", "omnirelayowners")
        ),
        ("sinks = 5", "1: sinks is 5, must be tables: [sinks.NAME]"),
        ("[sinks]\na = 5", "2: sinks.a is 5, must be a table: settings of a sink stand in [sinks.NAME]"),
    ],
)
def test_what_is_wrong_is_named(config: Config, text: str, problem: str) -> None:
    [found] = config.problems(text)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "text",
    [
        "[sinks.a]\nkind='file'\npath='x'\n[sinks.b]\nkind='file'\npath='y/../x/'",
        "[sinks.a]\nkind='file'\npath='x'\n[sinks.b]\nkind='governance'\npath='x'",
        "[sinks.a]\nkind='file'\n\n[sinks.b]\nkind='file'\npath='sinks/a'",
        "[sinks.a]\nkind='file'\nshards=['resourcelease']\n[sinks.b]\nkind='file'\npath='sinks/a'",
    ],
)
def test_two_sinks_do_not_write_the_same_files(config: Config, text: str) -> None:
    [found] = config.problems(text)
    assert found == "6: sinks.b.path is where sinks.a writes its files; each needs a directory of its own"


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [
        ("path='x'", "path='./x'", "path"),
        ("path='x'", "format='json'\npath='x'", "path"),
        ("", "path='sinks/a'", "path"),
        ("url='file:///lake%20x'", "path='/lake x/'", "path"),
        ("path='/lake'", "url='file:///lake'", "url"),
        ("url='s3://b/x'", "url='s3://b/x/'", "url"),
        ("url='s3://b/x'\noptions={region='eu'}", "url='s3://b/x'\noptions={token='t'}", "url"),
    ],
)
def test_two_sinks_do_not_write_objects_in_the_same_place(config: Config, first: str, second: str, key: str) -> None:
    [found] = config.problems(f"[sinks.a]\nkind='objects'\n{first}\n[sinks.b]\nkind='objects'\n{second}")
    assert found.endswith(f": sinks.b.{key} is where sinks.a writes its objects; each needs a place of its own")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("path='x'", "path='x/y'"),
        ("path='x'", "path='x'\nenabled=false"),
        ("url='s3://b/x'", "url='s3://c/x'"),
        ("url='s3://b/x'", "url='gs://b/x'"),
        ("url='s3://b/x'", "url='s3://b/x'\noptions={endpoint='https://minio'}"),
        ("url='az://b'\noptions={account_name='a'}", "url='az://b'\noptions={account_name='c'}"),
    ],
)
def test_objects_may_lie_side_by_side(config: Config, first: str, second: str) -> None:
    config.load(f"[sinks.a]\nkind='objects'\n{first}\n[sinks.b]\nkind='objects'\n{second}")


@pytest.mark.parametrize(
    ("sink", "key"),
    [
        ("kind='file'\npath='.'", "path"),
        ("kind='governance'\npath='x/..'", "path"),
        ("kind='objects'\npath='./'", "path"),
        ("kind='sqlite'\npath='orders'", "path"),
        ("kind='objects'\nformat='json'\nurl='file://{data}'", "url"),
    ],
)
def test_no_sink_writes_where_a_log_lies(config: Config, sink: str, key: str, tmp_path: Path) -> None:
    text = f"[node]\ndata='{tmp_path}'\n[shards.orders]\n[shards.leases]\n[sinks.a]\n{sink.format(data=tmp_path)}"
    [found] = config.problems(text)
    assert f": sinks.a.{key} leads to where the log of orders lies; the sink needs a directory of its own" in found


@pytest.mark.parametrize(
    "sink",
    ["kind='sqlite'\npath='.'", "kind='file'\npath='orders'", "kind='file'\npath='.'\nenabled=false", "kind='file'"],
)
def test_a_sink_may_write_beside_a_log(config: Config, sink: str) -> None:
    assert len(config.load(f"[shards.orders]\n[shards.sinks]\n[sinks.a]\n{sink}").settings.sinks) == 1


NATS = "kind='nats'\nurl='nats://bus:4222'"
DEEDS = "kind='governance'\nurl='nats://bus:4222'"
KAFKA = "kind='kafka'\nurl='kafka://bus:9092'"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (NATS, NATS, "sinks.b.url is where sinks.a sends its messages; each needs a subject of its own"),
        (
            f"{NATS}\nsubject='lake'",
            f"{DEEDS}\nsubject='lake'",
            "sinks.b.subject is where sinks.a sends its messages; each needs a subject of its own",
        ),
        (
            f"{KAFKA}\ntopic='lake'",
            f"{KAFKA}\ntopic='lake'",
            "sinks.b.topic is where sinks.a sends its records; each needs a topic of its own",
        ),
    ],
)
def test_two_sinks_do_not_send_under_one_name(config: Config, first: str, second: str, words: str) -> None:
    [found] = config.problems(f"[sinks.a]\n{first}\n[sinks.b]\n{second}")
    assert found.endswith(f": {words}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NATS, DEEDS),
        (NATS, "kind='nats'\nurl='nats://elsewhere:4222'"),
        (f"{NATS}\nshards=['u']", f"{NATS}\nshards=['v']"),
        (KAFKA, f"{KAFKA}\ntopic='lake'"),
        ("kind='webhook'\nurl='http://hook'", "kind='governance'\nurl='http://hook'"),
    ],
)
def test_what_readers_can_tell_apart_may_go_to_one_server(config: Config, first: str, second: str) -> None:
    text = f"[sinks.a]\n{first}\n[sinks.b]\n{second}\n[shards.u]\n[shards.v]"
    assert len(config.load(text).settings.sinks) == 2


@pytest.mark.parametrize(
    "more", ["shards=['v']\nkind='file'", "shards=['u']\nkind='sqlite'", "kind='file'\nenabled=false"]
)
def test_sinks_that_cannot_meet_may_share_a_directory(config: Config, more: str) -> None:
    text = f"[sinks.a]\nkind='file'\npath='x'\nshards=['u']\n[sinks.b]\npath='x'\n{more}\n[shards.u]\n[shards.v]"
    assert len(config.load(text).settings.sinks) == 2
