"""The entry point, its help, and the copy of the help in the documentation."""

import importlib.metadata
import re
from pathlib import Path

import pytest

import headrace as package

GUIDE = Path(__file__).parents[2] / "docs" / "command-line.md"
WIDTH = "100"
DRAWN = re.compile(r"Usage:.*|[─│╭╮╰╯*]|<[^>]*>|\[[a-z|]+\]|\bINTEGER\b|\b(?:INPUT|HANDLER)\S*")
"""What typer draws around the words of the help; it changes with its version."""


def words(text):
    return DRAWN.sub(" ", text).split()


def test_the_entry_point_is_installed():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="headrace")
    assert script.value == "headrace.cli.main:main"


def test_the_version_is_printed(headrace):
    assert headrace("--version") == (0, f"headrace {package.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_help_names_the_commands(headrace, arguments):
    result = headrace(*arguments)
    assert (result.code, result.err) == (0, "")
    assert {"run", "retry", "doctor", "handlers"} <= set(words(result.out))


def test_an_unknown_command_is_an_error(headrace):
    result = headrace("walk")
    assert (result.code, result.out) == (2, "")
    assert "No such command 'walk'" in result.error


@pytest.mark.parametrize("name", ["run", "retry", "doctor", "handlers"])
def test_the_help_in_the_guide_is_up_to_date(command, name):
    process = command(name, "--help", COLUMNS=WIDTH, TERMINAL_WIDTH=WIDTH, NO_COLOR="1")
    help_text, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    (block,) = re.findall(
        rf"^```console\n\$ headrace {name} --help\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert words(block) == words(help_text)


@pytest.mark.large
@pytest.mark.parametrize(("name", "count"), [("run", 15), ("retry", 13), ("doctor", 12), ("handlers", 0)])
def test_every_option_is_explained_in_the_guide(command, name, count):
    help_text, _ = command(name, "--help", COLUMNS=WIDTH, TERMINAL_WIDTH=WIDTH).communicate()
    options = set(re.findall(r"(--[a-z-]+) ", help_text)) - {"--help"}
    assert len(options) > count
    explained = GUIDE.read_text().partition("$ headrace run --help")[0]
    assert {option for option in options if f"`{option}" not in explained} == set()
