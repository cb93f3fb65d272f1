"""What goes wrong with segments and the stores they lie in."""

from __future__ import annotations

from omnirelay.errors import FailedPrecondition, LogDamaged, LogFenced, NotFound


class SegmentStoreUnusable(FailedPrecondition):
    """The store cannot be used as it is: a wrong address or option, no access, or no put-if-absent to rely on."""

    default_code = "error.segments.store_unusable"


class ObjectMissing(NotFound):
    default_code = "error.segments.object_missing"


class SegmentsFenced(LogFenced):
    """The segments hold another history, or a newer writer's; whoever gets this must not write on."""

    default_code = "error.segments.fenced"


class SegmentsDamaged(LogDamaged):
    """A manifest, an index or a segment is not what was written; `segment` names it, `sequence` the place."""

    default_code = "error.segments.damaged"
