"""Files stay small, documented and honest about what they switch off."""

from __future__ import annotations

import ast
import re
import statistics
from itertools import chain

import pytest

import headrace
from architecture.measures import classes_defined_twice, functions, modules

CODE = ("src", "tests", "examples", "benchmarks", "engines")
TEXT = (*CODE, "docs")


def _python_files(root):
    return sorted(chain.from_iterable((root / folder).rglob("*.py") for folder in CODE))


def test_every_module_says_what_it_is_for(root):
    files = _python_files(root)
    assert len(files) > 30
    silent = [str(path.relative_to(root)) for path in files if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


LONG_FUNCTIONS: dict[str, int] = {}
LONG_FILES: dict[str, int] = {}
"""What is over a limit, and how long it may be: an entry may shrink, and goes when it is within the limit."""


def test_files_of_the_source_fit_in_the_head():
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert _over(lengths, 350, LONG_FILES) == {}


def test_files_beside_the_source_fit_in_the_head(root):
    long = {str(path.relative_to(root)) for path in _python_files(root) if len(path.read_text().splitlines()) > 400}
    assert long == set()


def test_functions_are_short(sources):
    lengths = {function.name: function.lines for function in functions(sources)}
    assert _over(lengths, 45, LONG_FUNCTIONS) == {}
    assert statistics.median(lengths.values()) < 10
    assert statistics.quantiles(lengths.values(), n=10)[-1] < 20


def test_an_exception_to_a_limit_holds_for_what_is_over_it_and_may_only_shrink():
    assert _over({"a": 45, "b": 46, "c": 50}, 45, {"c": 50}) == {"b": 46}
    assert _over({"c": 51}, 45, {"c": 50}) == {"c": 51}
    assert _over({"c": 45}, 45, {"c": 50}) == {"c": "is within the limit; remove its exception"}


def _over(lengths, limit, exceptions):
    """What is longer than the limit, or than its exception; and exceptions that nothing needs."""
    long = {name: lines for name, lines in lengths.items() if lines > exceptions.get(name, limit)}
    needless = [name for name in exceptions if lengths.get(name, 0) <= limit]
    return long | dict.fromkeys(needless, "is within the limit; remove its exception")


def test_no_two_classes_have_one_name(sources):
    assert classes_defined_twice(sources) == {}


def test_every_rule_that_is_switched_off_has_a_reason(root):
    text = (root / "pyproject.toml").read_text()
    block = text.split("\nignore = [\n", 1)[1].split("\n]", 1)[0]
    per_file = text.split("[tool.ruff.lint.per-file-ignores]\n", 1)[1].split("\n\n", 1)[0]
    rules = [*block.splitlines(), *per_file.splitlines()]
    assert len(rules) > 10
    assert [rule for rule in rules if not re.search(r" # \S", rule)] == []


@pytest.mark.parametrize(
    ("line", "honest"),
    [
        ("x = 1  # noqa: ARG002 - accepted", True),
        ("x = 1  # noqa: ARG002", False),
        ("x = 1  # noqa", False),
        ("x = 1  # type: ignore[type-arg]", True),
        ("x = 1  # type: ignore", False),
        ("x = 1", True),
    ],
)
def test_honest_exception_is_recognized(line, honest):
    assert _is_honest(line) is honest


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


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "XX" + "X"])
def test_code_has_no_todos(root, word):
    files = [path for folder in TEXT for path in (root / folder).rglob("*") if path.suffix in (".py", ".md", ".toml")]
    files += [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]
    assert [str(path.relative_to(root)) for path in files if re.search(rf"\b{word}\b", path.read_text())] == []


def test_type_checkers_are_told_that_the_package_is_typed(root):
    assert (root / "src/headrace/py.typed").exists()


def test_the_version_is_the_same_everywhere(root, pyproject):
    assert headrace.__version__ == pyproject["project"]["version"]
    assert f"\n## [{headrace.__version__}] - " in (root / "CHANGELOG.md").read_text()
