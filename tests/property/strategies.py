"""What the state machines draw: small values near every limit, so that short runs meet the rules' edges."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from omnirelay.core.commands import DeadLetterSelection
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, OwnershipToken, Payload
from tests.property.model import SPEC, Record, Token, Who

LONG = os.environ.get("OMNIRELAY_LONG") == "1"


def profile(examples: int, steps: int = 50, *, long: int | None = None) -> settings:
    """Settings of a property: short for `make test`, twenty times the work with OMNIRELAY_LONG=1.

    `long` is the number of examples of the long form where it is not ten times that of the short one: the slowest
    machines do less than the others in `make test`, and no less in `make model-test`.
    """
    return settings(
        max_examples=(long or examples * 10) if LONG else examples,
        stateful_step_count=steps * 2 if LONG else steps,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


OPTIONS = st.builds(
    QueueOptions,
    lease_duration_ms=st.sampled_from([900, 3_000]),
    max_lease_duration_ms=st.just(10_000),
    heartbeat_interval_ms=st.sampled_from([0, 500, 5_000]),
    max_delivery_attempts=st.integers(1, 3),
    max_undelivered=st.integers(0, 2),
    requeue_delay_ms=st.sampled_from([0, 0, 100, 1_000]),
    retry_delay_max_ms=st.sampled_from([0, 1_500]),
    capacity=st.sampled_from([12, 8, 5, 3]),
    capacity_bytes=st.sampled_from([10_000, 10_000, 60]),
    reserve=st.sampled_from([3, 3, 1, 0, None]),
    reserve_bytes=st.sampled_from([None, 25, 0]),
    body_limit=st.just(20),
    dead_letter_max=st.integers(1, 4),
    dead_letter_bytes_max=st.sampled_from([20, 1_000]),
    result_max=st.sampled_from([4, 2, 0]),
    result_bytes_max=st.sampled_from([1_000, 5]),
    result_retention_ms=st.sampled_from([60_000, 5_000, 0]),
    ended_lease_max=st.sampled_from([100, 100, 3, 0]),
    ended_lease_retention_ms=st.sampled_from([60_000, 2_000, 0]),
    request_id_max=st.sampled_from([50, 50, 3, 1, 0]),
    request_id_retention_ms=st.sampled_from([0, 1_000]),
    request_id_retention_max_ms=st.sampled_from([1_000, 5_000, 60_000]),
    high_watermark=st.just(1_000_000),
)

STEPS_MS = st.sampled_from([1, 0, 50, 100, 299, 300, 301, 500, 899, 900, 1_000, 3_000, 5_000, 20_000, 60_000])

WHO: st.SearchStrategy[Who] = st.sampled_from(
    [(None, None), (None, "p1"), (None, "p2"), ("alice", "p1"), ("alice", None), ("bob", "p2")]
)

NOTHING = b"x" * int("0")
"""Empty, but not the object every other empty body is: what tells defaults by identity must not be misled."""

REQUESTS = st.sampled_from([None, None, None, "r1", "r2", "r3", "r4"])

# The first of each is what shrinking goes to. Blank names and bodies beyond the limit are refused.
SPECS: st.SearchStrategy[Record] = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["table", "stream", "view", " "]),
        "id": st.sampled_from(["a", "b", "ünïcødé", "x y", "\t"]),
        "partition": st.sampled_from([None, "p"]),
        "encoding": st.sampled_from([None, "application/json", "application/octet-stream"]),
        "body": st.sampled_from([b"", NOTHING, b"1", b"0123456789", b"\x00\xff", b"x" * 20, b"x" * 21]),
        "attributes": st.sampled_from([None, {"tenant": "acme"}, {"k": "1", "é": "2"}]),
        "request": REQUESTS,
        "priority": st.sampled_from([5, 0, 9]),
        "weight": st.sampled_from([1, 7]),
        "delay": st.sampled_from([None, 0, 1, 400, 2_000, -1]),
        "max_attempts": st.sampled_from([None, 1, 2]),
    },
).map(lambda given: {**SPEC, **given})
GOOD_SPECS = SPECS.filter(
    lambda spec: bool(
        spec["type"].strip() and spec["id"].strip() and len(spec["body"]) <= 20 and (spec["delay"] or 0) >= 0
    )
)
MOSTLY_GOOD_SPECS = st.one_of(GOOD_SPECS, GOOD_SPECS, GOOD_SPECS, GOOD_SPECS, SPECS)

PROGRESS: st.SearchStrategy[Record | None] = st.sampled_from(
    [None, None, {"fraction": 0.5}, {"message": "half", "data": [1, {"a": None}]}]
)
RESULTS = st.sampled_from([None, None, (b"r", None), (b"result", "application/json"), (b"x" * 21, None)])
ERRORS = st.sampled_from([(None, None), ("boom", None), ("boom", "app.boom"), ("", "app.empty")])
DELAYS = st.sampled_from([None, None, 0, 250, 3_000])
DURATIONS = st.sampled_from([None, None, None, None, 1, 300, 7_000, 10_001])
LATE_MS = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 300, 900, 5_000])

MANGLED = st.sampled_from([*[""] * 16, "upper", "fenceless", "fence", "attempt", "lease", "item", "stranger", "silent"])


def mangle(token: Token, who: Who, how: str) -> tuple[Token, Who]:
    """A token and a caller as an acknowledgement may bring them: mostly right, sometimes not."""
    sequence_id, attempt, lease_id, fence = token
    assert fence is not None
    changed: dict[str, tuple[Token, Who]] = {
        "upper": ((sequence_id, attempt, lease_id.upper(), fence), who),
        "fenceless": ((sequence_id, attempt, lease_id, None), who),
        "fence": ((sequence_id, attempt, lease_id, fence + 1), who),
        "attempt": ((sequence_id, attempt + 1, lease_id, fence), who),
        "lease": ((sequence_id, attempt, "0" * 36, fence), who),
        "item": ((sequence_id + 1, attempt, lease_id, fence), who),
        "stranger": (token, ("mallory", "p9")),
        "silent": (token, (None, None)),
    }
    return changed.get(how, (token, who))


# -- from the model's words to core's ------------------------------------------------------------


_decode_payload = msgspec.json.Decoder(Payload).decode


def payload_of(spec: Record) -> Payload:
    """The payload as it comes over a wire: fresh objects, and nothing left out because it is a default."""
    fields = {
        "resourceType": spec["type"],
        "resourceId": spec["id"],
        "partitionKey": spec["partition"],
        "payloadEncoding": spec["encoding"],
        "body": spec["body"],
        "attributes": spec["attributes"],
        "requestId": spec["request"],
    }
    payload = _decode_payload(msgspec.json.encode(fields))
    payload.body = spec["body"]
    return payload


def new_item_of(spec: Record) -> NewItem:
    return NewItem(
        payload=payload_of(spec),
        priority=spec["priority"],
        weight=spec["weight"],
        delay_ms=spec["delay"],
        not_before_ms=spec["not_before"],
        max_attempts=spec["max_attempts"],
    )


def caller_of(who: Who) -> Caller:
    return Caller(principal=who[0], peer_id=who[1])


def token_of(token: Token) -> OwnershipToken:
    return OwnershipToken(*token)


def plain_token(token: OwnershipToken | None) -> Token | None:
    return None if token is None else (token.sequence_id, token.attempt, token.lease_id, token.fence)


def selection_of(selection: Record, after_stamp: int) -> DeadLetterSelection:
    return DeadLetterSelection(
        sequence_ids=selection.get("ids"),
        resource_type=selection.get("type"),
        error_code=selection.get("code"),
        everything=bool(selection.get("all")),
        items_max=selection["count"],
        after=after_stamp,
    )


def plain_payload(payload: Payload) -> Record:
    """A payload in the words of a spec, for comparing."""
    return {
        "type": payload.resource_type,
        "id": payload.resource_id,
        "partition": payload.partition_key,
        "encoding": payload.payload_encoding,
        "body": payload.body,
        "attributes": payload.attributes,
        "request": payload.request_id,
    }


def spec_payload(spec: Record) -> Record:
    return {name: spec[name] for name in plain_payload(payload_of(spec))}


def plain_options(options: QueueOptions) -> dict[str, Any]:
    return msgspec.structs.asdict(options)
