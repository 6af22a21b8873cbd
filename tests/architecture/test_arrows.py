"""Who may import whom, and what importing Headrace loads."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from architecture.measures import circles, imports
from headrace.core.errors import MissingExtraError

FRAMEWORKS = {
    "apache_beam",
    "numpy",
    "onnx",
    "onnxruntime",
    "pandas",
    "pyarrow",
    "rich",
    "sentence_transformers",
    "sklearn",
    "tensorflow",
    "torch",
    "transformers",
    "typer",
}

WITHOUT_FRAMEWORKS = (
    "core",
    "batching",
    "failures",
    "ipc",
    "hosts",
    "machine",
    "models",
    "metrics",
    "runtime",
    "local",
    "testing",
)

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


@pytest.mark.parametrize("room", ["", *WITHOUT_FRAMEWORKS])
def test_a_fresh_import_loads_no_framework(sources, room):
    package = f"headrace.{room}" if room else "headrace"
    modules = [name for name in sources if room and name.startswith(package)] or [package]
    loaded = _loaded_by(modules)
    assert "headrace" in loaded
    assert not loaded & FRAMEWORKS


@pytest.mark.large
def test_a_fresh_import_of_the_beam_door_loads_no_model_framework():
    loaded = _loaded_by(["headrace.beam.transform"])
    assert "apache_beam" in loaded
    assert not loaded & {
        "onnx",
        "onnxruntime",
        "sentence_transformers",
        "sklearn",
        "tensorflow",
        "torch",
        "transformers",
    }


def test_hosts_of_the_command_line_do_not_load_beam():
    loaded = _loaded_by(["headrace.beam", "headrace.rows.examples"])
    assert not loaded & {"apache_beam", "numpy"}


def test_a_fresh_import_of_the_command_line_does_not_wait_for_beam():
    loaded = _loaded_by(["headrace.cli.main"])
    assert "typer" in loaded
    assert not loaded & {"apache_beam", "numpy", "torch"}


def test_command_line_in_one_process_does_not_load_beam():
    loaded = _loaded_by(["headrace.cli.run", "headrace.jobs.run", "headrace.jobs.letters"])
    assert "pyarrow" in loaded
    assert "apache_beam" not in loaded


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
    assert circles(imports(sources)) == []


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "f"}, "f": {"e"}}
    assert circles(graph) == [["b", "c"], ["e", "f"]]


def test_every_handler_is_named_in_the_contract_that_keeps_handlers_apart(pyproject):
    """Other files of the room belong to one of them, or are shared by the handlers of one framework."""
    apart = next(c for c in pyproject["tool"]["importlinter"]["contracts"] if c["type"] == "independence")
    groups = [pyproject["project"]["entry-points"][group] for group in ("headrace.handlers", "headrace.arrays")]
    assert set(apart["modules"]) == {target.partition(":")[0] for group in groups for target in group.values()}


IN_AN_ENVIRONMENT_OF_THEIR_OWN = {"vertex-ai", "kserve"}
"""Handlers whose clients do not go with the other frameworks; ``make test-servers`` imports them."""


@pytest.mark.parametrize(
    "group",
    [
        pytest.param("headrace.handlers", marks=pytest.mark.large),
        "headrace.filesystems",
        "headrace.storage",
        "headrace.adopters",
        "headrace.recorders",
        pytest.param("headrace.arrays", marks=pytest.mark.large),
    ],
)
def test_entry_points_lead_somewhere(pyproject, group):
    declared = pyproject["project"]["entry-points"][group]
    installed = {plug_in.name: plug_in for plug_in in importlib.metadata.entry_points(group=group)}
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
