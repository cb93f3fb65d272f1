"""Segments and tables in directories whose names mean something to Hadoop, to SQL or to an address."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnirelay.lakehouse.audit_plan import plan
from omnirelay.lakehouse.audit_staging import staged
from omnirelay.lakehouse.bronze import new_events
from omnirelay.lakehouse.bronze_source import find_new
from omnirelay.lakehouse.formats import open_tables
from omnirelay.lakehouse.progress import End
from omnirelay.lakehouse.segment_files import SegmentFile, read_segments, scan_of
from omnirelay.lakehouse.tables import QUARANTINE
from omnirelay.lakehouse.waiting import waited
from omnirelay.segments.manifest import segment_key
from tests.segment_logs import SHARD
from tests.spark.logs import segments_of, sequences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Hadoop knows no pattern with a colon in it, so that what it takes for a pattern and a colon stand in two names here.
NAMES = ["with space [a-c]{x,y}", "any*? 100%20 #ü'`\"\\", "co:lon"]


@pytest.mark.parametrize("name", NAMES)
def test_segments_are_read_where_they_are_and_nowhere_else(spark: SparkSession, tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    segments_of(place, 3, 4)
    everything = list(range(1, 8))
    assert sequences(read_segments(spark, str(place))) == everything
    assert sequences(read_segments(spark, place.as_uri())) == everything
    rows = new_events(spark, waited(find_new(str(place), {}, tmp_path / "staging")), {})
    assert rows is not None
    assert sequences(rows) == everything


@pytest.mark.parametrize("name", NAMES)
def test_segments_that_are_kept_for_spark_are_found_in_any_temporary_directory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lake, temporary = str(tmp_path / "lake"), tmp_path / name
    segments_of(tmp_path / "lake", 3, 4, kind="jsonl")
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    [[shard], _] = waited(plan(lake))
    with staged(spark, lake, None, {SHARD: shard.entries}) as elsewhere:
        files = [SegmentFile(SHARD, elsewhere[segment_key(SHARD, each.name)], each) for each in shard.entries]
        assert sequences(scan_of(spark, files)) == list(range(1, 8))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("kind", ["delta", "parquet"])
@pytest.mark.parametrize("name", NAMES)
def test_tables_are_kept_in_any_directory(few_spark: SparkSession, tmp_path: Path, name: str, kind: str) -> None:
    tables = open_tables(few_spark, str(tmp_path / name), kind)
    for number in (1, 2):
        row = f"SELECT 'jobs' shard, 's{number}' segment, 1L sequence, 'why' reason, now() found_at"
        tables.progress(QUARANTINE)
        tables.append(QUARANTINE, tables.spark.sql(row), {"": End(number)})
    assert sorted(each.segment for each in tables.read(QUARANTINE).collect()) == ["s1", "s2"]
    assert tables.progress(QUARANTINE) == {"": End(2)}
    tables.optimize([QUARANTINE])
    assert tables.read(QUARANTINE).count() == 2
    same = open_tables(few_spark, (tmp_path / name).as_uri(), kind)
    assert same.progress(QUARANTINE) == {"": End(2)}
    assert same.path(QUARANTINE) == tables.path(QUARANTINE)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_relative_directory_is_one_of_this_process_and_not_of_java(
    few_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tables = open_tables(few_spark, "./lake", kind)
    row = "SELECT 'jobs' shard, 's' segment, 1L sequence, 'why' reason, now() found_at"
    tables.append(QUARANTINE, tables.spark.sql(row), {"": End(1)})
    # The same row once more, by what SQL calls the table.
    tables.merge(QUARANTINE, tables.spark.sql(row), {"": End(2)})
    tables.optimize([QUARANTINE])
    assert tables.read(QUARANTINE).count() == 1
    assert any((tmp_path / "lake" / "bronze" / "quarantine").rglob("*.parquet"))
