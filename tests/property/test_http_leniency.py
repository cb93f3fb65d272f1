"""A request means the same however its JSON is written: names in any case, numbers as text, more than is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.errors import OmniRelayError
from omnirelay.rpc.calls import Call, RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent, ResourceLeaseOptions
from omnirelay.testing.clock import FakeClock
from tests.property.strategies import profile

NAMES = st.sampled_from(["orders", "a b", "ünï", "x"])
IDS = st.integers(1, 6)
PAYLOADS = st.fixed_dictionaries(
    {"resourceType": st.sampled_from(["table", "view"]), "resourceId": NAMES},
    optional={
        "partitionKey": NAMES,
        "payloadEncoding": st.just("json"),
        "body": st.sampled_from(["", "QQ==", "AAEC"]),
        "attributes": st.dictionaries(st.sampled_from(["tenant", "Region", "A.b"]), NAMES, max_size=2),
        "requestId": st.sampled_from(["r1", "r2", "r3"]),
    },
)
ITEMS = st.fixed_dictionaries(
    {"payload": PAYLOADS},
    optional={
        "priority": st.integers(0, 9),
        "weight": st.integers(1, 3),
        "delayMs": st.sampled_from([0, 500]),
        "maxAttempts": st.integers(1, 3),
    },
)
TOKENS = st.fixed_dictionaries(
    {"sequenceId": IDS, "attempt": st.integers(1, 2), "leaseId": st.sampled_from([f"lease-{n}" for n in range(1, 6)])},
    optional={"fence": st.integers(1, 20)},
)
PROGRESS = st.fixed_dictionaries(
    {}, optional={"fraction": st.sampled_from([0.25, 1]), "message": NAMES, "data": st.just({"Rows": [1, "2"]})}
)


def some(**fields: Any) -> Any:
    return st.fixed_dictionaries({}, optional=fields)


def one(required: dict[str, Any], **optional: Any) -> Any:
    return st.fixed_dictionaries(required, optional=optional)


CALLS: Any = st.one_of(
    st.tuples(st.just("enqueue"), ITEMS),
    st.tuples(st.just("enqueue"), one({"items": st.lists(ITEMS, min_size=1, max_size=3)}, waitMs=st.just(0))),
    st.tuples(
        st.just("lease"),
        one(
            {"waitMs": st.just(0)},
            peerId=NAMES,
            maxItems=st.integers(1, 3),
            leaseDurationMs=st.sampled_from([1_000, 60_000]),
            resourceTypes=st.lists(st.sampled_from(["table", "v*"]), min_size=1, max_size=2),
            tenants=st.lists(NAMES, max_size=2),
            requestId=st.sampled_from(["l1", "l2"]),
            metadata=st.just({"Key": "Value"}),
        ),
    ),
    st.tuples(st.just("heartbeat"), one({"ownershipToken": TOKENS}, progress=PROGRESS)),
    st.tuples(
        st.just("complete"),
        one({"ownershipToken": TOKENS}, result=st.just("QQ=="), followUps=st.lists(ITEMS, max_size=2)),
    ),
    st.tuples(
        st.just("fail"),
        one(
            {"ownershipToken": TOKENS},
            mode=st.sampled_from(["retry", "dead", "release"]),
            requeue=st.booleans(),
            reason=NAMES,
            errorCode=st.just("io"),
            metadata=st.just({"Host": "N1"}),
        ),
    ),
    st.tuples(st.just("release"), one({"ownershipToken": TOKENS}, delayMs=st.just(10))),
    st.tuples(st.just("complete"), one({"acks": st.lists(one({"ownershipToken": TOKENS}), min_size=1, max_size=3)})),
    st.tuples(st.just("get"), st.one_of(one({"sequenceId": IDS}), one({"requestId": st.just("r1")}))),
    st.tuples(st.just("cancel"), one({"sequenceId": IDS}, force=st.booleans(), reason=NAMES)),
    st.tuples(st.just("pause"), some(resourceType=st.just("view"), intake=st.booleans(), reason=NAMES)),
    st.tuples(st.just("resume"), some(resourceType=st.just("view"))),
    st.tuples(st.just("deadletters"), some(maxItems=st.integers(1, 3), after=st.integers(0, 3))),
    st.tuples(
        st.just("redrive"),
        st.one_of(
            one({"all": st.just(True)}, ratePerSecond=st.just(2.5)), one({"sequenceIds": st.lists(IDS, max_size=2)})
        ),
    ),
    st.tuples(st.just("peek"), some(state=st.sampled_from(["ready", "leased", "dead"]), maxItems=st.integers(1, 3))),
    st.tuples(st.just("why"), one({"sequenceId": IDS})),
    st.tuples(st.just("drain"), some(maxItems=st.integers(1, 2), pauseIntake=st.booleans())),
    st.tuples(st.just("stats"), some()),
)

VERBATIM = {"attributes", "metadata", "data"}
"""What callers name themselves stays as they write it."""


class Rewriting:
    """Writes the same request another way, as the draws say."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def of(self, value: Any) -> Any:
        if isinstance(value, dict):
            written = {}
            for name, each in value.items():
                how = self._draw(st.sampled_from([str, str.upper, str.lower, str.title, _pascal]))
                written[how(name)] = each if name in VERBATIM else self.of(each)
            if self._draw(st.booleans()):
                written[self._draw(st.sampled_from(["futureField", "X-Extra", "_", ""]))] = self._draw(
                    st.sampled_from([None, 1, "x", [1, {"a": None}], {"payload": 5}])
                )
            return written
        if isinstance(value, list):
            return [self.of(each) for each in value]
        if type(value) in (int, float) and self._draw(st.booleans()):
            return json.dumps(value)
        if type(value) is bool and self._draw(st.booleans()):
            return json.dumps(value)
        if isinstance(value, str) and value.startswith("lease-") and self._draw(st.booleans()):
            return value.upper()
        return value


def _pascal(name: str) -> str:
    return name[:1].upper() + name[1:]


class Twin:
    """A shard that does the same as its twin: time and lease ids are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def ids() -> Iterator[str]:
            number = 0
            while True:
                number += 1
                yield f"lease-{number}"

        given = ids()
        monkeypatch.setattr("omnirelay.engine.shard.lease_ids", lambda: lambda: next(given))
        self.dispatcher = Dispatcher()
        self.component = ResourceLeaseComponent(self.dispatcher, ResourceLeaseOptions(clock=FakeClock()))

    async def answer(self, verb: str, body: bytes) -> Any:
        try:
            reply = await self.dispatcher.call(Call(RequestMeta(procedure=f"resourcelease::{verb}"), body))
        except OmniRelayError as error:
            return error.code, error.message, error.details
        return json.loads(reply.body)


@profile(150)
@given(data=st.data())
def test_a_request_written_another_way_is_answered_as_the_plain_one(data: st.DataObject) -> None:
    calls = data.draw(st.lists(CALLS, min_size=1, max_size=12))
    rewriting = Rewriting(data.draw)
    rewritten = [(verb, rewriting.of(body)) for verb, body in calls]

    async def main() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            plain = Twin(monkeypatch)
            await plain.component.start()
            other = Twin(monkeypatch)
            await other.component.start()
        for (verb, body), (_, written) in zip(calls, rewritten, strict=True):
            expected = await plain.answer(verb, json.dumps(body).encode())
            assert await other.answer(verb, json.dumps(written).encode()) == expected, (verb, body, written)
        await plain.component.stop()
        await other.component.stop()

    asyncio.run(main())
