"""Every Python block of the documentation runs, in its order, so that what a reader copies works.

A block with a title is a file, which other blocks import or run. On the pages that lead through a task, the commands of
console blocks run, too; blocks of other kinds are for reading.
"""

import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from typer.main import get_command

from headrace.cli.catalogue import OURS, as_markdown, listed_handlers
from headrace.cli.main import app, main

ROOT = Path(__file__).parents[2]
FOLDERS = ("", "docs/**/", "examples/**/", "benchmarks/**/")
FILES = sorted(file for folder in FOLDERS for file in ROOT.glob(f"{folder}*.md"))
LIGHT = {"README.md"}
TASKS = re.compile(r"docs/(quickstart|telemetry|from-[\w-]+|recipes/[\w-]+)\.md")
BLOCK = re.compile(r'^```(python|console)(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
SHELL = frozenset({"|", "<", ">", ";", "&", "&&"})
SHELL_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
COMMAND = re.compile(r"^(?:\$ )?headrace ((?:.*\\\n)*.*)$", re.MULTILINE)
BEAM_OPTIONS = {f"--{name}" for name in PipelineOptions([]).get_all_options()}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^\| handler \| an example is \|.*?(?=\n\n)", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


class Block(NamedTuple):
    """A block of a document, and the line on which it begins."""

    kind: str
    title: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    """The blocks that run."""
    return [Block(*found.groups(""), line=text.count("\n", 0, found.start(3))) for found in BLOCK.finditer(text)]


def run_blocks(path: Path, namespace: dict[str, object], folder: Path) -> int:
    """Runs a document's blocks one after the other, and counts those of Python.

    An error names the document's own line.
    """
    found = blocks(path.read_text())
    for block in found:
        if block.title:
            (folder / block.title).write_text(block.text)
        elif block.kind == "python":
            exec(compile("\n" * block.line + block.text, str(path), "exec"), namespace)
        elif TASKS.fullmatch(path.relative_to(ROOT).as_posix()):
            for command in SHELL_COMMAND.findall(block.text):
                run_command(command, folder)
    return sum(block.kind == "python" for block in found)


def run_command(command: str, folder: Path) -> None:
    """As in a shell with this environment activated; this process, which has loaded Headrace, runs what is its own."""
    words = shlex.split(command.replace("\\\n", ""))
    if words[0] == "headrace" and SHELL.isdisjoint(words):
        assert main(words[1:]) == 0, command
        return
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    bash = ["bash", "-c", command]
    done = subprocess.run(bash, check=False, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.fixture
def namespace(monkeypatch, tmp_path):
    """What a script has: the module ``__main__``, which Beam sends to workers by value, and its folder."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    with mock.patch.dict(os.environ):  # undoes what a block sets there
        yield vars(module)
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


def blocks_of(name):
    return pytest.param(ROOT / name, id=name, marks=[] if name in LIGHT else [pytest.mark.large])


@pytest.mark.parametrize("path", [blocks_of(str(file.relative_to(ROOT))) for file in FILES])
def test_blocks_run(path, namespace, tmp_path):
    text = path.read_text()
    assert len(re.findall(r"^```", text, re.MULTILINE)) % 2 == 0, "a fence is not closed"
    assert run_blocks(path, namespace, tmp_path) == text.count("```python")


def anchors_of(path):
    """The fragments of links to a document's headings, as GitHub and MkDocs make them."""
    headings = HEADING.findall(FENCED.sub("", path.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_the_project_lead_to_a_file_and_a_heading(path):
    targets = [target.partition("#") for target in LINK.findall(path.read_text()) if "://" not in target]
    linked = [(path.parent / page if page else path, anchor) for page, _, anchor in targets]
    assert [page for page, _ in linked if not page.exists()] == []
    headings = [(page, anchor) for page, anchor in linked if anchor and page.suffix == ".md"]
    assert [(page.name, anchor) for page, anchor in headings if anchor not in anchors_of(page)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_commands_and_their_options_exist(path):
    text, known = path.read_text(), get_command(app).commands
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= targets
    assert set(re.findall(r"(?:^|`|\$ )make ([a-z]+)", text, re.MULTILINE)) <= targets
    assert "--output" in COMMAND.findall((ROOT / "README.md").read_text())[0]
    for command in COMMAND.findall(text):
        name, *words = command.replace("\\\n", "").split()
        ours = {option for one in known[name].params for option in (*one.opts, *one.secondary_opts)}
        used = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}
        assert used <= ours | BEAM_OPTIONS


def test_the_java_command_has_what_its_program_requires():
    program = (ROOT / "examples" / "java" / "src" / "main" / "java" / "Flowers.java").read_text()
    required = re.findall(r"@Required\s+String get(\w+)", program)
    page = (ROOT / "docs" / "running.md").read_text()
    (command,) = re.findall(r"^java -cp (?:.*\\\n)*.*$", page, re.MULTILINE)
    missing = {f"{name[0].lower()}{name[1:]}" for name in required} - set(re.findall(r"--(\w+)=", command))
    assert len(required) == 4
    assert missing == set()


def test_the_table_of_handlers_is_what_the_command_prints():
    ours = [one for one in listed_handlers() if one.path.startswith(OURS)]
    assert [one.path for one in ours if one.card is None] == []
    (table,) = TABLE.findall((ROOT / "docs" / "handlers.md").read_text())
    assert table == as_markdown(ours), "put what `headrace handlers --markdown` prints into docs/handlers.md"
