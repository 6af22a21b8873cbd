"""Who may import whom, and what importing Headrace loads."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from architecture.measures import circle, imports
from headrace.core.errors import MissingExtraError

MODEL_FRAMEWORKS = {"onnx", "onnxruntime", "sentence_transformers", "sklearn", "tensorflow", "torch", "transformers"}
FRAMEWORKS = MODEL_FRAMEWORKS | {"apache_beam", "numpy", "pandas", "pyarrow", "rich", "typer"}
MAY_LOAD_FRAMEWORKS = ("rows", "beam", "jobs", "handlers", "migrate", "cli")

LOADED_BY = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
import headrace
for name in headrace.__all__:
    getattr(headrace, name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_arrows_run_one_way(root):
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-logo", "--no-cache"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fresh_import_loads_no_framework(sources):
    loaded = _loaded_by([name for name in sources if not any(_is_in(name, room) for room in MAY_LOAD_FRAMEWORKS)])
    assert "headrace" in loaded
    assert not loaded & FRAMEWORKS


@pytest.mark.parametrize(
    ("modules", "loads", "does_not_load"),
    [
        (["headrace.beam", "headrace.rows.examples", "headrace.cli.main"], "typer", {"apache_beam", "numpy", "torch"}),
        (["headrace.cli.run", "headrace.jobs.run", "headrace.jobs.letters"], "pyarrow", {"apache_beam"}),
        pytest.param(["headrace.beam.transform"], "apache_beam", MODEL_FRAMEWORKS, marks=pytest.mark.large),
    ],
    ids=["the command line, and what its hosts import", "a run in one process", "the Beam door"],
)
def test_a_fresh_import_loads_no_more_than_it_needs(modules, loads, does_not_load):
    loaded = _loaded_by(modules)
    assert loads in loaded
    assert not loaded & does_not_load


def test_manager_has_no_event_loop():
    """It lives as long as any of a machine's models, and is to stay small."""
    seen = "import sys, headrace.machine.manager; print('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True).stdout == "False\n"


def test_core_imports_the_standard_library_only(sources):
    imported = {name for module, tree in sources.items() if _is_in(module, "core") for name in _imports(tree)}
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign
    assert all(_is_in(name, "core") for name in foreign), foreign


def test_only_the_beam_room_and_the_pipeline_of_jobs_import_beam(sources):
    users = {module for module, tree in sources.items() if "apache_beam" in map(_package, _imports(tree))}
    assert {module for module in users if not _is_in(module, "beam")} == {"headrace.jobs.beam_pipeline"}
    assert "headrace.beam.transform" in users


def test_no_modules_import_each_other(sources):
    """Directly or through others, in functions and for type checkers included."""
    assert circle(imports(sources)) == []


def test_a_circle_is_found():
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()})) == {"b", "c"}


def test_every_handler_is_named_in_the_contract_that_keeps_handlers_apart(pyproject):
    """Other files of the room belong to one of them, or are shared by the handlers of one framework."""
    apart = next(c for c in pyproject["tool"]["importlinter"]["contracts"] if c["type"] == "independence")
    groups = [pyproject["project"]["entry-points"][group] for group in ("headrace.handlers", "headrace.arrays")]
    assert set(apart["modules"]) == {target.partition(":")[0] for group in groups for target in group.values()}


IN_AN_ENVIRONMENT_OF_THEIR_OWN = {"vertex-ai", "kserve"}
"""Handlers whose clients do not go with the other frameworks; ``make test-servers`` imports them."""


OF_FRAMEWORKS = [pytest.param(group, marks=pytest.mark.large) for group in ("handlers", "arrays")]


@pytest.mark.parametrize("group", ["filesystems", "storage", "adopters", "models", "recorders", *OF_FRAMEWORKS])
def test_entry_points_lead_somewhere(pyproject, group):
    declared = pyproject["project"]["entry-points"][f"headrace.{group}"]
    installed = {plug_in.name: plug_in for plug_in in importlib.metadata.entry_points(group=f"headrace.{group}")}
    for name, target in declared.items():
        assert installed[name].value == target, "the installed copy is older than pyproject.toml: install it again"
        try:
            assert callable(installed[name].load())
        except MissingExtraError:
            assert name in IN_AN_ENVIRONMENT_OF_THEIR_OWN


def _loaded_by(modules: list[str]) -> set[str]:
    """The packages that a fresh process has loaded after it imported some modules."""
    command = [sys.executable, "-c", LOADED_BY, json.dumps(modules)]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def _is_in(module: str, room: str) -> bool:
    return f"{module}.".startswith(f"headrace.{room}.")


def _package(module: str) -> str:
    return module.partition(".")[0]


def _imports(tree: ast.Module) -> set[str]:
    """Every module that is imported anywhere in a file, within functions and for type checkers included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide the arrows"
            found.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return found
