"""Statuses as they are written: the name in headers, the token in bodies, the number of HTTP."""

from __future__ import annotations

from omnirelay.errors import TOO_LARGE, InvalidArgument, OmniRelayError, Status

HTTP_STATUS: dict[Status, int] = {
    Status.OK: 200,
    Status.UNKNOWN: 500,
    Status.CANCELLED: 499,
    Status.INVALID_ARGUMENT: 400,
    Status.DEADLINE_EXCEEDED: 504,
    Status.NOT_FOUND: 404,
    Status.ALREADY_EXISTS: 409,
    Status.PERMISSION_DENIED: 403,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.FAILED_PRECONDITION: 412,
    Status.ABORTED: 409,
    Status.OUT_OF_RANGE: 400,
    Status.UNIMPLEMENTED: 501,
    Status.INTERNAL: 500,
    Status.UNAVAILABLE: 503,
    Status.DATA_LOSS: 500,
    Status.UNAUTHENTICATED: 401,
}


def status_name(status: Status) -> str:
    """As headers have it: `InvalidArgument`."""
    return "".join(part.capitalize() for part in status.name.split("_"))


def status_named(text: str) -> Status | None:
    """The status of a name or a token in any case: `InvalidArgument`, `INVALID_ARGUMENT`; None for anything else."""
    return _BY_NAME.get(text.replace("_", "").replace("-", "").lower())


_BY_NAME = {status.name.replace("_", "").lower(): status for status in Status}


def http_status(error: OmniRelayError) -> int:
    """413 is the one number that does not follow from the status: clients and proxies know what it means."""
    if error.code == TOO_LARGE and isinstance(error, InvalidArgument):
        return 413
    return HTTP_STATUS[error.status]
