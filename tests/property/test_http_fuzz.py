"""Whatever comes over the wire: the node refuses it or serves it, never breaks, never hangs, and serves the next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omnirelay.wire.requests import REQUESTS
from tests.property.http_server import Answer, Server
from tests.property.strategies import profile

LEGITIMATE = (501, 503, 504)
"""Answers from 500 on that are no fault of the server."""

VERBS = sorted(set(REQUESTS) - {"watch"})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def check_answer(answer: Answer) -> None:
    status, body = answer
    assert status < 500 or status in LEGITIMATE, (status, body)
    content = json.loads(body)
    if status != 200:
        assert {"message", "status", "code"} <= set(content)
        assert "Traceback" not in body.decode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("2026-01-01T00:00:00Z"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({each.encode_name for kind in REQUESTS.values() for each in msgspec.structs.fields(kind)})
KNOWN = [*FIELDS, "resourceType", "resourceId", "body", "attributes", "leaseId", "attempt", "fence", "fraction", "data"]
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 1e308, -0.0, 0.5),
        *("", " ", "\x00", "\ud7ff", "￿", "🙂", "a" * 2_000, "1", "-1", "nan", "inf", "1e999", "9" * 400, "null"),
        *(
            "QQ==",
            "QQ",
            "2026-01-01",
            "9999-12-31T23:59:59.999Z",
            "0001-01-01T00:00:00+23:59",
            "T",
            "2026-01-01T00:00:00+99:99",
        ),
        *(None, True, False, [], {}, [[]], [None], {"": None}),
    ]
)
OBJECTS = st.dictionaries(
    st.sampled_from(KNOWN),
    st.recursive(
        ODD,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KNOWN), inner, max_size=4),
        max_leaves=10,
    ),
    max_size=5,
)


@profile(500)
@given(verb=st.sampled_from(VERBS), request=OBJECTS | JSON)
def test_any_json_to_any_verb_is_served_or_refused(server: Server, verb: str, request: Any) -> None:
    if isinstance(request, dict) and verb in ("lease", "enqueue", "get"):
        request = {name: value for name, value in request.items() if name.lower() != "waitms"} | {"waitMs": 0}
    body = json.dumps(request).encode()
    check_answer(server.request(f"/v1/resourcelease/{verb}".encode(), body, (b"Rpc-Ttl-Ms", b"200")))


@profile(200)
@given(verb=st.sampled_from(VERBS), body=st.binary(max_size=60))
@example(verb="stats", body=b"[" * 200_000)
@example(verb="heartbeat", body=b'{"progress":{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}}")
@example(verb="enqueue", body=b'{"a":' * 50_000)
@example(verb="peek", body=b'{"after": ' + b"9" * 100_000 + b"}")
@example(verb="peek", body=b'{"after": 1e' + b"9" * 1_000 + b"}")
@example(verb="stats", body=b'{"x": NaN, "y": Infinity}')
@example(verb="stats", body=b"\xef\xbb\xbf{}")
@example(verb="stats", body=b'{"a": "\\ud800"}')
@example(verb="stats", body=b'"' + b"\xff" * 100 + b'"')
def test_any_bytes_to_any_verb_are_served_or_refused(server: Server, verb: str, body: bytes) -> None:
    check_answer(server.request(f"/v1/resourcelease/{verb}".encode(), body, (b"Rpc-Ttl-Ms", b"200")))


HEADERS = st.sampled_from(
    [
        *(
            b"Rpc-Procedure",
            b"Rpc-Service",
            b"Rpc-Caller",
            b"Rpc-Encoding",
            b"Rpc-Ttl-Ms",
            b"Context-TTL-MS",
            b"Rpc-Deadline",
        ),
        *(b"Origin", b"Last-Event-ID", b"X-Peer-Id", b"Accept", b"Content-Type", b"Rpc-Header-A", b"Rpc-Header-Origin"),
        *(b"X-Forwarded-For", b"X-Forwarded-Proto", b"Rpc-Header-Rpc-Ttl-Ms", b"Rpc-Header-", b"Rpc-Shard-Key"),
    ]
)
VALUES = st.one_of(
    st.binary(max_size=30).map(lambda value: bytes(byte for byte in value if byte >= 0x20 and byte != 0x7F)),
    st.sampled_from(
        [
            *(
                b"",
                b"0",
                b"-1",
                b"1",
                b"1e400",
                b"nan",
                b"9" * 400,
                b"http://[",
                b"null",
                b"//",
                b"http://test",
                b"\xff\xfe",
            ),
            *(
                b"2026-01-01T00:00:00Z",
                b"9999-12-31T23:59:59Z",
                b"0001-01-01T00:00:00+14:00",
                b"a::b",
                b"resourcelease::stats",
            ),
            *(b"text/event-stream", b"*/*", b"json", b"\xc3\xa9", b"a" * 5_000),
        ]
    ),
)


@profile(300)
@given(headers=st.lists(st.tuples(HEADERS, VALUES), max_size=6), verb=st.sampled_from(["stats", "enqueue", "peek"]))
@example(headers=[(b"Origin", b"http://[")], verb="stats")
@example(headers=[(b"Rpc-Deadline", b"0001-01-01T00:00:00+14:00")], verb="stats")
@example(headers=[(b"Rpc-Service", b"\xff\xfe\t")], verb="stats")
def test_any_headers_are_served_or_refused(server: Server, headers: list[tuple[bytes, bytes]], verb: str) -> None:
    status, body = server.request(f"/v1/resourcelease/{verb}".encode(), b"{}", *headers)
    check_answer((status, body))


@profile(150)
@given(
    method=st.sampled_from([b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS", b"CONNECT", b"PRI", b"get", b"\xff"]),
    path=st.one_of(
        st.text(max_size=30).map(
            lambda text: b"/" + text.encode().replace(b" ", b"%20").replace(b"\n", b"").replace(b"\r", b"")
        ),
        st.binary(max_size=30).map(lambda data: b"/" + bytes(byte for byte in data if byte > 0x20)),
        st.sampled_from(
            [
                *(
                    b"*",
                    b"test:80",
                    b"http://other/healthz",
                    b"//",
                    b"/%",
                    b"/%ff%fe",
                    b"/v1/%00/%00",
                    b"/../../etc/passwd",
                    b"/?a=%ff",
                ),
                *(
                    b"/v1/resourcelease/watch?from=" + b"9" * 5_000,
                    b"/v1/resourcelease/watch?untilCaughtUp=1&types=" + b"," * 500,
                ),
                *(b"/v1/resourcelease/watch?untilCaughtUp=true&from=1&from=%ff", b"/" + b"a" * 60_000),
            ]
        ),
    ),
)
def test_any_method_and_path_are_served_or_refused(server: Server, method: bytes, path: bytes) -> None:
    rest = b" HTTP/1.1\r\nHost: localhost\r\nRpc-Ttl-Ms: 100\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    answer = server.send(method + b" " + path + rest, half_close=False)
    assert answer.startswith(b"HTTP/1.1 ")
    for line in answer.split(b"\r\n"):
        if line.startswith(b"HTTP/1.1 "):
            status = int(line.split(b" ")[1])
            assert status < 500 or status in LEGITIMATE, answer[:300]


@profile(200)
@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_http_are_refused(server: Server, data: bytes) -> None:
    assert b" 500 " not in server.send(data)


BROKEN = [
    b"POST / HTTP/9.9\r\n\r\n",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nContent-Length: abc\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\n" + b"A: " + b"x" * 1_000_000 + b"\r\n\r\n",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"Content-Length: 2\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nBad Header: x\r\n\r\n",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nA\x00B: x\r\n\r\n",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nRpc-Service: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nRpc-Service: a\x01\x7fb\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\r\nRpc-Service: a\r\n folded\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/resourcelease/stats HTTP/1.1\nContent-Length: 2\n\n{}",
    b"GET /v1/resourcelease/watch HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"GET http://[::1 HTTP/1.1\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
    b"",
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_broken_http_never_breaks_the_node(server: Server, data: bytes) -> None:
    assert b" 500 " not in server.send(data)[:40]
    server.check_alive()


def test_the_node_serves_after_all_that(server: Server) -> None:
    server.check_alive()
