"""The entry point, its help and what shells complete; the guide explains every option."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import headrace as package
from headrace.cli.main import app, main

GUIDE = Path(__file__).parents[2] / "docs" / "command-line.md"
DRAWN = re.compile(r"Usage:.*|[─│╭╮╰╯*]|<[^>]*>|\[[a-z|]+\]|\bINTEGER\b|\b(?:INPUT|HANDLER)\S*")
"""What typer draws around the words of the help; it changes with its version."""


LOADED = """
import json, sys
from headrace.cli.main import main
main(sys.argv[1:])
print(json.dumps([name.partition(".")[0] for name in sys.modules]))
"""


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["walk"], "No such command 'walk'"),
        (["doctor", "--colums", "a"], "--colums"),
        (["doctor", "--colums", "a"], "--columns"),
    ],
)
def test_unknown_commands_and_options_are_errors(headrace, arguments, said):
    result = headrace(*arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.error


@pytest.mark.parametrize("command", ["doctor", "handlers"])
def test_doctor_and_handlers_load_no_large_package(folder, command):
    done = subprocess.run([sys.executable, "-c", LOADED, command], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "headrace" in loaded
    assert loaded & {"apache_beam", "numpy", "onnx", "pandas", "pyarrow", "sklearn", "tensorflow", "torch"} == set()


def options(name):
    """All options of a command, as they are typed."""
    known = get_command(app).commands[name].params
    return {option for one in known for option in (*one.opts, *one.secondary_opts) if option.startswith("--")}


@pytest.mark.parametrize("name", ["run", "retry", "doctor", "handlers", "migrate", "diff", "report", "quote"])
def test_help_and_the_guide_explain_every_option(headrace, monkeypatch, name):
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    result, guide = headrace(name, "--help"), GUIDE.read_text()
    assert (result.code, result.err) == (0, "")
    assert all(one.help for one in get_command(app).commands[name].params)
    assert options(name) <= set(words(result.out)) | {"--help"}
    assert {option for option in options(name) if f"`{option}" not in guide} <= {"--help"}
    if name in ("run", "retry"):
        codes = re.findall(r"^\| ([\d, ]+) \|", guide, re.MULTILINE)
        named = re.findall(r"\d+", " ".join(words(result.out)).partition("Exit codes: ")[2])
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
