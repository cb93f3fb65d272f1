"""Whether the tests run against what they are meant to run against."""

from __future__ import annotations

import os
from importlib import import_module

import pytest

from hatch_build import COMPILED


@pytest.mark.parametrize("name", COMPILED)
def test_the_hot_path_is_compiled_exactly_where_that_is_expected(name: str) -> None:
    module = import_module("omnirelay." + name.replace("/", "."))
    expected = os.environ.get("OMNIRELAY_EXPECT_COMPILED") == "1"
    assert str(module.__file__).endswith(".py") != expected
