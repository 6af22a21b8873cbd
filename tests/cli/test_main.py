"""The entry point, its help and what shells complete; the guide explains every option."""

import importlib.metadata
import re
from pathlib import Path

import pytest
from typer.main import get_command

import headrace as package
from headrace.cli.main import app, main

GUIDE = Path(__file__).parents[2] / "docs" / "command-line.md"
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
    assert {"run", "retry", "doctor", "handlers", "migrate"} <= set(words(result.out))


def test_an_unknown_command_is_an_error(headrace):
    result = headrace("walk")
    assert (result.code, result.out) == (2, "")
    assert "No such command 'walk'" in result.error


def options(name):
    """All options of a command, as they are typed."""
    known = get_command(app).commands[name].params
    return {option for one in known for option in (*one.opts, *one.secondary_opts) if option.startswith("--")}


@pytest.mark.parametrize("name", ["run", "retry", "doctor", "handlers", "migrate", "diff", "report", "quote"])
def test_help_explains_every_option(headrace, monkeypatch, name):
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    result = headrace(name, "--help")
    assert (result.code, result.err) == (0, "")
    assert all(one.help for one in get_command(app).commands[name].params)
    assert options(name) <= set(words(result.out)) | {"--help"}


@pytest.mark.parametrize("name", ["run", "retry", "doctor", "handlers", "migrate", "diff", "report", "quote"])
def test_every_option_is_explained_in_the_guide(name):
    guide = GUIDE.read_text()
    assert {option for option in options(name) if f"`{option}" not in guide} <= {"--help"}


@pytest.mark.parametrize("name", ["run", "retry"])
def test_help_names_every_exit_code_of_the_guide(headrace, name):
    codes = re.findall(r"^\| ([\d, ]+) \|", GUIDE.read_text(), re.MULTILINE)
    named = re.findall(r"\d+", " ".join(words(headrace(name, "--help").out)).partition("Exit codes: ")[2])
    assert named[: len(codes) + 1] == re.findall(r"\d+", " ".join(codes))


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("headrace run --handler sklearn-", ["sklearn-numpy", "sklearn-pandas"]),
        ("headrace doctor onnx", ["onnx-numpy"]),
        ("headrace retry --plac", ["--placement"]),
        ("headrace run da", []),  # then the shell completes files
        ("headrace do", ["doctor"]),
    ],
)
def test_shells_complete_commands_options_and_handlers(monkeypatch, capsys, line, completions):
    monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert (ended.value.code, capsys.readouterr().out.split()) == (0, completions)


def test_an_unknown_option_of_a_command_without_beam_is_an_error(headrace):
    result = headrace("doctor", "--colums", "a")
    assert result.code == 2
    assert "--colums" in result.error
    assert "--columns" in result.error
