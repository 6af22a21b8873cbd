"""Files stay small, documented and honest about what they switch off."""

from __future__ import annotations

import re
import statistics
from itertools import chain

import headrace
from architecture.measures import classes_defined_twice, function_lines, modules

CODE = ("src", "tests", "examples", "benchmarks", "engines")
TEXT = (*CODE, "docs")


def _python_files(root):
    return sorted(chain.from_iterable((root / folder).rglob("*.py") for folder in CODE))


def test_every_module_says_what_it_is_for(root):
    files = _python_files(root)
    assert len(files) > 30
    begins = re.compile(r'(#.*\n|\n)*""".')
    assert [str(path.relative_to(root)) for path in files if not begins.match(path.read_text())] == []


def test_files_fit_in_the_head(root):
    lengths = {path: len(path.read_text().splitlines()) for path in _python_files(root)}
    source = {*modules().values()}
    long = [path for path, lines in lengths.items() if lines > (350 if path in source else 400)]
    assert [str(path.relative_to(root)) for path in long] == []


def test_functions_are_short(sources):
    lengths = function_lines(sources)
    assert [name for name, lines in lengths.items() if lines > 45] == []
    assert statistics.median(lengths.values()) < 10
    assert statistics.quantiles(lengths.values(), n=10)[-1] < 20


def test_no_two_classes_have_one_name(sources):
    assert classes_defined_twice(sources) == {}


def test_every_rule_that_is_switched_off_has_a_reason(root):
    text = (root / "pyproject.toml").read_text()
    block = text.split("\nignore = [\n", 1)[1].split("\n]", 1)[0]
    per_file = text.split("[tool.ruff.lint.per-file-ignores]\n", 1)[1].split("\n\n", 1)[0]
    rules = [*block.splitlines(), *per_file.splitlines()]
    assert len(rules) > 10
    assert [rule for rule in rules if not re.search(r" # \S", rule)] == []


def test_honest_exceptions_are_recognized():
    honest = ["x = 1  # noqa: ARG002 - accepted", "x = 1  # type: ignore[type-arg]", "x = 1"]
    others = ["x = 1  # noqa: ARG002", "x = 1  # noqa", "x = 1  # type: ignore"]
    assert [line for line in honest + others if _is_honest(line)] == honest


def test_every_exception_to_a_rule_in_the_source_is_honest(root):
    files = sorted((root / "src").rglob("*.py"))
    lines = [line.strip() for path in files for line in path.read_text().splitlines()]
    assert len(lines) > 1000
    assert [line for line in lines if not _is_honest(line)] == []


def _is_honest(line):
    """An exception to a lint rule names the rule and the reason, one to a type rule names the rule."""
    if "# type: ignore" in line:
        return bool(re.search(r"# type: ignore\[[a-z-]+(, [a-z-]+)*\]", line))
    return "# noqa" not in line or bool(re.search(r"# noqa: [A-Z0-9]+(, [A-Z0-9]+)* - \w+", line))


def test_code_has_no_todos(root):
    left = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    files = [path for folder in TEXT for path in (root / folder).rglob("*") if path.suffix in (".py", ".md", ".toml")]
    files += [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]
    assert [str(path.relative_to(root)) for path in files if left.search(path.read_text())] == []


def test_the_version_is_the_same_everywhere(root, pyproject):
    assert headrace.__version__ == pyproject["project"]["version"]
    assert f"\n## [{headrace.__version__}] - " in (root / "CHANGELOG.md").read_text()
