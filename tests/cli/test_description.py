"""What one handler takes: its parameters, what to install, and an example that fits it."""

import json
import shlex

import pytest

from headrace.cli.catalogue import listed_handlers
from headrace.cli.description import example_of
from headrace.cli.handlers import make_handler, parse_arguments
from headrace.cli.main import app
from headrace.cli.options import NAMED


def test_a_handler_is_described(headrace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = headrace("handlers", "sklearn-pandas")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "sklearn-pandas: a scikit-learn model; a row is a pandas frame"
    assert "an example        a DataFrame with one row" in lines
    assert "install           headrace[sklearn], which is installed" in lines
    place = lines.index("  model_uri (needed)  (--model)")
    assert lines[place + 1].startswith("      path or URI")
    assert "  model_file_type=pickle" in lines
    assert "min_batch_size=None, max_batch_size=None" in result.out
    assert lines[-2:] == [
        "  headrace run rows.csv --handler sklearn-pandas --model model.pkl --columns 'age,city' \\",
        "      --output predictions.jsonl",
    ]


def test_options_of_the_command_stand_with_their_parameters(headrace):
    out = headrace("handlers", "vllm-engine").out
    assert "model_uri (needed)  (--model)" in out or "not installed (vllm)" in out


def test_a_handler_that_is_not_installed_says_what_to_install(headrace):
    missing = [one for one in listed_handlers() if one.trouble and one.name != "-"]
    for one in missing[:1]:
        out = headrace("handlers", one.name).out
        assert " ".join(one.trouble.split()) in " ".join(out.split())
        assert "parameters" not in out
        assert f"--handler {one.name}" in out


def test_json_of_one_handler(headrace):
    (found,) = json.loads(headrace("handlers", "onnx-numpy", "--json").out)
    assert found["name"] == "onnx-numpy"


@pytest.mark.parametrize("name", ["sklern-numpy", "-", "my_model:make"])
def test_an_unknown_name_is_one_error(headrace, name):
    result = headrace("handlers", "--", name)
    assert (result.code, result.out) == (2, "")
    assert f"there is no handler {name!r}" in result.error
    assert ("did you mean 'sklearn-numpy'?" in result.error) is name.startswith("sklern")


def marked(one):
    light = one.name.startswith(("onnx", "sklearn", "tensorrt", "vllm"))
    return pytest.param(one, id=one.name, marks=[] if light else [pytest.mark.large])


@pytest.mark.parametrize("one", [marked(one) for one in listed_handlers() if one.name != "-" and not one.trouble])
def test_the_example_fits_the_handler(folder, monkeypatch, one):
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", "a key")
    args = app(shlex.split(example_of(one))[1:], standalone_mode=False)
    assert one.card.summary
    assert len(f"{one.name:<26}{one.card.summary}") <= 80
    folder.write("my_net.py", "class Net: pass")
    folder.write(args.model, "")
    named = {name: value for name in NAMED if (value := getattr(args, name)) is not None}
    assert make_handler(args.handler, parse_arguments("--handler-arg", args.handler_args), args.model, named)
