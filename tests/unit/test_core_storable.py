"""What core accepts can be stored: it fits a frame, and reads back as what it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirelay.core import commands as cmd
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.core.state import State
from omnirelay.errors import InvalidArgument
from omnirelay.log.base import FRAME_BYTES_MAX
from tests.builders import Kernel, new_item, replay

ANYTHING = st.one_of(st.none(), st.text(max_size=20), st.binary(max_size=20), st.integers(), st.booleans())
NAMES = st.one_of(st.text(max_size=8), st.text(min_size=1020, max_size=1030), ANYTHING)
ATTRIBUTES: st.SearchStrategy[Any] = st.one_of(ANYTHING, st.dictionaries(NAMES, NAMES, max_size=4))


@settings(deadline=None)
@given(
    fields=st.fixed_dictionaries(
        {"resource_type": NAMES, "resource_id": NAMES},
        optional={
            "partition_key": NAMES,
            "payload_encoding": NAMES,
            "body": st.one_of(st.binary(max_size=30), ANYTHING),
            "attributes": ATTRIBUTES,
            "request_id": NAMES,
        },
    ),
    beside=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("priority", "weight", "delay_ms", "not_before_ms", "max_attempts"), ANYTHING),
    ),
)
def test_a_payload_of_anything_is_stored_faithfully_or_refused(fields: Any, beside: Any) -> None:
    kernel = Kernel(QueueOptions(body_limit=20))
    try:
        kernel.enqueue(NewItem(payload=Payload(**fields), **beside))
    except InvalidArgument as error:
        assert error.code.startswith("resourcelease.")  # noqa: PT017
        assert error.details["field"]  # noqa: PT017
        return
    [read_back] = kernel.replayed().items.values()
    expected = Payload(**{**fields, "attributes": fields.get("attributes") or None})
    assert read_back.payload == expected


@pytest.mark.parametrize("item", [new_item("a"), new_item("n" * 1_000), new_item("a", attributes={"k": "é" * 4_000})])
def test_every_batch_that_is_accepted_fits_one_frame(item: NewItem) -> None:
    """A command is never split over frames, so one that does not fit must be refused beforehand."""
    kernel = Kernel()
    caller = Caller(principal="p" * 256, peer_id="é" * 256)
    for count in (100, 400, 1_000, 4_000, 7_900):
        start = len(kernel.events)
        try:
            kernel.do(cmd.EnqueueItems([item] * count, caller))
        except InvalidArgument as error:
            assert error.code == "resourcelease.payload.too_large"  # noqa: PT017
            continue
        assert len(msgspec.json.encode(kernel.events[start:])) < FRAME_BYTES_MAX - 4_096


def test_a_drained_page_can_be_restored_in_one_call() -> None:
    kernel = Kernel(QueueOptions(max_delivery_attempts=1_000))
    kernel.enqueue(*[new_item(str(n)) for n in range(150)])
    for granted in kernel.lease(150):
        kernel.heartbeat(granted.token, progress=cmd.Progress(data="x" * 60_000))
        kernel.release(granted.token)
    drained = []
    while kernel.state.pending_count:
        page = kernel.do(cmd.DrainItems())
        assert kernel.do(cmd.RestoreItems(page.items)).restored_count == len(page.items)
        drained += kernel.do(cmd.DrainItems(len(page.items))).items
    assert len(drained) == 150
    assert len(replay(kernel.events).items) == 0


def test_a_completion_with_all_it_may_carry_fits_one_frame() -> None:
    kernel = Kernel(QueueOptions(body_limit=4 * 1024 * 1024))
    kernel.enqueue()
    granted = kernel.lease_one()
    start = len(kernel.events)
    body = b"x" * (4 * 1024 * 1024)
    try:
        kernel.complete(granted.token, result=body, follow_ups=[new_item(body=body)])
    except InvalidArgument as error:
        assert error.code == "resourcelease.payload.too_large"  # noqa: PT017
    assert len(msgspec.json.encode(kernel.events[start:])) < FRAME_BYTES_MAX - 4_096


def nested(depth: int) -> object:
    data: object = 0
    for _ in range(depth):
        data = [data]
    return data


def read_back_from_below(kernel: Kernel, frames: int) -> State:
    """Replay with so many more calls on the stack, as a recovery deep inside an application would."""
    return read_back_from_below(kernel, frames - 1) if frames else kernel.replayed()


@pytest.mark.parametrize("depth", range(100, 1_000, 100))
def test_progress_that_is_accepted_can_be_read_back_from_anywhere(depth: int) -> None:
    """Nested data takes stack to read; a log that only a shallow caller can read is a log that is lost."""
    kernel = Kernel()
    kernel.enqueue()
    token = kernel.lease_one().token
    try:
        kernel.heartbeat(token, progress=cmd.Progress(data=nested(depth)))
    except InvalidArgument:
        return
    assert 1 in read_back_from_below(kernel, 300).items
