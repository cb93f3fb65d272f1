"""Every refusal has a stable code, names its field, and changes nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import CompleteAnswer
from omnirelay.core.decide import acknowledge_all
from omnirelay.core.events import RestoredItem
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, ErrorInfo, NewItem, OwnershipToken
from omnirelay.core.views import locate
from omnirelay.errors import AlreadyExists, FailedPrecondition, InvalidArgument, PermissionDenied
from tests.builders import WORKER, Kernel, new_item, payload

BAD_PAYLOADS: list[tuple[str, Any, str, str]] = [
    ("no payload", None, "payload", "resourcelease.payload.required"),
    ("no type", payload(resource_type=""), "resourceType", "resourcelease.payload.resource_type_required"),
    ("blank type", payload(resource_type=" \t"), "resourceType", "resourcelease.payload.resource_type_required"),
    ("type of spaces", payload(resource_type="   "), "resourceType", "resourcelease.payload.resource_type_required"),
    ("type missing", payload(resource_type=None), "resourceType", "resourcelease.payload.resource_type_required"),  # type: ignore[arg-type]
    ("type too long", payload(resource_type="x" * 1025), "resourceType", "resourcelease.resourceType.invalid"),
    ("type a number", payload(resource_type=7), "resourceType", "resourcelease.resourceType.invalid"),  # type: ignore[arg-type]
    ("no id", payload(""), "resourceId", "resourcelease.payload.resource_id_required"),
    ("blank id", payload("\u2003"), "resourceId", "resourcelease.payload.resource_id_required"),
    ("id with a NUL", payload("a\0b"), "resourceId", "resourcelease.resourceId.invalid"),
    ("half a surrogate", payload("a\ud800"), "resourceId", "resourcelease.resourceId.invalid"),
    ("blank encoding", payload(payload_encoding=" "), "payloadEncoding", "resourcelease.payload.encoding_required"),
    ("blank partition", payload(partition_key=""), "partitionKey", "resourcelease.partitionKey.invalid"),
    ("blank request id", payload(request_id=" "), "requestId", "resourcelease.requestId.invalid"),
    ("body over the limit", payload(body=b"x" * 21), "body", "resourcelease.payload.too_large"),
    ("body is text", payload(body="text"), "body", "resourcelease.body.invalid"),
    ("attributes a list", payload(attributes=["a"]), "attributes", "resourcelease.attributes.invalid"),
    ("attribute a number", payload(attributes={"a": 1}), "attributes", "resourcelease.attributes.invalid"),
    ("attribute name a number", payload(attributes={1: "a"}), "attributes", "resourcelease.attributes.invalid"),
    ("attribute name empty", payload(attributes={"": "a"}), "attributes", "resourcelease.attributes.invalid"),
    (
        "too many attributes",
        payload(attributes={f"name-{n}": "" for n in range(65)}),
        "attributes",
        "resourcelease.attributes.invalid",
    ),
]

BAD_ITEMS: list[tuple[str, dict[str, Any], str]] = [
    ("negative delay", {"delay_ms": -1}, "delayMs"),
    ("delay beyond ten years", {"delay_ms": 10 * 366 * 24 * 3_600_000}, "delayMs"),
    ("delay and an instant", {"delay_ms": 1, "not_before_ms": 2}, "delayMs"),
    ("negative instant", {"not_before_ms": -1}, "notBefore"),
    ("instant after the year 9999", {"not_before_ms": 253_402_300_800_000}, "notBefore"),
    ("class 10", {"priority": 10}, "priority"),
    ("class -1", {"priority": -1}, "priority"),
    ("a broken class", {"priority": 5.0}, "priority"),
    ("weight 0", {"weight": 0}, "weight"),
    ("a weight that is true", {"weight": True}, "weight"),
    ("no attempts", {"max_attempts": 0}, "maxAttempts"),
    ("attempts true", {"max_attempts": True}, "maxAttempts"),
]


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(QueueOptions(body_limit=20))


@pytest.mark.parametrize(
    ("bad", "field", "code"), [case[1:] for case in BAD_PAYLOADS], ids=[case[0] for case in BAD_PAYLOADS]
)
def test_a_bad_payload_is_refused_by_code_and_field(kernel: Kernel, bad: Any, field: str, code: str) -> None:
    error = kernel.refusal(cmd.EnqueueItems([NewItem(payload=bad)]))
    assert isinstance(error, InvalidArgument)
    assert (error.code, error.details["field"]) == (code, field)


@pytest.mark.parametrize(("bad", "field"), [case[1:] for case in BAD_ITEMS], ids=[case[0] for case in BAD_ITEMS])
def test_a_bad_item_is_refused_by_code_and_field(kernel: Kernel, bad: dict[str, Any], field: str) -> None:
    error = kernel.refusal(cmd.EnqueueItems([new_item(**bad)]))
    assert isinstance(error, InvalidArgument)
    assert (error.code, error.details["field"]) == (f"resourcelease.{field}.invalid", field)


@pytest.mark.parametrize("count", [2, 3])
def test_one_bad_item_refuses_the_whole_batch_and_is_named_by_its_index(kernel: Kernel, count: int) -> None:
    items = [new_item(str(n)) for n in range(count - 1)] + [new_item("")]
    error = kernel.refusal(cmd.EnqueueItems(items))
    assert error.details["index"] == count - 1
    assert kernel.state.pending_count == 0


@pytest.mark.parametrize("items", [[], (new_item(),), [None], [payload()], None])
def test_a_batch_must_be_a_list_of_items(kernel: Kernel, items: Any) -> None:
    assert isinstance(kernel.refusal(cmd.EnqueueItems(items)), InvalidArgument)


def test_a_batch_of_too_many_items_is_too_large(kernel: Kernel) -> None:
    error = kernel.refusal(cmd.EnqueueItems([new_item()] * 10_001))
    assert (error.code, error.details["field"]) == ("resourcelease.payload.too_large", "items")


class Kind(StrEnum):
    TABLE = "table"


def test_a_name_that_is_only_almost_text_is_refused_behind_one_that_is(kernel: Kernel) -> None:
    batch = [new_item("a"), new_item("b", resource_type=Kind.TABLE)]
    error = kernel.refusal(cmd.EnqueueItems(batch))
    assert (error.code, error.details["index"]) == ("resourcelease.resourceType.invalid", 1)


@pytest.mark.parametrize("caller", [Caller(peer_id=" "), Caller(principal=""), Caller(peer_id="p\ud800")])
def test_a_caller_without_a_proper_name_is_refused(kernel: Kernel, caller: Caller) -> None:
    assert isinstance(kernel.refusal(cmd.EnqueueItems([new_item()], caller)), InvalidArgument)
    assert isinstance(kernel.refusal(cmd.GrantLeases(caller)), InvalidArgument)


def test_follow_ups_carry_no_name_that_the_log_cannot_hold() -> None:
    kernel = Kernel()
    kernel.enqueue()
    granted = kernel.lease_one(Caller(principal="alice", peer_id="worker-1"))
    odd = Caller(principal="alice", peer_id="worker-\ud800")
    error = kernel.refusal(cmd.CompleteItem(granted.token, odd, follow_ups=[new_item("next")]))
    assert error.details["field"] == "peerId"


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (cmd.GrantLeases(items_max=0), "maxItems"),
        (cmd.GrantLeases(items_max=1_001), "maxItems"),
        (cmd.GrantLeases(items_max=None), "maxItems"),  # type: ignore[arg-type]
        (cmd.GrantLeases(lease_duration_ms=0), "leaseDurationMs"),
        (cmd.GrantLeases(lease_duration_ms=3_600_001), "leaseDurationMs"),
        (cmd.GrantLeases(request_id=""), "requestId"),
        (cmd.DrainItems(items_max=0), "maxItems"),
        (cmd.DrainItems(items_max=10_001), "maxItems"),
        (cmd.RedriveItems(cmd.DeadLetterSelection()), "selection"),
        (cmd.RedriveItems(cmd.DeadLetterSelection(everything=True, error_code="x")), "selection"),
        (cmd.RedriveItems(cmd.DeadLetterSelection(everything=True), rate_per_second=0), "ratePerSecond"),
        (cmd.PurgeItems(cmd.DeadLetterSelection(sequence_ids=list(range(10_001)))), "sequenceIds"),
        (cmd.ExtendLease(None), "ownershipToken"),  # type: ignore[arg-type]
        (cmd.CompleteItem(None), "ownershipToken"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_argument_of_another_command_is_named(kernel: Kernel, command: cmd.Command, field: str) -> None:
    error = kernel.refusal(command)
    assert isinstance(error, InvalidArgument)
    assert (error.code, error.details["field"]) == (f"resourcelease.{field}.invalid", field)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"mode": "later"}, "mode"),
        ({"reason": "x" * 16_385}, "reason"),
        ({"error_code": ""}, "errorCode"),
        ({"delay_ms": -1}, "delayMs"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
def test_a_bad_failure_leaves_the_lease_alone(kernel: Kernel, fields: dict[str, Any], field: str) -> None:
    kernel.enqueue()
    granted = kernel.lease_one()
    assert kernel.refusal(cmd.FailItem(granted.token, **fields)).details["field"] == field
    kernel.complete(granted.token)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"result": "text"}, "result"),
        ({"result": b"x" * 21}, "result"),
        ({"result": b"", "result_encoding": " "}, "resultEncoding"),
        ({"follow_ups": [new_item(delay_ms=-1)]}, "delayMs"),
        ({"follow_ups": [None]}, "payload"),
    ],
)
def test_a_bad_completion_leaves_the_lease_alone(kernel: Kernel, fields: dict[str, Any], field: str) -> None:
    kernel.enqueue()
    granted = kernel.lease_one()
    assert kernel.refusal(cmd.CompleteItem(granted.token, **fields)).details["field"] == field
    kernel.complete(granted.token)


@pytest.mark.parametrize(
    "progress",
    [
        cmd.Progress(fraction=1.1),
        cmd.Progress(fraction=float("nan")),
        cmd.Progress(fraction=True),
        cmd.Progress(message="\0"),
        cmd.Progress(data=object()),
        cmd.Progress(data={"a": "\ud800"}),
        cmd.Progress(data="x" * 65_536),
        cmd.Progress(data=msgspec.Raw(b'{"a":]')),
        cmd.Progress(data=[msgspec.Raw(b'"\xff"')]),
    ],
    ids=["beyond", "nan", "true", "control", "no JSON", "surrogate", "too long", "raw and no JSON", "raw and no text"],
)
def test_bad_progress_is_refused(kernel: Kernel, progress: cmd.Progress) -> None:
    kernel.enqueue()
    granted = kernel.lease_one()
    error = kernel.refusal(cmd.ExtendLease(granted.token, progress=progress))
    assert (error.code, error.details["field"]) == ("resourcelease.progress.invalid", "progress")


def test_raw_progress_is_kept_without_white_space(kernel: Kernel) -> None:
    """Every event has to be one line."""
    kernel.enqueue()
    granted = kernel.lease_one()
    kernel.do(cmd.ExtendLease(granted.token, progress=cmd.Progress(data=msgspec.Raw(b'{"a b":\n 1}'))))
    trail = kernel.replayed().items[granted.token.sequence_id].trail
    assert trail is not None
    assert trail.progress == b'{"data":{"a b":1}}'


@pytest.mark.parametrize(
    "command",
    [
        cmd.DrainItems(items_max=None),  # type: ignore[arg-type]
        cmd.CancelItem(1, reason=b"bytes"),  # type: ignore[arg-type]
        cmd.CancelItem(1, caller=None),  # type: ignore[arg-type]
        cmd.CompleteItem(OwnershipToken([], 1, "x")),  # type: ignore[arg-type]
        cmd.ExtendLease(OwnershipToken(1, 1, "x"), progress="half"),  # type: ignore[arg-type]
        cmd.PurgeItems(cmd.DeadLetterSelection(sequence_ids=[[]])),  # type: ignore[list-item]
        cmd.RestoreItems([RestoredItem(sequence_id=1, payload=payload(), last_error="boom")]),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_a_kind_that_does_not_belong_there_is_refused(kernel: Kernel, command: cmd.Command) -> None:
    kernel.enqueue()
    error = kernel.refusal(command)
    assert error.code.startswith(("resourcelease.", "error.resourcelease.unknown"))


# -- tokens --------------------------------------------------------------------------------------


def test_an_unknown_token_is_refused(kernel: Kernel) -> None:
    kernel.enqueue()
    token = kernel.lease_one().token
    for unknown in (
        msgspec.structs.replace(token, lease_id="00000000-0000-4000-8000-000000000000"),
        msgspec.structs.replace(token, attempt=token.attempt + 1),
        msgspec.structs.replace(token, sequence_id=999),
        msgspec.structs.replace(token, sequence_id="1"),
        msgspec.structs.replace(token, lease_id=None),
    ):
        for verb in (cmd.ExtendLease, cmd.CompleteItem, cmd.FailItem, cmd.ReleaseItem):
            error = kernel.refusal(verb(unknown))
            assert isinstance(error, FailedPrecondition)
            assert error.code == "error.resourcelease.unknown_token"


def test_a_token_with_another_fence_is_refused(kernel: Kernel) -> None:
    kernel.enqueue()
    token = kernel.lease_one().token
    error = kernel.refusal(cmd.CompleteItem(msgspec.structs.replace(token, fence=token.fence + 1)))  # type: ignore[operator]
    assert error.code == "error.resourcelease.fence_mismatch"
    kernel.complete(msgspec.structs.replace(token, fence=None))


@pytest.mark.parametrize("fence", ["1", b"1", 1.5, [1], object()])
def test_a_fence_of_a_wrong_type_is_another_fence(kernel: Kernel, fence: Any) -> None:
    kernel.enqueue()
    token = kernel.lease_one().token
    wrong = msgspec.structs.replace(token, fence=fence)
    for verb in (cmd.ExtendLease, cmd.CompleteItem, cmd.FailItem, cmd.ReleaseItem):
        assert kernel.refusal(verb(wrong)).code == "error.resourcelease.fence_mismatch"
    kernel.complete(token)
    assert kernel.refusal(cmd.CompleteItem(wrong)).code == "error.resourcelease.fence_mismatch"


def test_a_token_outlived_by_its_lease_is_refused(kernel: Kernel) -> None:
    kernel.enqueue()
    granted = kernel.lease_one()
    kernel.now_ms = granted.expires_at
    for _ in range(2):
        assert kernel.refusal(cmd.CompleteItem(granted.token)).code == "error.taskqueue.lease_inactive"
        kernel.pass_time()


def test_somebody_elses_token_is_refused(kernel: Kernel) -> None:
    kernel.enqueue(new_item("a"), new_item("b"))
    of_peer = kernel.lease_one(Caller(peer_id="worker-1"))
    of_principal = kernel.lease_one(Caller(principal="alice", peer_id="worker-1"))
    for token, thief in (
        (of_peer.token, Caller(peer_id="worker-2")),
        (of_principal.token, Caller(principal="bob", peer_id="worker-1")),
        (of_principal.token, Caller(peer_id="worker-1")),
        (of_peer.token, Caller(peer_id=1)),  # type: ignore[arg-type]
        (of_principal.token, Caller(principal=1)),  # type: ignore[arg-type]
    ):
        error = kernel.refusal(cmd.CompleteItem(token, thief))
        assert isinstance(error, PermissionDenied)
        assert error.code == "error.resourcelease.not_owner"


def test_a_request_id_with_another_payload_is_a_conflict(kernel: Kernel) -> None:
    kernel.enqueue(new_item("a", request_id="r1"))
    error = kernel.refusal(cmd.EnqueueItems([new_item("b", request_id="r1")], WORKER))
    assert isinstance(error, AlreadyExists)
    assert (error.code, error.details["field"]) == ("resourcelease.request_id.conflict", "requestId")


# -- what is no command at all -------------------------------------------------------------------


@pytest.mark.parametrize(
    "thing", [None, 1, "complete", OwnershipToken(1, 1, "x"), new_item(), [], {}, object(), Kernel]
)
def test_what_is_no_command_is_refused(kernel: Kernel, thing: Any) -> None:
    error = kernel.refusal(thing)
    assert isinstance(error, InvalidArgument)
    assert error.details["field"] == "command"


@pytest.mark.parametrize("thing", [None, 1, "complete", OwnershipToken(1, 1, "x")])
def test_what_is_no_acknowledgement_is_refused_beside_those_that_are(kernel: Kernel, thing: Any) -> None:
    kernel.enqueue()
    outcomes: list[Any] = []
    commands = [thing, cmd.CompleteItem(kernel.lease_one().token)]
    acknowledge_all(kernel.state, commands, kernel.now_ms, kernel.now_ms, kernel.ids, [], [], outcomes, 100, 100)
    assert isinstance(outcomes[0], InvalidArgument)
    assert outcomes[1] == CompleteAnswer()


@pytest.mark.parametrize("tokens", [None, 1, [1], [[]], [None]])
def test_what_is_no_token_cannot_be_given_back(kernel: Kernel, tokens: Any) -> None:
    assert isinstance(kernel.refusal(cmd.ReturnUndelivered(tokens)), InvalidArgument)


@pytest.mark.parametrize(
    ("request_id", "caller"), [("r1", "me"), ("r1", None), (object(), Caller()), (b"r1", Caller())]
)
def test_an_item_is_not_looked_for_by_what_is_no_request_id_or_caller(
    kernel: Kernel, request_id: Any, caller: Any
) -> None:
    kernel.enqueue(new_item(request_id="r1"))
    with pytest.raises(InvalidArgument):
        locate(kernel.state, None, request_id, caller)


# -- restore -------------------------------------------------------------------------------------


def restored(**fields: Any) -> RestoredItem:
    return RestoredItem(**{"sequence_id": 5, "payload": payload(), **fields})


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (None, "items"),
        (restored(payload=None), "payload"),
        (restored(payload=payload("")), "resourceId"),
        (restored(sequence_id=0), "sequenceId"),
        (restored(sequence_id=True), "sequenceId"),
        (restored(attempt=0), "attempt"),
        (restored(enqueued_at=-1), "enqueuedAt"),
        (restored(priority=10), "priority"),
        (restored(weight=0), "weight"),
        (restored(max_attempts=0), "maxAttempts"),
        (restored(attempt=3, attempt_floor=3), "attemptFloor"),
        (restored(attempt_floor=-1), "attemptFloor"),
        (restored(attempt=2, attempt_floor=True), "attemptFloor"),
        (restored(attempt_floor=(1 << 64) - 1), "attemptFloor"),
        (restored(undelivered=-1), "undelivered"),
        (restored(undelivered="2"), "undelivered"),
        (restored(undelivered=1_000_001), "undelivered"),
        (restored(last_error=ErrorInfo("\0")), "lastError"),
        (restored(last_error=ErrorInfo(None)), "lastError"),  # type: ignore[arg-type]
        (restored(last_ownership_token=OwnershipToken(1, 1, None, 1)), "lastOwnershipToken"),  # type: ignore[arg-type]
        (restored(last_ownership_token=OwnershipToken(1, 1, "", 1)), "lastOwnershipToken"),
        (restored(last_ownership_token=OwnershipToken(1, 1, "x", (1 << 62) + 1)), "lastOwnershipToken"),
        (restored(last_ownership_token=(1, 1, "x", 1)), "lastOwnershipToken"),
        (restored(attempt=(1 << 62) + 1), "attempt"),
        (restored(sequence_id=(1 << 62) + 1), "sequenceId"),
        (restored(last_ownership_token=OwnershipToken(1, 1, "x", -1)), "lastOwnershipToken"),
        (restored(progress=msgspec.Raw(b"}{")), "progress"),
        (restored(request_key="text"), "requestKey"),
        (restored(request_key=b"x" * 16, payload_digest="text"), "payloadDigest"),
    ],
)
def test_a_bad_item_to_restore_refuses_all_and_is_named_by_its_index(kernel: Kernel, bad: Any, field: str) -> None:
    error = kernel.refusal(cmd.RestoreItems([restored(sequence_id=1), bad]))
    assert isinstance(error, InvalidArgument)
    assert (error.details["field"], error.details["index"]) == (field, 1)


@pytest.mark.parametrize(
    "bad",
    [
        restored(last_error=ErrorInfo(None)),  # type: ignore[arg-type]
        restored(last_error=ErrorInfo("x", 7)),  # type: ignore[arg-type]
        restored(last_ownership_token=OwnershipToken(1, 1, None, 1)),  # type: ignore[arg-type]
        restored(progress=None),
        restored(payload=payload(body=None)),
        restored(payload=payload(request_id=7)),
    ],
)
def test_an_item_alone_is_checked_like_one_among_others(kernel: Kernel, bad: Any) -> None:
    assert isinstance(kernel.refusal(cmd.RestoreItems([bad])), InvalidArgument)


def test_an_empty_progress_in_a_restore_does_not_spoil_the_log(kernel: Kernel) -> None:
    kernel.do(cmd.RestoreItems([restored(progress=msgspec.Raw())]))
    assert kernel.replayed().items[5].trail is None


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("capacity", 0, "capacity"),
        ("capacity", None, "capacity"),
        ("capacity", 1.5, "capacity"),
        ("capacity", "many", "capacity"),
        ("lease_duration_ms", 0, "leaseDurationMs"),
        ("lease_duration_ms", True, "leaseDurationMs"),
        ("max_lease_duration_ms", 29_999, "maxLeaseDurationMs"),
        ("request_id_retention_max_ms", 1, "requestIdRetentionMaxMs"),
        ("reserve", -1, "reserve"),
    ],
)
def test_a_wrong_option_is_named_when_it_is_built(name: str, value: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        QueueOptions(**{name: value})
    assert refused.value.code == f"resourcelease.{field}.invalid"
    assert refused.value.details["field"] == field
