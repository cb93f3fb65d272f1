"""`log tail --types`: names of events that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Relay


@pytest.mark.parametrize("from_files", [False, True], ids=["a node", "files"])
def test_tail_of_a_type_that_does_not_exist_names_those_there_are(
    relay: Relay, tmp_path: Path, from_files: bool
) -> None:
    place = ("--data", tmp_path) if from_files else ()
    said = relay.run("log", "tail", "--no-follow", "--types", "Completed,Enqueued", *place)
    assert (said.code, said.out) == (2, "")
    assert "'Enqueued', which is no type of event; there are Enqueue, LeaseGranted," in said.err
