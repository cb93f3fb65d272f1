"""What an audit looks for, and what it found.

Three opinions look at a log, each in its own way, and each says for itself what it found:

    files    every segment by itself: its digest, its frames and their chain, its columns against the frames
    replay   the whole log of a shard through `evolve`, the rules that made it, with a watch around every step
    sql      window functions over the flat columns; knows nothing of the rules but what stands in its own queries.
             Items that one segment shows whole, and in order by the same questions, are cleared before
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

Opinion: TypeAlias = Literal["files", "replay", "sql"]

FINDINGS_MAX: Final = 20
"""Most violations of one rule that one opinion names; the others are counted."""


class Rule(msgspec.Struct, frozen=True):
    """Something that holds in every log a node wrote."""

    id: str
    sentence: str
    opinions: tuple[Opinion, ...]


RULES: Final = (
    Rule("segments", "Every segment that the manifest lists is there and is what was written.", ("files",)),
    Rule("contiguity", "Events follow each other without a gap; only a new generation jumps.", ("files", "sql")),
    Rule("chain", "The chain of every frame is the hash of the one before it and its bytes.", ("files", "sql")),
    Rule("columns", "The flat columns, or the lines, say what the raw frame says.", ("files",)),
    Rule("follows", "Every event follows from those before it by the product's own rules.", ("replay",)),
    Rule("life", "An item comes in before anything else happens to it, and nothing happens to it behind its end.",
         ("replay", "sql")),
    Rule("one-lease", "An item has at most one live lease.", ("replay", "sql")),
    Rule("owner", "Only the live lease of an item is renewed, acknowledged or expired.", ("replay", "sql")),
    Rule("lease-ids", "A lease id is that of one grant only.", ("sql",)),
    Rule("exclusive-key", "An exclusive key has at most one live lease.", ("replay", "sql")),
    Rule("fences", "A fence is the number of its grant, and fences and generations only rise.", ("replay", "sql")),
    Rule("limits", "No grant goes beyond a limit, no retry beyond the attempts, no item beyond the capacity.",
         ("replay", "sql")),
    Rule("expiry", "A lease is for as long as the options allow, is renewed for as long again, and expires behind its"
         " deadline, never before it.", ("replay",)),
    Rule("together", "What one command does is in one commit: a last attempt and its dead letter, a completion and its"
         " follow-ups.", ("replay",)),
    Rule("depth", "The depth that a frame tells is what the events before it give.", ("replay", "sql")),
    Rule("ends", "Every item has an end, or a reason why it has none.", ("replay", "sql")),
    Rule("digests", "The state at a snapshot of the node has the digest that the node recorded.", ("replay",)),
)  # fmt: skip

BY_ID: Final = {rule.id: rule for rule in RULES}


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One violation."""

    rule: str
    opinion: Opinion
    shard: str
    sequence: int | None
    """The event, or the first that is concerned."""
    what: str
    item: int | None = None


class Findings:
    """Violations that one opinion has of one shard. Those outside the audited stretch are passed over."""

    def __init__(self, opinion: Opinion, shard: str, first: int = 0, last: int | None = None) -> None:
        self.opinion: Opinion = opinion
        self.shard = shard
        self._first = first
        self._last = last
        self.counts: dict[str, int] = {}
        self.named: list[Finding] = []

    def add(
        self, rule: str, sequence: int | None, what: str, item: int | None = None, *, upto: int | None = None
    ) -> None:
        """`upto`: it concerns everything from `sequence` up to there."""
        assert rule in BY_ID, rule
        if sequence is not None and upto is not None and sequence < self._first <= upto:
            sequence = self._first
        if sequence is not None and (sequence < self._first or (self._last is not None and sequence > self._last)):
            return
        count = self.counts[rule] = self.counts.get(rule, 0) + 1
        if count <= FINDINGS_MAX:
            self.named.append(Finding(rule, self.opinion, self.shard, sequence, what, item))


class Opined(msgspec.Struct, frozen=True):
    """What came of one piece of work: as many as there are tasks go through Spark."""

    opinion: Opinion
    shard: str
    counts: dict[str, int]
    named: list[Finding]
    usable: bool = True
    """Whether others can read this segment; of use in the opinion on a file."""
    place: int = 0
    """Which segment of the shard."""
    replaced: bool = False
    """The segment was merged into another, or dropped, after the audit was planned."""

    @classmethod
    def of(cls, findings: Findings, *, usable: bool = True, place: int = 0, replaced: bool = False) -> Opined:
        return cls(findings.opinion, findings.shard, findings.counts, findings.named, usable, place, replaced)


class Unseen(msgspec.Struct, frozen=True):
    """Something that an opinion did not look at. It is no violation, and no proof either."""

    opinion: Opinion
    shard: str
    why: str


class Replayed(msgspec.Struct, kw_only=True):
    """How far a shard was replayed, and what it is then."""

    shard: str
    begun: int
    """The event the replay began behind."""
    last: int
    """The last event that was replayed."""
    events: int
    frames: int
    digest: str | None
    """Of the state behind the last event."""
    states: dict[str, int] = {}
    """Items by what they are at the end."""
    snapshots: int = 0
    """Digests that were compared."""
    remark: str | None = None
    """Why it was not replayed, or no further."""


class RuleResult(msgspec.Struct, frozen=True):
    """A rule after an audit."""

    rule: Rule
    counts: dict[str, int]
    """Violations by opinion; an opinion that did not look is not in it."""
    first: list[Finding]

    @property
    def violations(self) -> int:
        return sum(self.counts.values())


def results(opined: Iterable[Opined], looked: dict[str, set[Opinion]]) -> list[RuleResult]:
    """Everything that was found, by rule; `looked` says which opinions looked at what."""
    all_of_it = list(opined)
    made = []
    for rule in RULES:
        counts: dict[str, int] = {
            opinion: sum(each.counts.get(rule.id, 0) for each in all_of_it if each.opinion == opinion)
            for opinion in rule.opinions
            if opinion in looked.get(rule.id, set())
        }
        named = sorted(
            (finding for each in all_of_it for finding in each.named if finding.rule == rule.id),
            key=lambda finding: (finding.shard, finding.sequence or 0, finding.opinion),
        )
        made.append(RuleResult(rule, counts, _first_of_each(named)))
    return made


def _first_of_each(named: list[Finding]) -> list[Finding]:
    kept: dict[str, int] = {}
    first = []
    for finding in named:
        kept[finding.opinion] = kept.get(finding.opinion, 0) + 1
        if kept[finding.opinion] <= FINDINGS_MAX:
            first.append(finding)
    return first
