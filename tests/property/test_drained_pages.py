"""What a drain hands out, a restore takes: in the shard where it was, and in any other that has room."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core import commands as cmd
from omnirelay.core.events import RestoredItem
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ErrorInfo, OwnershipToken
from omnirelay.core.snapshot import digest
from omnirelay.errors import FailedPrecondition
from tests.builders import START_MS, Kernel, payload
from tests.property.strategies import profile

IDS = st.sampled_from([1, 2, 3, 1 << 32, 1 << 52, (1 << 52) + 1, 1 << 53, (1 << 53) + 1, 1 << 62])
ATTEMPTS = st.sampled_from([1, 2, 5, 6, 999_999, 1_000_000, 1_000_001, 1 << 53, (1 << 62) - 1, 1 << 62])
FENCES = st.sampled_from([None, 0, 1, 1 << 32, 1 << 52, 1 << 53, (1 << 62) - 1, 1 << 62])
TOKENS = st.none() | st.builds(OwnershipToken, IDS, ATTEMPTS, st.just("elsewhere"), FENCES)


@st.composite
def items_from_elsewhere(draw: st.DrawFn) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 4))):
        attempt = draw(ATTEMPTS)
        found.append(
            {
                "sequence_id": draw(IDS),
                "payload": payload(str(number)),
                "attempt": attempt,
                "attempt_floor": draw(st.sampled_from([0, attempt // 2, attempt - 1])),
                "undelivered": draw(st.sampled_from([0, 1, 999_999, 1_000_000])),
                "max_attempts": draw(st.sampled_from([None, 1, 1_000_000])),
                "last_error": draw(st.sampled_from([None, ErrorInfo("it broke", "c" * 1_024)])),
                "last_ownership_token": draw(TOKENS),
                "parent_sequence_id": draw(st.none() | IDS),
                "enqueued_at": number,
            }
        )
    return found


STEPS = st.lists(st.sampled_from(["enqueue", "lease", "fail", "release", "beat", "expire", "redrive"]), max_size=8)


def take_step(kernel: Kernel, step: str) -> None:
    leased = [item.lease.token for item in kernel.state.leased if item.lease is not None]
    if step == "enqueue":
        kernel.enqueue()
    elif step == "lease":
        kernel.lease()
    elif step == "expire":
        kernel.pass_time(60_000)
    elif step == "redrive":
        kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(everything=True)))
    elif leased:
        {"fail": kernel.fail, "release": kernel.release, "beat": kernel.heartbeat}[step](leased[0])


def next_page(kernel: Kernel, count: int) -> list[RestoredItem]:
    """A page as it leaves the process; none when all that is left could not come in anywhere."""
    try:
        page = kernel.do(cmd.DrainItems(count)).items
    except FailedPrecondition as refused:
        stuck = kernel.state.items[int(str(refused.details["sequenceId"]))]
        token = None if stuck.trail is None else stuck.trail.last_token
        assert stuck.attempt > 1 << 62 or (token is not None and max(token.attempt, token.fence or 0) > 1 << 62)
        return []
    return msgspec.json.decode(msgspec.json.encode(page), type=list[RestoredItem])


@profile(150)
@given(
    given_items=items_from_elsewhere(), steps=STEPS, count=st.integers(1, 4), limit=st.sampled_from([0, 5, 1_000_000])
)
def test_what_a_drain_hands_out_a_restore_takes(
    given_items: list[dict[str, Any]], steps: list[str], count: int, limit: int
) -> None:
    kernel = Kernel(QueueOptions(max_undelivered=limit))
    kernel.do(cmd.RestoreItems([RestoredItem(**fields) for fields in given_items]))
    for step in steps:
        take_step(kernel, step)
    elsewhere = Kernel(start_ms=START_MS - 1)
    elsewhere.enqueue()
    pages = []
    while page := next_page(kernel, count):
        pages.append(page)
        assert elsewhere.do(cmd.RestoreItems(page)).restored_count == len(page)
    for page in pages:
        assert kernel.do(cmd.RestoreItems(page)).restored_count == len(page)
    for each in (kernel, elsewhere):
        assert digest(each.replayed()) == each.digest()
        assert each.enqueue()[0] < 1 << 53
