"""The configuration of a node: what it takes, what it refuses and in which words, and where each value came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.options import Limit, QueueOptions
from omnirelay.engine.settings import EngineSettings
from omnirelay.errors import InvalidArgument
from omnirelay.node.loading import Loaded, load, show_rows
from omnirelay.node.option_descriptions import OPTION_DESCRIPTIONS
from omnirelay.node.quantities import format_duration, format_size, parse_duration, parse_size
from omnirelay.node.settings import InvalidConfiguration, NodeSettings, TelemetrySection, is_loopback
from omnirelay.node.settings_schema import json_schema

FULL = """\
# A node with everything that can be set.
[node]
name = "east-1"
region = "east"
data = "var/relay"
host = "::1"
port = 8080
grpc_port = 9090
log_level = "debug"
drain_timeout = "1m30s"
allowed_hosts = ["relay.example", "relay"]

[log]
url = "memory:"
snapshot_every_events = 5000
retention = "2d"
waiting_leases_max = 10
waiting_enqueues_max = 20
waiting_enqueue_bytes_max = "2MiB"

[telemetry]
json_logs = true

[shards.orders]
namespace = "orders-eu"
lease_duration = "10s"
max_lease_duration = "1h30m"
heartbeat_interval = "500ms"
capacity = 1000
capacity_bytes = "1GB"
reserve = 7
reserve_bytes = 8
high_watermark = 900
low_watermark = "auto"
ordering = "fifo"
key = "partition"
fifo_head = "pass"
tenant_attribute = "customer"
tenant_weights = { acme = 3, "b.c" = 2 }
body_limit = "64KiB"

[[shards.orders.limits]]
by = "type"
match = "mail.*"
max = 3

[[shards.orders.limits]]
by = "tenant"
max = 4

[shards."a.b"]
"""


class Config:
    """A configuration file in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "omnirelay.toml"

    def load(self, text: str = "", environ: Mapping[str, str] | None = None, **flags: object) -> Loaded:
        self.path.write_text(text)
        return load(self.path, environ or {}, {key.replace("__", "."): value for key, value in flags.items()})

    def problems(self, text: str = "", environ: Mapping[str, str] | None = None, **flags: object) -> list[str]:
        """The problems, without the directory that differs in each run."""
        with pytest.raises(InvalidConfiguration) as caught:
            self.load(text, environ, **flags)
        assert caught.value.message.split("\n") == list(caught.value.problems)
        return [problem.replace(f"{self.path.parent}/", "") for problem in caught.value.problems]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tmp_path)


def options_of(loaded: Loaded, index: int = 0) -> QueueOptions:
    return loaded.settings.shards[index].queue_options()


# --------------------------------------------------------------------------------- what is taken


def test_without_any_source_everything_is_default() -> None:
    loaded = load(None, {}, {})
    assert loaded.settings == NodeSettings()
    assert set(loaded.origins.values()) == {"default"}
    node = loaded.settings.node
    assert (node.name, node.region, node.data) == ("node", "local", Path("omnirelay-data"))
    assert (node.host, node.port, node.grpc_port, node.log_level) == ("127.0.0.1", 7070, None, "info")
    assert node.drain_timeout_ms == 10_000
    assert loaded.settings.log.url == "sqlite:"
    [shard] = loaded.settings.shards
    assert (shard.name, shard.namespace) == ("resourcelease", "resourcelease")
    assert shard.queue_options() == QueueOptions()
    assert loaded.settings.engine_settings() == EngineSettings()


def test_every_section_reaches_the_settings(config: Config) -> None:
    loaded = config.load(FULL)
    node = loaded.settings.node
    assert (node.name, node.region, node.data) == ("east-1", "east", Path("var/relay"))
    assert (node.host, node.port, node.grpc_port, node.log_level) == ("::1", 8080, 9090, "debug")
    assert node.drain_timeout_ms == 90_000
    assert node.allowed_hosts == ("relay.example", "relay")
    assert loaded.settings.log.url == "memory:"
    assert loaded.settings.telemetry.json_logs is True
    assert loaded.settings.engine_settings() == EngineSettings(
        snapshot_every_events=5000,
        retention_ms=2 * 86_400_000,
        waiting_leases_max=10,
        waiting_enqueues_max=20,
        waiting_enqueue_bytes_max=2 * 1024**2,
    )
    orders, other = loaded.settings.shards
    assert (orders.name, orders.namespace) == ("orders", "orders-eu")
    assert (other.name, other.namespace) == ("a.b", "a.b")
    assert other.queue_options() == QueueOptions()
    assert orders.queue_options() == QueueOptions(
        lease_duration_ms=10_000,
        max_lease_duration_ms=5_400_000,
        heartbeat_interval_ms=500,
        capacity=1000,
        capacity_bytes=10**9,
        reserve=7,
        reserve_bytes=8,
        high_watermark=900,
        ordering="fifo",
        key="partition",
        fifo_head="pass",
        tenant_attribute="customer",
        tenant_weights={"acme": 3, "b.c": 2},
        body_limit=65_536,
        limits=[Limit(by="type", match="mail.*", max=3), Limit(by="tenant", max=4)],
    )


@pytest.mark.parametrize("field", [info.name for info in msgspec.structs.fields(QueueOptions)])
def test_every_queue_option_has_a_key_with_a_description(field: str) -> None:
    key = field.removesuffix("_ms")
    assert f"shards.resourcelease.{key}" in load(None, {}, {}).origins
    assert OPTION_DESCRIPTIONS[key]


def test_no_description_is_left_over() -> None:
    fields = {info.name.removesuffix("_ms") for info in msgspec.structs.fields(QueueOptions)}
    assert set(OPTION_DESCRIPTIONS) == fields


def test_a_shard_without_keys_is_a_shard(config: Config) -> None:
    assert [shard.name for shard in config.load("[shards.b]\n[shards.a]").settings.shards] == ["b", "a"]


def test_an_empty_table_of_shards_gives_the_default_one(config: Config) -> None:
    assert [shard.name for shard in config.load("[shards]").settings.shards] == ["resourcelease"]


@pytest.mark.parametrize(
    ("json_logs", "terminal", "wanted"),
    [(None, True, False), (None, False, True), (True, True, True), (False, False, False)],
)
def test_logs_are_json_unless_a_person_looks_or_it_is_told(
    json_logs: bool | None, terminal: bool, wanted: bool
) -> None:
    assert TelemetrySection(json_logs=json_logs).wants_json(stderr_is_terminal=terminal) is wanted


def test_json_logs_may_be_auto(config: Config) -> None:
    assert config.load('[telemetry]\njson_logs = "auto"').settings.telemetry.json_logs is None
    assert config.problems('[telemetry]\njson_logs = "yes"') == [
        'omnirelay.toml:2: telemetry.json_logs is "yes", must be true or false, or "auto"'
    ]


# ------------------------------------------------------------------------- durations and sizes


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30s", 30_000),
        ("500ms", 500),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
        ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("1.5s", 1_500),
        ("0.001s", 1),
        ("0s", 0),
    ],
)
def test_durations_are_read(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("30", 'write "30s" for seconds or "30ms" for milliseconds'),
        ("1.5", 'write "1.5s"'),
        ("", "a duration with a unit"),
        ("-5s", "not negative"),
        ("500us", "whole milliseconds"),
        ("0.5ms", "whole milliseconds"),
        ("0.0001s", "whole milliseconds"),
        ("30 s", "a duration with a unit"),
        ("30S", "a duration with a unit"),
        ("30m1h", "a duration with a unit"),
        ("1s1s", "a duration with a unit"),
        ("30s\n", "a duration with a unit"),
        ("50%", "a duration with a unit"),
        ("٣s", "a duration with a unit"),
        ("9" * 5000 + "s", "a duration with a unit"),
    ],
)
def test_other_durations_are_refused_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_duration(text)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("30", 'is 30, must be a duration with a unit: write "30s" for seconds or "30ms" for milliseconds'),
        ("1.5", 'is 1.5, must be a duration with a unit: write "1.5s"'),
        ('"30"', 'is "30", must be a duration with a unit: write "30s"'),
        ("-30", "is -30, must be a duration with a unit (d, h, m, s, ms)"),
        ("inf", "is inf, must be a duration with a unit (d, h, m, s, ms)"),
        ("true", "is true, must be a duration with a unit (d, h, m, s, ms)"),
        ('"25h"', 'is "25h", must be a duration between 1ms and 1d'),
    ],
)
def test_a_wrong_duration_names_key_value_and_what_is_allowed(config: Config, written: str, words: str) -> None:
    [problem] = config.problems(f"[shards.a]\nlease_duration = {written}")
    assert problem.startswith(f"omnirelay.toml:2: shards.a.lease_duration {words}")


@given(st.integers(0, 10**15))
def test_every_duration_is_read_back_as_written(ms: int) -> None:
    assert parse_duration(format_duration(ms)) == ms


@given(st.integers(0, 2**60))
def test_every_size_is_read_back_as_written(size: int) -> None:
    written = format_size(size)
    assert (written if isinstance(written, int) else parse_size(written)) == size


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("100", 100),
        ('"3KiB"', 3072),
        ('"3KB"', 3000),
        ('"1MiB"', 1024**2),
        ('"1MB"', 10**6),
    ],
)
def test_sizes_are_numbers_or_have_a_unit(config: Config, written: str, size: int) -> None:
    assert options_of(config.load(f"[shards.a]\nbody_limit = {written}")).body_limit == size


@pytest.mark.parametrize(("text", "size"), [("2GiB", 2 * 1024**3), ("2GB", 2 * 10**9)])
def test_large_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("written", ['"100"', '"1TiB"', '"50%"', '"-1KiB"', '"1KiB\\n"', "1.5", "true", "[]"])
def test_other_sizes_are_refused(config: Config, written: str) -> None:
    [problem] = config.problems(f"[shards.a]\nbody_limit = {written}")
    assert problem.startswith(
        f"omnirelay.toml:2: shards.a.body_limit is {written}, must be bytes as a whole number, or"
    )


def test_the_range_of_a_size_is_told_in_its_units(config: Config) -> None:
    assert config.problems('[shards.a]\nbody_limit = "5MiB"') == [
        'omnirelay.toml:2: shards.a.body_limit is "5MiB", must be a size between 1 and 4MiB'
    ]


# ------------------------------------------------------------------------------ what is refused


def test_an_unknown_key_is_named_with_file_and_nearest_key(config: Config) -> None:
    assert config.problems('[shards.orders]\nleaseduration = "3s"') == [
        "omnirelay.toml:2: shards.orders.leaseduration is not a known key; did you mean lease_duration?"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[nodes]\nport = 1", "omnirelay.toml:1: nodes is not a known key; did you mean node?"),
        ("[NODE]", "omnirelay.toml:1: NODE is not a known key; did you mean node?"),
        ("[zzz]", "omnirelay.toml:1: zzz is not a known key"),
        ("port = 1", "omnirelay.toml:1: port is not a known key; it belongs in [node]"),
        ("[node]\nbody_limit = 1", "omnirelay.toml:2: node.body_limit is not a known key; it belongs in [shards.NAME]"),
        ("[shards.a.foo]\nx = 1", "omnirelay.toml:1: shards.a.foo is not a known key"),
        ("node = 1", "omnirelay.toml:1: node is 1, must be a table: [node]"),
        ("[[node]]\nport = 1", "omnirelay.toml:1: node is [{ port = 1 }], must be a table: [node]"),
        ("shards = 1", "omnirelay.toml:1: shards is 1, must be tables: [shards.NAME]"),
        (
            "[shards]\ncapacity = 1",
            "omnirelay.toml:2: shards.capacity is 1, must be a table: options of a shard stand in [shards.NAME]",
        ),
        (
            "[shards.a]\nlimits = [{ by = 'type', mx = 1 }]",
            "omnirelay.toml:2: shards.a.limits[0].mx is not a known key; did you mean max?",
        ),
    ],
)
def test_keys_in_the_wrong_place_are_refused(config: Config, text: str, problem: str) -> None:
    assert problem in config.problems(text)


@pytest.mark.parametrize(
    ("table", "line", "problem"),
    [
        ("node", "port = 70000", "node.port is 70000, must be a whole number between 0 and 65535"),
        ("node", "port = -1", "node.port is -1, must be a whole number between 0 and 65535"),
        ("node", 'port = "7070"', 'node.port is "7070", must be a whole number'),
        ("node", "port = true", "node.port is true, must be a whole number"),
        ("node", "port = 1979-05-27", "node.port is 1979-05-27, must be a whole number"),
        ("node", "grpc_port = 1.5", 'node.grpc_port is 1.5, must be a whole number, or "auto"'),
        ("node", 'name = ""', 'node.name is "", must be 1 to 256 printable characters'),
        ("node", 'name = "a\\u0000"', 'node.name is "a\\u0000", must be 1 to 256 printable characters'),
        ("node", "region = 1", "node.region is 1, must be text"),
        ("node", 'data = ""', 'node.data is "", must be the path of a directory'),
        ("node", 'data = "a\\u0000"', 'node.data is "a\\u0000", must be the path of a directory'),
        ("node", 'host = ""', 'node.host is "", must be a host name or an IP address, without a port'),
        ("node", 'allowed_hosts = "relay"', 'node.allowed_hosts is "relay", must be an array of texts'),
        (
            "node",
            'allowed_hosts = ["a", "relay:443"]',
            'node.allowed_hosts is "relay:443", must be a host name without a port; addresses need not be named',
        ),
        (
            "node",
            'allowed_hosts = ["http://relay"]',
            'node.allowed_hosts is "http://relay", must be a host name or an IP address, without a port',
        ),
        ("node", 'host = "[::1]"', 'node.host is "[::1]", must be a host name or an IP address, without a port'),
        ("node", 'log_level = "loud"', 'node.log_level is "loud", must be one of debug, info, warning, error'),
        ("node", 'drain_timeout = "2d"', 'node.drain_timeout is "2d", must be a duration between 0s and 1d'),
        ("log", "snapshot_every_events = -1", "log.snapshot_every_events is -1, must be a whole number between 0"),
        ("log", "waiting_enqueue_bytes_max = -1", "log.waiting_enqueue_bytes_max is -1, must be a size between 0"),
        ("log", 'url = "redis"', 'log.url is "redis", must be sqlite: (files below node.data) or memory:'),
        ("log", 'url = "sqlite:/x"', 'log.url is "sqlite:…", must be sqlite: (files below node.data) or memory:'),
        ("shards.a", "capacity = 0", "shards.a.capacity is 0, must be a whole number between 1 and"),
        ("shards.a", 'capacity = "50%"', 'shards.a.capacity is "50%", must be a whole number'),
        ("shards.a", 'ordering = "lifo"', 'shards.a.ordering is "lifo", must be one of none, exclusive, fifo'),
        ("shards.a", 'tenant_attribute = " "', 'shards.a.tenant_attribute is " ", must be the name of an attribute'),
        ("shards.a", "tenant_weights = [1]", "shards.a.tenant_weights is [1], must be a table of tenants"),
        ("shards.a", "tenant_weights.x = 1.5", "shards.a.tenant_weights.x is 1.5, must be a whole number"),
        ("shards.a", "tenant_weights.x = 0", "shards.a.tenant_weights.x is 0, must be whole numbers between 1 and"),
        ("shards.a", "limits = [1]", "shards.a.limits is [1], must be an array of tables with by, match and max"),
        ("shards.a", "limits = [{ max = 1 }]", "shards.a.limits[0].by is missing"),
        ("shards.a", "limits = [{ by = 'type' }]", "shards.a.limits[0].max is missing"),
        (
            "shards.a",
            "limits = [{ by = 'x', max = 1 }]",
            'shards.a.limits[0].by is "x", must be one of type, tenant, key',
        ),
        (
            "shards.a",
            "limits = [{ by = 'key', max = 1 }, { by = 'key', max = 0 }]",
            'shards.a.limits[1] is { by = "key", max = 0 }, must be limits with a max between 1 and',
        ),
    ],
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(config: Config, table: str, line: str, problem: str) -> None:
    [found] = config.problems(f"[{table}]\n{line}")
    assert found.startswith(f"omnirelay.toml:2: {problem}")


@pytest.mark.parametrize(
    "value", [("lease_duration", '"25h"'), ("capacity", "0"), ("body_limit", "0"), ("low_watermark", "-1")]
)
def test_a_refusal_of_core_has_no_name_of_core_in_it(config: Config, value: tuple[str, str]) -> None:
    key, written = value
    [problem] = config.problems(f"[shards.a]\n{key} = {written}")
    assert problem.startswith(f"omnirelay.toml:2: shards.a.{key} is ")
    assert "_ms" not in problem
    assert "option " not in problem


def test_a_long_value_is_not_repeated_whole(config: Config) -> None:
    [problem] = config.problems(f'[node]\nname = "{"x" * 10_000}"')
    assert len(problem) < 300


def test_all_problems_are_reported_together(config: Config) -> None:
    text = """\
prt = 1
[node]
port = "x"
drain_timeout = 5
[shards.a]
lease_duration = "2h"
ordering = "lifo"
low_watermark = 10
high_watermark = 5
request_id_retention = "2d"
[shards.b]
capacityy = 1
limits = [{ by = "x", max = true, mx = 1 }]
[auth.jwt]
issuer = "x"
"""
    problems = config.problems(text, {"OMNIRELAY_NODE__PRT": "1"}, node__log_level="loud")
    assert [problem.split(" is ")[0].split("this")[0] for problem in problems] == [
        "omnirelay.toml:14: ",
        "omnirelay.toml:1: prt",
        "omnirelay.toml:3: node.port",
        "omnirelay.toml:4: node.drain_timeout",
        "omnirelay.toml:7: shards.a.ordering",
        "omnirelay.toml:12: shards.b.capacityy",
        "omnirelay.toml:13: shards.b.limits[0].by",
        "omnirelay.toml:13: shards.b.limits[0].max",
        "omnirelay.toml:13: shards.b.limits[0].mx",
        "environment OMNIRELAY_NODE__PRT: node.prt",
        "flag: node.log_level",
        "omnirelay.toml:6: shards.a.max_lease_duration",
        "omnirelay.toml:10: shards.a.request_id_retention_max",
        "omnirelay.toml:8: shards.a.low_watermark",
    ]


def test_the_error_is_one_of_the_tree_with_a_code(config: Config) -> None:
    with pytest.raises(InvalidArgument) as caught:
        config.load("x = 1")
    assert caught.value.code == "config.invalid"


def test_options_that_do_not_go_together_are_refused(config: Config) -> None:
    assert config.problems('[shards.a]\nlease_duration = "2h"') == [
        'omnirelay.toml:2: shards.a.max_lease_duration is "1h" (the default), must be at least lease_duration'
    ]
    assert config.problems("[shards.a]\ncapacity = 100\nlow_watermark = 90") == [
        "omnirelay.toml:3: shards.a.low_watermark is 90, must be below the high watermark, which is 80"
    ]


def test_an_option_is_not_blamed_for_the_default_of_another_that_was_refused(config: Config) -> None:
    [problem] = config.problems('[shards.a]\nlease_duration = "x"\nmax_lease_duration = "10s"')
    assert "shards.a.lease_duration" in problem
    [problem] = config.problems('[shards.a]\ncapacity = "2000000"\nlow_watermark = 900000')
    assert "shards.a.capacity" in problem


def test_an_option_is_judged_beside_the_others_not_beside_their_defaults(config: Config) -> None:
    text = '[shards.a]\nlow_watermark = 900000\ncapacity = 2000000\nlease_duration = "2h"\nmax_lease_duration = "3h"'
    assert options_of(config.load(text)).low_watermark == 900_000


def test_two_shards_with_one_namespace_are_both_named(config: Config) -> None:
    assert config.problems('[shards.a]\n[shards.b]\nnamespace = "a"') == [
        'omnirelay.toml:2: shards.b and shards.a have the same namespace "a"; each needs its own'
    ]


def test_a_shard_stands_where_it_was_named_first(config: Config) -> None:
    text = '[shards.a]\n[shards.b]\nnamespace = "a"'
    [problem] = config.problems(text, {"OMNIRELAY_SHARDS__B__CAPACITY": "5"}, shards__b__reserve=1)
    assert problem.startswith("omnirelay.toml:2: shards.b and shards.a ")


@pytest.mark.parametrize("namespace", ["", ".", "..", "-a", "a/b", "a b", "ä", "a\\n", "a::b", "x" * 65])
def test_a_namespace_must_be_good_for_directories_and_urls(config: Config, namespace: str) -> None:
    [problem] = config.problems(f'[shards.a]\nnamespace = "{namespace}"')
    assert problem.startswith("omnirelay.toml:2: shards.a.namespace is ")
    assert "1 to 64 letters, digits, dots, dashes and underscores" in problem
    [problem] = config.problems(f'[shards."{namespace}"]')
    assert problem.startswith("omnirelay.toml")
    assert "is no name for a shard, which has 1 to 64 letters" in problem


@pytest.mark.parametrize("namespace", ["a", "9", "A.b_c-d", "x" * 64])
def test_other_namespaces_are_taken(config: Config, namespace: str) -> None:
    assert config.load(f'[shards."{namespace}"]').settings.shards[0].namespace == namespace


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgresql_is_not_supported_and_its_password_not_repeated(config: Config, scheme: str) -> None:
    assert config.problems(f'[log]\nurl = "{scheme}://me:secret@host/db"') == [
        f"omnirelay.toml:2: log.url names {scheme}:…, which is not supported by this version; use sqlite: or memory:"
    ]


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("[auth.mtls]\nca = 'x'", "[auth.mtls]"),
        ("[auth.jwt]", "[auth.jwt]"),
        ("[auth]", "[auth]"),
        ("auth.headers = true", "[auth]"),
        ("[[policy]]\nallow = 'x'", "[[policy]]"),
        ("[peers]", "[peers]"),
        ("[peers.east]", "[peers]"),
        ("[mesh]", "[mesh]"),
        ("[lakehouse]", "[lakehouse]"),
    ],
)
def test_what_later_versions_have_is_refused_and_not_ignored(config: Config, text: str, table: str) -> None:
    assert config.problems(text) == [f"omnirelay.toml:1: this version has no {table} yet; remove it"]


def test_each_table_of_a_later_version_is_named(config: Config) -> None:
    assert len(config.problems("[auth.mtls]\n[auth.jwt]")) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"x = ", "is not TOML: "), (b"x = '\xff'", "is not UTF-8 text"), (b"x = " + b"[" * 100_000, "is not TOML: ")],
)
def test_a_file_that_is_not_toml_is_named(config: Config, content: bytes, words: str) -> None:
    config.path.write_bytes(content)
    with pytest.raises(InvalidConfiguration, match=rf"omnirelay\.toml: {words}"):
        load(config.path, {}, {})


def test_a_missing_file_is_an_error_beside_all_others(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(tmp_path / "no.toml", {}, {"node.port": -1})
    assert len(caught.value.problems) == 2
    assert "no.toml: cannot be read: No such file" in caught.value.problems[0]


# ---------------------------------------------------------------------- environment and precedence


def test_flag_goes_before_environment_before_file_before_default(config: Config) -> None:
    text = "[node]\nname = 'f'\nport = 1\ngrpc_port = 1"
    environ = {"OMNIRELAY_NODE__PORT": "2", "OMNIRELAY_NODE__GRPC_PORT": "2"}
    loaded = config.load(text, environ, node__grpc_port=3)
    node = loaded.settings.node
    assert (node.region, node.name, node.port, node.grpc_port) == ("local", "f", 2, 3)
    assert loaded.origins["node.region"] == "default"
    assert loaded.origins["node.name"] == f"file {config.path}:2"
    assert loaded.origins["node.port"] == "environment OMNIRELAY_NODE__PORT"
    assert loaded.origins["node.grpc_port"] == "flag"


def test_precedence_is_per_key_within_a_shard(config: Config) -> None:
    text = '[shards.orders]\ncapacity = 5000\nlease_duration = "7s"'
    loaded = config.load(text, {"OMNIRELAY_SHARDS__ORDERS__LEASE_DURATION": "8s"})
    assert options_of(loaded).capacity == 5000
    assert options_of(loaded).lease_duration_ms == 8000


def test_values_of_every_kind_come_from_the_environment() -> None:
    environ = {
        "OMNIRELAY_NODE__DATA": "/var/relay",
        "OMNIRELAY_NODE__GRPC_PORT": "auto",
        "OMNIRELAY_NODE__DRAIN_TIMEOUT": "3s",
        "OMNIRELAY_TELEMETRY__JSON_LOGS": "false",
        "OMNIRELAY_SHARDS__ORDERS__BODY_LIMIT": "2048",
        "OMNIRELAY_SHARDS__ORDERS__CAPACITY_BYTES": "1MiB",
        "OMNIRELAY_SHARDS__ORDERS__TENANT_WEIGHTS": '{"acme": 2}',
        "OMNIRELAY_SHARDS__ORDERS__LIMITS": '[{"by": "type", "max": 3}]',
        "OMNIRELAY_SHARDS__ORDERS__ORDERING": "fifo",
    }
    loaded = load(None, environ, {})
    node = loaded.settings.node
    assert (node.data, node.grpc_port, node.drain_timeout_ms) == (Path("/var/relay"), None, 3000)
    assert loaded.settings.telemetry.json_logs is False
    [shard] = loaded.settings.shards
    assert shard.name == "orders"
    assert shard.queue_options() == QueueOptions(
        body_limit=2048,
        capacity_bytes=1024**2,
        tenant_weights={"acme": 2},
        limits=[Limit(by="type", max=3)],
        ordering="fifo",
    )
    assert sorted(origin for origin in loaded.origins.values() if origin != "default") == sorted(
        f"environment {variable}" for variable in environ
    )


def test_the_environment_takes_a_value_of_the_file_back_to_auto(config: Config) -> None:
    loaded = config.load("[node]\ngrpc_port = 5", {"OMNIRELAY_NODE__GRPC_PORT": "auto"})
    assert loaded.settings.node.grpc_port is None


@pytest.mark.parametrize(
    ("name", "variable"),
    [("Orders", "ORDERS"), ("orders-eu", "ORDERS_EU"), ("orders.eu", "ORDERS_EU"), ("a-_b", "A__B"), ("a", "a")],
)
def test_a_variable_finds_the_shard_of_the_file(config: Config, name: str, variable: str) -> None:
    loaded = config.load(f'[shards."{name}"]', {f"OMNIRELAY_SHARDS__{variable}__CAPACITY": "5"})
    assert [shard.name for shard in loaded.settings.shards] == [name]
    assert options_of(loaded).capacity == 5


def test_a_variable_for_another_shard_makes_one_in_lower_case(config: Config) -> None:
    loaded = config.load("[shards.a]", {"OMNIRELAY_SHARDS__New_One__CAPACITY": "5"})
    assert [shard.name for shard in loaded.settings.shards] == ["a", "new_one"]


def test_a_variable_that_may_mean_two_shards_is_refused(config: Config) -> None:
    assert config.problems("[shards.a-b]\n[shards.a_b]", {"OMNIRELAY_SHARDS__A_B__CAPACITY": "5"}) == [
        "environment OMNIRELAY_SHARDS__A_B__CAPACITY: may mean any of the shards a-b, a_b"
    ]


def test_two_variables_for_one_key_are_refused(config: Config) -> None:
    assert config.problems("", {"OMNIRELAY_NODE__PORT": "1", "OMNIRELAY_node__port": "2"}) == [
        "environment OMNIRELAY_node__port: node.port is given a second time, after OMNIRELAY_NODE__PORT"
    ]


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("OMNIRELAY_NODE__PRT", "1", "node.prt is not a known key; did you mean port?"),
        ("OMNIRELAY_NODES__PORT", "1", "nodes.port is not a known key; did you mean node?"),
        ("OMNIRELAY__PORT", "1", "_port is not a known key"),
        ("OMNIRELAY_NODE__PORT__X", "1", "node.port.x is not a known key"),
        ("OMNIRELAY_SHARDS__CAPACITY", "1", "shards.capacity is not a known key; options of a shard are"),
        ("OMNIRELAY_SHARDS____CAPACITY", "1", 'shards."" is no name for a shard'),
        ("OMNIRELAY_SHARDS__A__CAPACTY", "1", "shards.a.capacty is not a known key; did you mean capacity?"),
        ("OMNIRELAY_AUTH__JWT__ISSUER", "x", "this version has no [auth.jwt] yet; remove it"),
        ("OMNIRELAY_MESH__SEED", "x", "this version has no [mesh] yet; remove it"),
        ("OMNIRELAY_NODE__PORT", "", 'node.port is "", must be a whole number'),
        ("OMNIRELAY_NODE__PORT", "7070.0", 'node.port is "7070.0", must be a whole number'),
        ("OMNIRELAY_NODE__DRAIN_TIMEOUT", "30", 'node.drain_timeout is "30", must be a duration with a unit: write'),
        ("OMNIRELAY_NODE__NAME", "\udcff", "node.name is not UTF-8 text"),
        ("OMNIRELAY_SHARDS__A__LIMITS", "[{", 'shards.a.limits is "[{", must be an array of tables with by'),
        ("OMNIRELAY_SHARDS__A__LIMITS", "5", "shards.a.limits is 5, must be an array of tables"),
        ("OMNIRELAY_SHARDS__A__TENANT_WEIGHTS", '{"x": "1"}', 'shards.a.tenant_weights.x is "1", must be a whole'),
    ],
)
def test_a_wrong_variable_is_an_error_that_names_it(config: Config, variable: str, value: str, problem: str) -> None:
    [found] = config.problems("", {variable: value})
    assert found.startswith(f"environment {variable}: {problem}")


def test_variables_of_other_tools_are_left_alone(config: Config) -> None:
    environ = {"OMNIRELAY_URL": "x", "OMNIRELAY_COMPILE": "1", "OMNIRELAY_NAMESPACE": "x", "OTHER__PORT": "x"}
    assert config.load("", environ).settings == NodeSettings()


def test_a_wrong_value_in_the_file_is_an_error_even_when_overridden(config: Config) -> None:
    problems = config.problems('[shards.a]\nlease_duration = "99h"', {"OMNIRELAY_SHARDS__A__LEASE_DURATION": "9s"})
    assert len(problems) == 1


def test_flags_may_be_values_or_text_and_none_is_not_given(config: Config) -> None:
    flags: dict[str, Any] = {
        "node.port": "0",
        "node.grpc_port": 5,
        "node.host": None,
        "node.data": Path("x"),
        "telemetry.json_logs": True,
        "shards.a.b.lease_duration": "3s",
    }
    loaded = load(None, {"OMNIRELAY_SHARDS__A_B__CAPACITY": "5"}, flags)
    node = loaded.settings.node
    assert (node.port, node.grpc_port, node.host, node.data) == (0, 5, "127.0.0.1", Path("x"))
    assert loaded.settings.telemetry.json_logs is True
    assert [shard.name for shard in loaded.settings.shards] == ["a.b"]
    assert options_of(loaded).lease_duration_ms == 3000
    assert loaded.origins['shards."a.b".lease_duration'] == "flag"
    assert loaded.origins["node.host"] == "default"


@pytest.mark.parametrize("flag", ["node.prt", "port", "node", "shards.a", "shards.a.prt", "auth.jwt.issuer"])
def test_a_flag_for_no_key_is_an_error(flag: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"flag: {flag} is not a known key"):
        load(None, {}, {flag: 1})


# ------------------------------------------------------------------------------- origins and rows


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("\n[node] # here\n  port=1", "node.port", 3),
        ("node.port = 1", "node.port", 1),
        ("\nnode = { name = 'x', port = 1 }", "node.port", 2),
        ("[ shards . 'orders' ]\n\n\"capacity\" = 5", "shards.orders.capacity", 3),
        ("[shards]\norders.capacity = 5", "shards.orders.capacity", 2),
        ("[shards.a]\ncapacity = 5\n[shards.orders]\ncapacity = 5", "shards.orders.capacity", 4),
        ("[shards.orders]\n[shards.orders.tenant_weights]\nx = 1", "shards.orders.tenant_weights", 2),
        ("[shards.orders]\n\ntenant_weights.x = 1", "shards.orders.tenant_weights", 3),
        ("[shards.orders]\n[[shards.orders.limits]]\nby='key'\nmax=1", "shards.orders.limits", 2),
        ("[shards.orders]\nlimits = [\n  { by='key', max=1 },\n]\nkey = 'resource'", "shards.orders.key", 5),
        ('[shards.orders]\ntenant_attribute = """\\\n[node]\nport = 1"""\n[node]\nport = 1', "node.port", 6),
        ("[node]\r\nname = 'x'\r\nport = 1\r\n", "node.port", 3),
    ],
)
def test_the_line_of_a_key_is_found(config: Config, text: str, key: str, line: int) -> None:
    assert config.load(text).origins[key] == f"file {config.path}:{line}"


def test_a_key_whose_line_is_not_found_has_the_file_as_origin(config: Config) -> None:
    assert config.load('"\\u006eode" = { port = 1 }').origins["node.port"] == f"file {config.path}"


def as_toml(loaded: Loaded) -> str:
    return "".join(f"{key} = {value}\n" for key, value, _ in show_rows(loaded))


@pytest.mark.parametrize("text", ["", FULL, FULL.replace("acme =", '"\\u007f\\n\\"ä" =')])
def test_rows_written_as_toml_load_to_the_same_settings(config: Config, text: str) -> None:
    loaded = config.load(text)
    again = config.load(as_toml(loaded))
    assert again.settings == loaded.settings
    assert [row[:2] for row in show_rows(again)] == [row[:2] for row in show_rows(loaded)]
    assert "default" not in again.origins.values()


@given(name=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=9), tenant=st.text(max_size=5))
def test_any_text_survives_being_shown(tmp_path_factory: pytest.TempPathFactory, name: str, tenant: str) -> None:
    flags = {"node.name": name, "shards.a.tenant_weights": {tenant: 3}}
    loaded = load(None, {}, flags)
    path = tmp_path_factory.mktemp("shown") / "omnirelay.toml"
    path.write_bytes(as_toml(loaded).encode())
    assert load(path, {}, {}).settings == loaded.settings


def test_rows_have_every_key_once_with_its_origin(config: Config) -> None:
    loaded = config.load(FULL)
    rows = show_rows(loaded)
    assert {key: origin for key, _, origin in rows} == loaded.origins
    assert len(rows) == len(loaded.origins)
    assert ("node.drain_timeout", '"1m30s"', f"file {config.path}:10") in rows
    assert ("shards.orders.low_watermark", '"auto"', f"file {config.path}:34") in rows
    assert ("log.retention", '"2d"', f"file {config.path}:16") in rows
    assert ('shards."a.b".namespace', '"a.b"', "default") in rows
    assert ("shards.orders.tenant_weights", '{ acme = 3, "b.c" = 2 }', f"file {config.path}:39") in rows


# ----------------------------------------------------------------------------------------- schema


def accepts(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value fits a schema. Knows the words that the schema here uses, and no others."""
    assert set(schema) <= {*CHECKS, "$schema", "title", "description", "default", "additionalProperties"}
    return all(CHECKS[word](schema, value) for word in schema if word in CHECKS)


TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def fits_properties(schema: Mapping[str, Any], value: Any) -> bool:
    for name, inner in value.items():
        rule = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if rule is False or not accepts(rule, inner):
            return False
    return True


CHECKS: dict[str, Any] = {
    "type": lambda s, v: (
        isinstance(v, TYPES[s["type"]])
        and not (s["type"] == "integer" and isinstance(v, bool))
        and (s["type"] != "object" or fits_properties(s, v))
    ),
    "properties": lambda s, v: True,
    "propertyNames": lambda s, v: all(accepts(s["propertyNames"], name) for name in v),
    "required": lambda s, v: set(s["required"]) <= set(v),
    "items": lambda s, v: all(accepts(s["items"], element) for element in v),
    "pattern": lambda s, v: re.search(s["pattern"], v) is not None,
    "enum": lambda s, v: v in s["enum"],
    "const": lambda s, v: v == s["const"],
    "minimum": lambda s, v: v >= s["minimum"],
    "anyOf": lambda s, v: any(accepts(option, v) for option in s["anyOf"]),
}


def parsed(text: str) -> Any:
    return msgspec.toml.decode(text)


def test_the_schema_accepts_what_can_be_loaded(config: Config) -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert accepts(schema, parsed(FULL))
    assert accepts(schema, parsed(as_toml(config.load(""))))
    assert accepts(schema, parsed(as_toml(config.load(FULL))))


@pytest.mark.parametrize(
    "text",
    [
        "nodes = {}",
        "[node]\nprt = 1",
        "[node]\nport = '1'",
        "[node]\ndrain_timeout = 5",
        "[node]\ndrain_timeout = '5'",
        "[node]\ndrain_timeout = ''",
        "[shards.a]\nleaseduration = '3s'",
        "[shards.a]\nbody_limit = '3'",
        "[shards.a]\nnamespace = 'a/b'",
        "[shards.'a b']",
        "[shards.a]\nlimits = [{ by = 'type' }]",
        "[shards.a]\nlimits = [{ by = 'type', max = 1, x = 1 }]",
        "[auth.jwt]",
    ],
)
def test_the_schema_refuses_what_cannot_be_loaded(config: Config, text: str) -> None:
    assert not accepts(json_schema(), parsed(text))
    assert config.problems(text)


def test_every_key_of_the_schema_has_a_description_and_its_default() -> None:
    schema = json_schema()
    tables = [schema["properties"][name]["properties"] for name in ("node", "log", "telemetry")]
    tables.append(schema["properties"]["shards"]["additionalProperties"]["properties"])
    keys = {name: rule for table in tables for name, rule in table.items()}
    assert all(rule["description"] for rule in keys.values())
    assert all(accepts(rule, rule["default"]) for name, rule in keys.items() if name != "namespace")
    assert (keys["port"]["default"], keys["lease_duration"]["default"]) == (7070, "30s")
    assert (keys["reserve"]["default"], keys["capacity_bytes"]["default"]) == ("auto", "4GiB")
    msgspec.json.encode(schema)


# --------------------------------------------------------------------------------------- listening


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.9", "::1", "0:0:0:0:0:0:0:1", "localhost", "LOCALHOST"])
def test_loopback_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "128.0.0.1",
        "::ffff:127.0.0.1",
        "localhost.example",
        "127.0.0.1.example",
        "127.1",
    ],
)
def test_everything_else_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)
