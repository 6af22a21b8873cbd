"""The list of handlers: what their sources say, without their frameworks; what is missing or broken is said, too."""

from __future__ import annotations

import importlib
import sys

import pytest
from rich.console import Console

import headrace as package
from headrace.cli.catalogue import as_markdown, card_in_source, listed_handlers, show_handlers

CARD = package.HandlerCard("a word", "its `length`", "none", "safe", "words")
THEIRS = """
import sys
sys.modules["imported_by_the_catalogue"] = sys
import a_framework_that_nobody_has
from headrace import HandlerCard

_SAFE = "safe"

class Plain:
    card: HandlerCard = HandlerCard("a word", "its `length`", threads=_SAFE, weights="none", extra="words")

class Derived(Plain[str]):
    pass

class Complete(Plain):
    card = HandlerCard("a | b", "c", "d", "e", "")
"""
COMPUTED = """
from headrace import HandlerCard

class Computed:
    card = HandlerCard("a wo" + "rd", "its `length`", "none", "safe", "words")

def factory():
    pass
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package: modules, entry points, and what its extra ``words`` requires."""
    monkeypatch.syspath_prepend(tmp_path)

    def build(handlers, requires=(), **modules):
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        folder = tmp_path / "word_handlers-1.0.dist-info"
        folder.mkdir()
        lines = [f'Requires-Dist: {one}; extra == "words"' for one in requires]
        (folder / "METADATA").write_text(
            "\n".join(["Metadata-Version: 2.1", "Name: word-handlers", "Version: 1.0", *lines])
        )
        points = [f"{name} = {path}" for name, path in handlers.items()]
        (folder / "entry_points.txt").write_text("\n".join(["[headrace.handlers]", *points]))
        importlib.invalidate_caches()

    yield build
    for name in ("words_one", "words_two", "imported_by_the_catalogue"):
        sys.modules.pop(name, None)


def theirs():
    return {one.name: one for one in listed_handlers() if not one.path.startswith("headrace.")}


def test_cards_are_read_without_importing_anything(install):
    install({"words": "words_one:Plain", "more": "words_one:Derived"}, ["pytest>=8"], words_one=THEIRS)
    found = theirs()
    assert {one.card for one in found.values()} == {CARD}
    assert {one.install for one in found.values()} == {"word-handlers[words]"}
    assert [one.trouble for one in found.values()] == ["", ""]
    assert "imported_by_the_catalogue" not in sys.modules


def test_what_an_extra_lacks_is_said(install):
    install({"words": "words_one:Plain"}, ["no-such-package-at-all[x]>=1", "pytest"], words_one=THEIRS)
    assert theirs()["words"].trouble == "not installed (no-such-package-at-all): pip install 'word-handlers[words]'"


def test_a_card_that_is_computed_is_imported(install):
    install({"words": "words_two:Computed", "made": "words_two:factory"}, ["pytest"], words_two=COMPUTED)
    assert theirs()["words"].card == CARD
    made = theirs()["made"]
    assert (made.card, made.install, made.trouble) == (None, "word-handlers", "")


@pytest.mark.parametrize(
    ("path", "trouble"),
    [
        ("words_one:Absent", "ModuleNotFoundError: No module named 'a_framework_that_nobody_has'"),
        ("words_two:Absent", "AttributeError: module 'words_two' has no attribute 'Absent'"),
        ("no_such_module_at_all:x", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("no_such_package_at_all.words:x", "ModuleNotFoundError: No module named 'no_such_package_at_all'"),
        ("words_broken:x", "SyntaxError"),
    ],
)
def test_a_handler_that_is_broken_does_not_spoil_the_list(install, path, trouble):
    install({"words": path}, words_one=THEIRS, words_two=COMPUTED, words_broken="class")
    assert theirs()["words"].trouble.startswith(trouble)
    assert len(listed_handlers()) > 5


def test_markdown(install):
    install({"words": "words_one:Complete", "made": "words_two:factory"}, words_one=THEIRS, words_two=COMPUTED)
    lines = as_markdown(theirs().values()).splitlines()
    assert lines[1] == "|---|---|---|---|---|---|---|"
    assert lines[2] == r"| `words_one.Complete` | `words` | a \| b | c | d | e | `word-handlers` |"
    assert lines[3] == "| `words_two.factory` | `made` | - | - | - | - | `word-handlers` |"


def test_a_narrow_terminal_gets_what_fits(install, capsys):
    install({"words": "words_one:Plain"}, ["no-such-package-at-all"], words_one=THEIRS)
    for width, threads in ((80, False), (160, True)):
        show_handlers(Console(width=width), listed_handlers())
        text = capsys.readouterr().out
        assert "words" in text
        assert "its length" in text
        assert ("safe" in text) is threads
        assert max(len(line) for line in text.splitlines()) <= width


def test_the_command(headrace):
    result = headrace("handlers")
    assert (result.code, result.err) == (0, "")
    assert "sklearn-numpy" in result.out
    assert headrace("handlers", "--markdown").out == as_markdown(listed_handlers()) + "\n"


@pytest.mark.parametrize("one", [one for one in listed_handlers() if not one.trouble], ids=lambda one: one.name)
def test_the_source_says_what_the_class_says(one):
    module, _, name = one.path.rpartition(".")
    assert one.card == getattr(importlib.import_module(module), name).card


@pytest.mark.parametrize(
    "source", ["class A: card = None", "class A: card = HandlerCard('a')", "class A: card = HandlerCard(*x)", "A = 1"]
)
def test_what_is_not_plain_is_not_guessed(source):
    assert card_in_source(source, "A") is None
