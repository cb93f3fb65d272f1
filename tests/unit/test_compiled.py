"""Whether the tests run against what they are meant to run against."""

from __future__ import annotations

import os

from hatch_build import COMPILED
from omnirelay.core import schedule


def test_core_is_compiled_exactly_where_that_is_expected() -> None:
    expected = os.environ.get("OMNIRELAY_EXPECT_COMPILED") == "1"
    assert str(schedule.__file__).endswith(".py") != expected


def test_every_module_that_is_compiled_exists() -> None:
    import omnirelay.core

    [home] = omnirelay.core.__path__
    assert [name for name in COMPILED if not os.path.exists(os.path.join(home, f"{name}.py"))] == []
