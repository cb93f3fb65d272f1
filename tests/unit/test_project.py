"""The package as a project: what importing it costs, and that its lists agree with each other."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import omnirelay

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

HEAVY = ["asyncio", "apsw", "msgspec", "sqlite3"]


def modules_after(statement: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after `statement`."""
    script = f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def names_for_type_checkers() -> set[str]:
    """Names imported in the `if TYPE_CHECKING:` block of the package."""
    tree = ast.parse(Path(omnirelay.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def test_importing_the_package_loads_no_room_and_nothing_heavy() -> None:
    loaded = modules_after("import omnirelay")
    assert {name for name in loaded if name.startswith("omnirelay.")} == {"omnirelay._version"}
    assert loaded.isdisjoint(HEAVY)


def test_importing_core_starts_no_event_loop_and_no_store() -> None:
    loaded = modules_after("import omnirelay.core.events")
    assert loaded.isdisjoint(["asyncio", "apsw", "sqlite3", "omnirelay.engine", "omnirelay.log"])


@pytest.mark.parametrize("name", omnirelay.__all__)
def test_every_exported_name_resolves(name: str) -> None:
    assert getattr(omnirelay, name) is not None


def test_exports_are_listed_alike_for_programs_and_for_type_checkers() -> None:
    exported = set(omnirelay.__all__) - {"__version__"}
    assert exported == set(omnirelay._EXPORTS)
    assert exported == names_for_type_checkers()
    assert exported <= set(dir(omnirelay))


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = omnirelay.no_such_name


def test_version_is_that_of_the_installed_package() -> None:
    assert version("omnirelay") == omnirelay.__version__


def test_lock_is_made_from_the_declared_dependencies() -> None:
    lines = (ROOT / "requirements" / "runtime.in").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert sorted(wanted) == sorted(PYPROJECT["project"]["dependencies"])


def test_everything_optional_is_there_when_tests_run() -> None:
    for extra, dependencies in PYPROJECT["project"]["optional-dependencies"].items():
        # Iceberg has another Spark, and so an environment of its own.
        name = "iceberg.in" if extra == "iceberg" else "dev.in"
        assert set(dependencies) <= set((ROOT / "requirements" / name).read_text().splitlines())


def test_the_demo_has_what_spark_needs_and_nothing_else() -> None:
    lines = (ROOT / "requirements" / "lakehouse.in").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith(("#", "-r"))]
    assert sorted(wanted) == sorted(PYPROJECT["project"]["optional-dependencies"]["spark"])


@pytest.mark.parametrize("name", ["runtime.lock", "dev.lock", "lakehouse.lock", "bench.lock", "iceberg.lock"])
def test_locks_name_no_host(name: str) -> None:
    assert "://" not in (ROOT / "requirements" / name).read_text()
