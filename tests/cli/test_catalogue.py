"""The list of handlers: ours from a table, without their frameworks; those of others from their classes."""

import importlib
import json
import re
import shlex
import sys

import pytest
from rich.console import Console

import headrace as package
from headrace.cli.catalogue import OURS, as_markdown, example_of, listed_handlers, show_handler, show_handlers
from headrace.cli.handlers import make_handler, parse_arguments
from headrace.cli.main import app
from headrace.cli.options import NAMED

CARD = package.HandlerCard("a word", "its `length`", "none", "safe", "words")
THEIRS = """
from types import SimpleNamespace
from headrace import HandlerCard

class Plain:
    card = HandlerCard("a word", "its `length`", "none", "safe", "words")

class Derived(Plain):
    pass

inner = SimpleNamespace(Plain=Plain)
"""
WITHOUT_AN_EXTRA = """
from headrace.core.errors import MissingExtraError
raise MissingExtraError("torch", "pytorch")
"""
ENDS = """
import sys, warnings
print("in the way of JSON")
warnings.warn("and this")
sys.exit("two\\nlines")
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
    sys.modules.pop("words_one", None)


def theirs():
    return {one.name: one for one in listed_handlers() if not one.path.startswith("headrace.")}


def test_cards_of_third_party_handlers_come_from_their_classes(install):
    points = {"words": "words_one:Plain", "more": "words_one:Derived", "inner": "words_one:inner.Plain"}
    install(points, ["pytest>=8"], words_one=THEIRS)
    found = theirs()
    assert {one.card for one in found.values()} == {CARD}
    assert {one.install for one in found.values()} == {"word-handlers[words]"}
    assert [one.trouble for one in found.values()] == ["", "", ""]


def test_missing_packages_of_an_extra_are_named(install, headrace):
    install({"words": "words_one:Plain"}, ["no-such-package-at-all[x]>=1", "pytest"], words_one=THEIRS)
    said = 'not installed (no-such-package-at-all): pip install "no-such-package-at-all[x]>=1" "pytest"'
    assert theirs()["words"].trouble == said
    out = headrace("handlers", "words").out
    assert "install           not installed (no-such-package-at-all): pip install" in out
    assert "parameters" not in out


@pytest.mark.parametrize(
    ("path", "trouble"),
    [
        ("no_such_package.words:x", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("words_three:x", "torch is not installed; install the extra 'pytorch' with: pip install"),
        ("words_ends:x", "cannot be imported: SystemExit: two lines"),
    ],
)
def test_a_handler_that_is_broken_does_not_spoil_the_list(install, capsys, path, trouble):
    install({"words": path}, words_three=WITHOUT_AN_EXTRA, words_ends=ENDS)
    assert theirs()["words"].trouble.startswith(trouble)
    assert "\n" not in theirs()["words"].trouble
    assert len(listed_handlers()) > 5
    assert capsys.readouterr() == ("", "")


def test_a_terminal_of_80_columns_gets_a_line_for_each_handler(install, capsys):
    install({"words": "words_one:Plain"}, ["no-such-package-at-all"], words_one=THEIRS)
    show_handlers(Console(width=80, force_terminal=True, color_system=None), listed_handlers())
    here, _, missing = capsys.readouterr().out.partition("\nNot installed here:\n")
    assert re.search(r"^sklearn-numpy +a scikit-learn model; a row is an array$", here, re.MULTILINE)
    assert re.search(r"^words +takes a word$", missing, re.MULTILINE)
    assert max(map(len, (here + missing).splitlines())) <= 80
    assert "..." not in here.replace("Triton, MLServer ...", "")
    assert not re.search("^- ", here + missing, re.MULTILINE)


def test_handlers_command_lists_the_catalogue(headrace):
    result = headrace("handlers")
    assert (result.code, result.err) == (0, "")
    assert "sklearn-numpy" in result.out
    (found,) = (one for one in json.loads(headrace("handlers", "--json").out) if one["name"] == "sklearn-numpy")
    assert found["class"] == "headrace.handlers.sklearn_inference.SklearnModelHandlerNumpy"
    assert (found["example"], found["threads"]) == ("a numpy array", "safe")
    assert (found["install"], found["usable"], found["trouble"]) == ("headrace[sklearn]", True, None)
    assert {"prediction", "weights"} <= set(found)
    assert headrace("handlers", "--markdown").out == as_markdown(listed_handlers()) + "\n"


def marked(one):
    is_light = one.path.removeprefix(OURS).startswith(("onnx", "sklearn", "tensorrt", "vllm"))
    return pytest.param(one, id=one.name, marks=[] if is_light else [pytest.mark.large])


def test_a_handler_is_described(headrace):
    result = headrace("handlers", "sklearn-pandas")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "sklearn-pandas: a scikit-learn model; a row is a pandas frame"
    assert "an example        a DataFrame with one row" in lines
    assert "install           headrace[sklearn], which is installed" in lines
    place = lines.index("  model_uri (needed)  (--model)")
    assert lines[place + 1].startswith("      path, URI or name of the model.")
    assert "  model_file_type=pickle" in lines
    assert "max_batch_weight" in result.out
    assert lines[-1].startswith(
        "  headrace run rows.csv --handler sklearn-pandas --model model.pkl --columns 'age,city' "
    )
    (found,) = json.loads(headrace("handlers", "sklearn-pandas", "--json").out)
    assert found["name"] == "sklearn-pandas"


@pytest.mark.parametrize("name", ["sklern-numpy", "-", "my_model:make"])
def test_an_unknown_name_is_one_error(headrace, name):
    result = headrace("handlers", "--", name)
    assert (result.code, result.out) == (2, "")
    assert f"there is no handler {name!r}" in result.error
    assert ("did you mean 'sklearn-numpy'?" in result.error) is name.startswith("sklern")


@pytest.mark.parametrize("one", [marked(one) for one in listed_handlers() if one.name != "-" and not one.trouble])
def test_the_example_fits_the_handler_and_each_argument_is_described(folder, monkeypatch, capsys, one):
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", "a key")
    args = app(shlex.split(example_of(one))[1:], standalone_mode=False)
    assert one.card.summary
    assert len(f"{one.name:<26}{one.card.summary}") <= 80
    folder.write("my_net.py", "class Net: pass")
    folder.write(args.model, "")
    named = {name: value for name in NAMED if (value := getattr(args, name)) is not None}
    assert make_handler(args.handler, parse_arguments("--handler-arg", args.handler_args), args.model, named)
    show_handler(Console(width=100), one)
    said = capsys.readouterr().out.partition("NAME=VALUE:\n")[2].partition("\n\nexample:")[0]
    assert re.findall(r"^  \w.*\n(?!      )", f"{said}\n", re.MULTILINE) == []
    assert "_default_inference_fn" not in said
    assert "max_batch_size" in said
