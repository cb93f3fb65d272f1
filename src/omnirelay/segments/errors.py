"""What goes wrong with segments and the stores they lie in."""

from __future__ import annotations

from omnirelay.errors import FailedPrecondition, LogDamaged, LogFenced, NotFound, Unavailable


class SegmentStoreUnusable(FailedPrecondition):
    """The store cannot be used as it is: a wrong address or option, no access, or no put-if-absent to rely on."""

    default_code = "error.segments.store_unusable"


class ObjectMissing(NotFound):
    default_code = "error.segments.object_missing"


class BucketMissing(Unavailable):
    """The store answers, and has no such bucket. Whoever wrote into it before may wait for it to come back."""

    default_code = "error.segments.bucket_missing"


class SegmentsFenced(LogFenced):
    """The segments hold another history, or a newer writer's; whoever gets this must not write on."""

    default_code = "error.segments.fenced"


class SegmentsDamaged(LogDamaged):
    """A manifest, an index or a segment is not what was written; `segment` names it, `sequence` the place."""

    default_code = "error.segments.damaged"
