"""How a command ends: its exit code, and what it says on the way out.

0  done                          4  not found, or nothing there
1  failed                        5  refused: identity, fence, precondition
2  wrong usage                   6  damaged data
3  not reachable               130  interrupted (143: by SIGTERM)
"""

from __future__ import annotations

import errno

from omnirelay.errors import OmniRelayError, Status

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOTHING = 4
REFUSED = 5
DAMAGED = 6
INTERRUPTED = 130

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Nothing is wrong with the name of the file; it is the disk that takes nothing."""

_BY_STATUS = {
    Status.INVALID_ARGUMENT: USAGE,
    Status.NOT_FOUND: NOTHING,
    Status.OUT_OF_RANGE: NOTHING,
    Status.ALREADY_EXISTS: REFUSED,
    Status.FAILED_PRECONDITION: REFUSED,
    Status.PERMISSION_DENIED: REFUSED,
    Status.UNAUTHENTICATED: REFUSED,
    Status.DATA_LOSS: DAMAGED,
}

_BY_HTTP = {400: USAGE, 413: USAGE, 401: REFUSED, 403: REFUSED, 409: REFUSED, 412: REFUSED, 404: NOTHING}
_BY_CODE = {
    "error.log.trimmed": NOTHING,
    "error.log.damaged": DAMAGED,
    "error.log.regressed": DAMAGED,
    # Nothing is wrong with the data: it is this version that is too old for it.
    "error.log.schema_too_new": REFUSED,
    "error.log.unknown_event": REFUSED,
    "error.resourcelease.unknown_token": REFUSED,
    "error.resourcelease.fence_mismatch": REFUSED,
    "error.resourcelease.not_owner": REFUSED,
    "error.taskqueue.lease_inactive": REFUSED,
}


class Stop(Exception):
    """Ends the command with this exit code. `message` goes to stderr; an empty one says nothing."""

    def __init__(self, exit_code: int, message: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
        self.code = code


class Refusal(Stop):
    """A node answered, and the answer is an error."""

    def __init__(
        self,
        http: int,
        message: str,
        code: str,
        metadata: dict[str, str] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(exit_of_answer(http, code), message, code)
        self.http = http
        self.metadata = metadata or {}
        self.retry_after_ms = retry_after_ms


def exit_of_answer(http: int, code: str) -> int:
    """For an answer as a whole, or with 200 for one that refuses a part of what it was asked."""
    return _BY_CODE.get(code) or _BY_HTTP.get(http, FAILED)


def exit_of_error(error: OmniRelayError) -> int:
    return _BY_CODE.get(error.code) or _BY_STATUS.get(error.status, FAILED)


def usage(message: str) -> Stop:
    return Stop(USAGE, message)


def nothing(message: str) -> Stop:
    return Stop(NOTHING, message)
