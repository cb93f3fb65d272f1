"""Errors of a node as they arrive: turned back into the exceptions they were."""

from __future__ import annotations

from omnirelay.errors import (
    AlreadyExists,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    LogOutcomeUnknown,
    NotFound,
    OmniRelayError,
    OutOfRange,
    PermissionDenied,
    RequestIdsFull,
    ResourceExhausted,
    Status,
    Unavailable,
    Unimplemented,
)
from omnirelay.rpc.statuses import status_named
from omnirelay.wire.answers import ErrorBody

_CLASSES: dict[Status, type[OmniRelayError]] = {
    kind.status: kind
    for kind in (
        InvalidArgument,
        AlreadyExists,
        FailedPrecondition,
        PermissionDenied,
        NotFound,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Unimplemented,
        OutOfRange,
        DataLoss,
    )
}

_CODES: dict[str, type[OmniRelayError]] = {kind.default_code: kind for kind in (LogOutcomeUnknown, RequestIdsFull)}
"""Those that callers have to tell from others of the same status."""


class ConnectionLost(Unavailable):
    """The connection ended before the answer came: whether the call was carried out is unknown."""

    default_code = "error.client.connection_lost"


class NotConnected(Unavailable):
    """The node could not be reached; nothing was sent."""

    default_code = "error.client.not_connected"


def error_of(body: ErrorBody) -> OmniRelayError:
    status = status_named(body.status) or Status.INTERNAL
    kind = _CODES.get(body.code) or _CLASSES.get(status, Internal)
    error = kind(body.message, code=body.code, retry_after_ms=body.retry_after_ms)
    error.details.update(body.metadata or {})
    return error
