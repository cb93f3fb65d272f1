"""Every error OmniRelay raises, as one tree with stable codes.

    OmniRelayError
    ├── InvalidArgument      the caller sent something wrong; nothing changed
    ├── AlreadyExists        the same requestId came with another payload
    ├── FailedPrecondition   the token no longer holds the item
    ├── PermissionDenied     the token belongs to somebody else, or the caller may not do this
    ├── NotFound             no such item, or it was forgotten
    ├── ResourceExhausted    no room; try again after `retry_after_ms`
    │   └── RequestIdsFull   no further request id can be remembered; items without one still come in
    ├── Unavailable          not here, not now; try again
    │   ├── LogUnavailable   a definite failure: nothing was written
    │   ├── LogOutcomeUnknown  a flush failed: nobody knows what is on the disk
    │   ├── LogFenced        another writer took the shard over
    │   └── LogLocked        another process has the log open for writing
    ├── DeadlineExceeded     the deadline had passed on arrival
    ├── Unimplemented        nobody serves this procedure here
    ├── Internal             a fault of the server; its log has the details
    ├── OutOfRange
    │   └── LogTrimmed       the log no longer reaches back that far
    └── DataLoss             stored data does not check out
        ├── LogDamaged       a frame, a head row or a snapshot is not what was written
        ├── LogRegressed     a witness has seen more than the log now holds
        ├── LogSchemaTooNew  written by a newer version
        └── UnknownEvent     an event type this version does not know

`code` is for programs and never changes; `status` is the canonical RPC status; `details` is a
flat map for programs (field, index, sequence, file …); the message is for people and says what
to do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar, Final

Detail = str | int | float | bool | None


TOO_LARGE: Final = "resourcelease.payload.too_large"
"""The code of a body, a batch or an item that is too large, whoever finds it so; over HTTP it is 413."""


class Status(IntEnum):
    """Canonical status of an outcome; the numbers are those of the RPC status table."""

    OK = -1
    UNKNOWN = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 2
    DEADLINE_EXCEEDED = 3
    NOT_FOUND = 4
    ALREADY_EXISTS = 5
    PERMISSION_DENIED = 6
    RESOURCE_EXHAUSTED = 7
    FAILED_PRECONDITION = 8
    ABORTED = 9
    OUT_OF_RANGE = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class OmniRelayError(Exception):
    """Root of the tree. `retry_after_ms` is advice: None means that repeating will not help."""

    status: ClassVar[Status] = Status.INTERNAL
    default_code: ClassVar[str] = "internal"
    remaining: list[Any] | None = None
    """Of a call that is carried out in parts: what is not known to be done, to be handed to the same call again."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after_ms: int | None = None,
        **details: Detail,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.retry_after_ms = retry_after_ms
        self.details = details

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}: {self.message})"


class InvalidArgument(OmniRelayError):
    status = Status.INVALID_ARGUMENT
    default_code = "invalid-argument"


class AlreadyExists(OmniRelayError):
    status = Status.ALREADY_EXISTS
    default_code = "resourcelease.request_id.conflict"


class FailedPrecondition(OmniRelayError):
    status = Status.FAILED_PRECONDITION
    default_code = "failed-precondition"


class PermissionDenied(OmniRelayError):
    status = Status.PERMISSION_DENIED
    default_code = "permission-denied"


class NotFound(OmniRelayError):
    status = Status.NOT_FOUND
    default_code = "error.resourcelease.unknown_item"


class ResourceExhausted(OmniRelayError):
    status = Status.RESOURCE_EXHAUSTED
    default_code = "error.resourcelease.backpressure"


class RequestIdsFull(ResourceExhausted):
    """As many request ids are remembered as may be. That is no lack of room: the same items come in without ids."""

    default_code = "error.resourcelease.request_ids_full"


class Unavailable(OmniRelayError):
    status = Status.UNAVAILABLE
    default_code = "unavailable"


class DeadlineExceeded(OmniRelayError):
    status = Status.DEADLINE_EXCEEDED
    default_code = "deadline-exceeded"


class Unimplemented(OmniRelayError):
    status = Status.UNIMPLEMENTED
    default_code = "unimplemented"


class Internal(OmniRelayError):
    """What a caller hears of a fault nobody expected: that there was one, and nothing of its insides."""


class OutOfRange(OmniRelayError):
    status = Status.OUT_OF_RANGE
    default_code = "out-of-range"


class DataLoss(OmniRelayError):
    status = Status.DATA_LOSS
    default_code = "data-loss"


class LogUnavailable(Unavailable):
    """The store refused the write and holds none of it; the same bytes may be tried again."""

    default_code = "error.resourcelease.log_unavailable"


class LogOutcomeUnknown(Unavailable):
    """A flush failed. What the disk holds is unknown until the next start has read it back. Repeat only what may take
    effect twice.
    """

    default_code = "error.resourcelease.log_outcome_unknown"


class LogFenced(Unavailable):
    """A newer writer owns the log; this one must drop its state."""

    default_code = "error.log.fenced"


class LogLocked(Unavailable):
    default_code = "error.log.locked"


class LogTrimmed(OutOfRange):
    default_code = "error.log.trimmed"


class LogDamaged(DataLoss):
    default_code = "error.log.damaged"


class LogRegressed(DataLoss):
    default_code = "error.log.regressed"


class LogSchemaTooNew(DataLoss):
    default_code = "error.log.schema_too_new"


class UnknownEvent(DataLoss):
    default_code = "error.log.unknown_event"
