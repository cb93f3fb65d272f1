"""The audit finds what was planted in segments on the disk, and says nothing about a log that is whole.

Every plant is a shard of its own, so that one run of Spark looks at all of them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from omnirelay.cli.exits import Stop
from omnirelay.cli.lakehouse_audit import _known, drawn, end_by
from omnirelay.cli.printing import show
from omnirelay.core.snapshot import digest
from omnirelay.lakehouse.audit import Audit, Report, ShardResult
from omnirelay.lakehouse.audit_digests import Known
from omnirelay.lakehouse.audit_opinion import SqlOpinion
from omnirelay.lakehouse.audit_plan import plan
from omnirelay.lakehouse.audit_rules import RULES, Finding, Unseen
from omnirelay.log.sqlite import SqliteLog
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.manifest import Before
from tests.spark import audit_odd_plants as odd
from tests.spark import audit_plants as plants
from tests.spark.workload import recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.segment_logs import S3Server

pytestmark = pytest.mark.timeout(900)
"""One run of Spark over all plants: seconds on a machine of its own, minutes on one that many share."""

BOTH = {"replay", "sql"}
RAW = {"files", "sql"}

PLANTED = {
    "gap": (plants.gap, plants.OPTIONS, "contiguity", RAW),
    "wrong-chain": (plants.wrong_chain, plants.OPTIONS, "chain", RAW),
    "not-applicable": (plants.not_applicable, plants.OPTIONS, "follows", {"replay"}),
    "completed-leased": (plants.completed_item_leased, plants.OPTIONS, "life", BOTH),
    "never-enqueued": (plants.never_enqueued, plants.OPTIONS, "life", BOTH),
    "second-lease": (plants.second_lease, plants.OPTIONS, "one-lease", BOTH),
    "stale-owner": (plants.stale_owner, plants.OPTIONS, "owner", BOTH),
    "lease-id-again": (plants.lease_id_again, plants.OPTIONS, "lease-ids", {"sql"}),
    "same-key": (plants.same_key_leased, plants.EXCLUSIVE, "exclusive-key", BOTH),
    "wrong-fence": (plants.wrong_fence, plants.OPTIONS, "fences", BOTH),
    "fence-of-elsewhere": (plants.fence_of_elsewhere, plants.OPTIONS, "fences", BOTH),
    "type-limit": (plants.ready_leased, plants.LIMITED, "limits", BOTH),
    "tenant-limit": (plants.same_tenant_leased, plants.BY_TENANT, "limits", BOTH),
    "one-attempt-more": (plants.one_attempt_more, plants.OPTIONS, "limits", {"replay"}),
    "beyond-capacity": (plants.beyond_capacity, plants.SMALL, "limits", BOTH),
    "dead-without-a-letter": (odd.dead_without_a_letter, plants.OPTIONS, "together", {"replay"}),
    "expired-early": (plants.expired_early, plants.OPTIONS, "expiry", {"replay"}),
    "wrong-depth": (plants.wrong_depth, plants.OPTIONS, "depth", BOTH),
    "never-expired": (plants.never_expired, plants.OPTIONS, "ends", BOTH),
}
"""By shard: what is planted in which log, the rule that is violated, and the opinions that have to say so."""


class Audited:
    """One audit of everything, and the event of each shard that is to be named."""

    def __init__(self, report: Report, expected: dict[str, int]) -> None:
        self.report = report
        self.expected = expected

    def found(self, shard: str) -> list[Finding]:
        return [finding for finding in self.report.first() if finding.shard == shard]

    def shard(self, name: str) -> ShardResult:
        [found] = [each for each in self.report.shards if each.shard == name]
        return found


@pytest.fixture(scope="module")
def audited(whole_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    directory = tmp_path_factory.mktemp("segments")
    expected: dict[str, int] = {}
    for shard, (plant, options, _, _) in PLANTED.items():
        log = plants.short_log(shard, options)
        frame, expected[shard] = plant(log)
        plants.write(directory, log, frame)
    known = _write_whole(directory)
    stretches: dict[str, dict[str, int]] = {}
    for shard in ("before", "behind"):
        log = plants.short_log(shard)
        frame, at = plants.second_lease(log)
        plants.write(directory, log, frame)
        stretches[shard] = {"first": at + 1} if shard == "before" else {"last": at - 1}
    lines = plants.short_log("lines")
    frame, expected["lines"] = plants.second_lease(lines)
    plants.write(directory, lines, frame, kind="jsonl")
    keyless, first = plants.keyless_log("keyless")
    write_segments(directory, keyless, first=first)
    expected |= _harm_files(directory)
    _trim(directory)
    plans, found = asyncio.run(plan(str(directory)))
    plans = [msgspec.structs.replace(each, **stretches.get(each.shard, {})) for each in plans]
    report = Audit(whole_spark.newSession(), str(directory), plans, found, known=known).run()
    return Audited(report, expected)


def _write_whole(directory: Path) -> dict[str, Known]:
    """Logs without a fault; of one the node knows the digest, of another it says a wrong one."""
    known = {}
    for shard in ("whole", "wrong-digest"):
        log = plants.short_log(shard)
        plants.write(directory, log, pieces=2)
        right = digest(log.state)
        known[shard] = Known(log.log_id, {log.state.sequence: right if shard == "whole" else "0" * 64})
    write_segments(directory, recorded("busy", seed=5, steps=250), pieces=4)
    plants.write(directory, plants.alike_log("alike"))
    return known


def _harm_files(directory: Path) -> dict[str, int]:
    """Segments that are no longer what was written; the events where that is to be noticed."""
    edited, damaged, missing = (plants.short_log(shard) for shard in ("edited", "damaged", "missing"))
    for log in (edited, damaged, missing):
        plants.write(directory, log, pieces=3)
    plants.edit_column(directory, edited, "payload_resource_id", 3, "another")
    last = damaged.frames[-1].last
    plants.edit_column(directory, damaged, "peer_id", last, "nobody")
    places = {}
    for log in (damaged, missing):
        middle = plants.segment_paths(directory, log.shard)[1]
        places[log.shard] = int(middle.name.split("-")[0])
        if log is damaged:
            middle.write_bytes(b"PAR1 no longer")
        else:
            middle.unlink()
    return {"edited": 3, **places}


def _trim(directory: Path) -> None:
    """A log whose oldest segments were dropped."""
    write_segments(directory, recorded("trimmed", seed=8, steps=120), pieces=4)

    async def drop() -> None:
        archive = Archive(await connect(str(directory)), "trimmed")
        manifest = await archive.newest()
        assert manifest is not None
        first, *rest = manifest.recent
        change = msgspec.structs.replace(manifest.with_recent(tuple(rest)), anchor=Before.of(first.end))
        await archive.change(lambda newest: change if newest == manifest else None)

    asyncio.run(drop())


@pytest.mark.parametrize("shard", PLANTED)
def test_every_planted_violation_is_found_where_it_is(audited: Audited, shard: str) -> None:
    _, _, rule, opinions = PLANTED[shard]
    found = [finding for finding in audited.found(shard) if finding.rule == rule]
    assert {finding.opinion for finding in found} == opinions
    assert {finding.sequence for finding in found} == {audited.expected[shard]}
    assert all(finding.what for finding in found)


def test_every_rule_has_a_violation_that_it_found(audited: Audited) -> None:
    broken = {each.rule.id for each in audited.report.rules if each.violations}
    assert broken == {rule.id for rule in RULES}
    for each in audited.report.rules:
        # No opinion is silent about everything that was planted for it.
        assert set(each.counts) == set(each.rule.opinions)
        assert all(each.counts.values()), each.rule.id


def test_whole_logs_are_clean(audited: Audited) -> None:
    assert audited.found("whole") == audited.found("busy") == audited.found("alike") == []
    assert audited.shard("alike").states["leased"] == 2, "keys that read the same are two"
    busy = audited.shard("busy")
    assert not busy.remarks
    assert busy.replayed.last == busy.last
    assert busy.states["leased"] == busy.replayed.states["leased"]
    assert audited.shard("whole").replayed.snapshots == 1


def test_a_digest_that_the_node_did_not_record_is_named(audited: Audited) -> None:
    [finding] = audited.found("wrong-digest")
    assert (finding.rule, finding.sequence) == ("digests", audited.shard("wrong-digest").last)


def test_an_edited_column_is_found_although_the_manifest_agrees(audited: Audited) -> None:
    [finding] = audited.found("edited")
    assert (finding.rule, finding.opinion, finding.sequence) == ("columns", "files", 3)
    assert "payload_resource_id" in finding.what
    assert "another" in finding.what


def test_a_damaged_segment_is_named_and_the_rest_is_audited(audited: Audited) -> None:
    cannot_be_read, behind = sorted(audited.found("damaged"), key=lambda finding: finding.sequence or 0)[-2:]
    assert cannot_be_read.rule == "segments"
    assert cannot_be_read.sequence == audited.expected["damaged"]
    # The segment behind it has an edited column, and that is found.
    assert (behind.rule, behind.sequence) == ("columns", audited.shard("damaged").last)
    replayed = audited.shard("damaged").replayed
    assert replayed.last == audited.expected["damaged"] - 1
    assert replayed.remark is not None
    assert {finding.rule for finding in audited.found("damaged")} == {"segments", "columns"}


def test_people_get_a_table_that_names_the_first_events(audited: Audited, capsys: pytest.CaptureFixture[str]) -> None:
    show(drawn(audited.report))
    text = capsys.readouterr().out
    assert "NOT EVERYTHING WAS SEEN by replay, sql:" in text
    assert "replay, shard trimmed: not replayed" in text
    for rule in RULES:
        assert rule.id in text
        assert rule.sentence in text
    assert str(audited.expected["second-lease"]) in text
    assert f"{audited.report.violations} violations" in text
    assert audited.shard("whole").replayed.digest in text.split()


def test_a_missing_segment_is_named(audited: Audited) -> None:
    [finding] = audited.found("missing")
    assert (finding.rule, finding.sequence) == ("segments", audited.expected["missing"])
    assert "missing" in finding.what


def test_only_the_stretch_that_was_asked_for_is_judged(audited: Audited) -> None:
    assert audited.found("before") == audited.found("behind") == []
    assert audited.shard("before").replayed.last == audited.shard("before").last


def test_segments_without_their_beginning_are_said_not_to_be_replayed(audited: Audited) -> None:
    assert audited.found("trimmed") == []
    trimmed = audited.shard("trimmed")
    assert trimmed.replayed.digest is None
    assert "not replayed" in trimmed.remarks[0]
    assert [each.opinion for each in audited.report.unseen if each.shard == "trimmed"] == ["replay", "sql"]
    assert not audited.report.complete


def test_items_whose_keys_are_not_known_are_not_taken_for_items_of_one_key(audited: Audited) -> None:
    keyless = audited.shard("keyless")
    assert keyless.states["leased"] == 2, "SQL has looked at both"
    assert audited.found("keyless") == []


def test_segments_of_lines_are_read_by_every_opinion(audited: Audited) -> None:
    assert {(finding.rule, finding.opinion, finding.sequence) for finding in audited.found("lines")} == {
        ("one-lease", opinion, audited.expected["lines"]) for opinion in BOTH
    }
    assert audited.shard("lines").remarks == []


def test_segments_in_a_bucket_are_read_by_every_opinion(whole_spark: SparkSession, s3: S3Server) -> None:
    log = plants.short_log("jobs")
    frame, sequence = plants.second_lease(log)
    plants.write(s3.address("audit"), log, frame, **s3.options)
    plans, found = asyncio.run(plan(s3.address("audit"), options=s3.options))
    report = Audit(whole_spark.newSession(), s3.address("audit"), plans, found, options=s3.options).run()
    assert {(each.rule, each.opinion, each.sequence) for each in report.first()} == {
        ("one-lease", opinion, sequence) for opinion in BOTH
    }
    assert report.complete


def test_where_spark_is_not_here_sql_says_that_it_did_not_read_lines(whole_spark: SparkSession, tmp_path: Path) -> None:
    plants.write(tmp_path, plants.short_log("jobs"), kind="jsonl")
    [planned], _ = asyncio.run(plan(str(tmp_path)))
    sql = SqlOpinion(whole_spark, str(tmp_path), {"jobs": planned}, {"jobs": planned.entries}, {}, print).run()
    assert sql.states == {}
    assert "some of its segments are lines" in sql.remarks["jobs"]
    sql = SqlOpinion(whole_spark, str(tmp_path), {"jobs": planned}, {"jobs": ()}, {}, print).run()
    assert "its first segment cannot be read" in sql.remarks["jobs"]


def test_replays_take_no_more_than_their_share_of_the_processors(whole_spark: SparkSession, audited: Audited) -> None:
    assert audited.shard("lines").replayed.digest is not None
    pools = whole_spark.sparkContext._jsc.sc().getAllPools()
    assert {pools.apply(at).name() for at in range(pools.size())} == {"default", "omnirelay-replays"}


def test_what_was_to_be_compared_and_could_not_be_was_not_seen(whole_spark: SparkSession, tmp_path: Path) -> None:
    segments, node = tmp_path / "segments", tmp_path / "node"
    for shard in ("absent", "another", "silent"):
        plants.write(segments, plants.short_log(shard))

    async def elsewhere() -> None:
        for shard in ("another", "orders"):
            log = SqliteLog.open(node, shard)
            await log.acquire("somebody")
            await log.close()

    asyncio.run(elsewhere())
    plans, found = asyncio.run(plan(str(segments)))
    known = asyncio.run(_known(str(node), plans, {}))
    known["silent"] = Known(plans[-1].log_id, {})
    report = Audit(whole_spark.newSession(), str(segments), plans, found, known=known).run()
    assert report.clean
    said = [(each.opinion, each.shard, each.why.replace(str(node), "it")) for each in report.unseen]
    assert said == [
        ("replay", "absent", "not compared: it has no log of 'absent'"),
        ("replay", "another", "not compared: it has another log of 'another' than the segments"),
        ("replay", "silent", "not compared: the log to compare it with knows none of its states"),
    ]
    with pytest.raises(Stop, match="absent, another, silent"):
        end_by(report, strict=True)


def test_segments_that_are_merged_while_they_are_audited_are_not_seen_and_no_violation(
    whole_spark: SparkSession, tmp_path: Path
) -> None:
    plants.write(tmp_path, plants.short_log("jobs"), pieces=4)
    plans, found = asyncio.run(plan(str(tmp_path)))
    plants.merge(tmp_path, "jobs")
    report = Audit(whole_spark.newSession(), str(tmp_path), plans, found).run()
    assert report.clean
    assert [each.opinion for each in report.unseen] == ["files", "replay", "sql"]
    assert report.unseen[0].why.startswith("4 segments from event 1 on were merged or dropped")


def test_what_was_not_seen_changes_the_end_only_when_that_is_asked_for() -> None:
    whole = Report(rules=[], shards=[], events=0, seconds=0.1, unseen=[])
    in_part = msgspec.structs.replace(whole, unseen=[Unseen("sql", "jobs", "not read")])
    end_by(whole, strict=True)
    end_by(in_part, strict=False)
    with pytest.raises(Stop, match="jobs") as stopped:
        end_by(in_part, strict=True)
    assert stopped.value.exit_code == 1
