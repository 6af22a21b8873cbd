"""Handlers are found by name or path and built from text; an error names the mistake and the valid choices."""

import sys

import pytest

from headrace.cli.handlers import make_handler, parse_arguments
from headrace.core.errors import ConfigurationError
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

FACTORIES = """
from __future__ import annotations

import collections.abc
import enum
import types
import typing
from typing import TYPE_CHECKING

from headrace.core.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from nowhere import Unknown

Alias = typing.Callable[[int], int]


class Kind(enum.Enum):
    PICKLE = 1
    JOBLIB = 2


class OfTheHub:
    models_have_ids = True

    def __init__(self, model_uri):
        self.uri = model_uri


class WithAnother:
    model_parameter = "state"

    def __init__(self, model, state):
        self.both = model, state


class Net:
    def __call__(self):
        return "made"


def make(path, kind=Kind.PICKLE, *, size=1, **options):
    return path, kind, size, options


def of_two(task, model=""):
    return task, model


def at(url, model):
    return url


def plain():
    return "made"


def needs_class(path, model_class=None):
    raise ConfigurationError("path needs model_class.")


def missing():
    raise MissingExtraError("torch", "pytorch")


def double(number):
    return 2 * number


def takes(
    model_class: type[Net] | None = None,
    either: type[Net] | str = "",
    function: collections.abc.Callable[..., int] | None = None,
    alias: Alias = double,
    secret: str | typing.Callable[[], str] = "",
    text: str = "",
    unsaid=None,
    unknown: Unknown | None = None,
):
    return locals()


inner = types.SimpleNamespace(plain=plain)
nothing = None
"""
NETWORK = """
import torch


class Net(torch.nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layer = torch.nn.Linear(inputs, 1)

    def forward(self, rows):
        return self.layer(rows)
"""


@pytest.fixture
def module(own):
    """A module with factories, by its name."""
    own.write("factories_of_a_test.py", FACTORIES)
    return "factories_of_a_test"


def error_of(*arguments, **options):
    with pytest.raises(ConfigurationError) as caught:
        make_handler(*arguments, **options)
    return str(caught.value)


def test_an_installed_handler_is_found_by_name():
    options = {"model_file_type": "JOBLIB", "max_batch_size": 7}
    handler = make_handler("sklearn-numpy", options, model="gs://bucket/m.pkl")
    assert type(handler) is SklearnModelHandlerNumpy
    assert handler.batch_elements_kwargs() == {"max_batch_size": 7}


def test_model_is_the_parameter_of_that_name_or_of_the_factorys_choice_else_the_first(module):
    assert make_handler(f"{module}:of_two", {"task": "t"}, model="m") == ("t", "m")
    assert make_handler(f"{module}:OfTheHub", {}, model="bert-base-uncased").uri == "bert-base-uncased"
    assert make_handler(f"{module}:WithAnother", {"model": "m"}, model="s").both == ("m", "s")
    assert make_handler(f"{module}:make", {"path": "p", "kind": "joblib"})[1].name == "JOBLIB"


LISTS = "`headrace handlers` lists them all; write one of your own as"


@pytest.mark.parametrize(
    ("name", "arguments", "model", "message"),
    [
        ("my_model.make", {}, None, f"there is no handler 'my_model.make'. {LISTS} my_model:make."),
        ("sklern-numpy", {}, None, f"'sklern-numpy'; did you mean 'sklearn-numpy'? {LISTS} package.module:factory."),
        ("./a/my_model.py:make", {}, None, "takes a module, not its file './a/my_model.py'; write a.my_model:make."),
        ("no_such_module_at_all:x", {}, None, "cannot import no_such_module_at_all: ModuleNotFoundError"),
        ("no_such_module_at_all:x", {}, None, "modules are looked for in this folder, "),
        ("{}:absent", {}, None, "factories_of_a_test has no 'absent'."),
        ("{}:plane", {}, None, "has no 'plane'; did you mean 'plain'?"),
        ("{}:inner.absent", {}, None, "factories_of_a_test has no 'inner.absent'."),
        ("{}:nothing", {}, None, "is not callable"),
        ("{}:make", {}, None, "make needs --model, where the model is (its parameter 'path')."),
        ("{}:of_two", {}, None, "of_two needs --handler-arg task=VALUE."),
        ("{}:missing", {}, None, "torch is not installed; install the extra 'pytorch' with: pip install"),
        ("{}:make", {"path": "p", "kind": "zip"}, None, "takes pickle, joblib, not 'zip'"),
        ("{}:plain", {"x": 1}, None, "has no parameter 'x'. It takes nothing."),
        ("{}:of_two", {"taks": "t"}, "m", "has no parameter 'taks'; did you mean 'task'? It takes task, model."),
        ("{}:plain", {}, "m", "has no parameter for --model"),
        ("{}:make", {"path": "p"}, "m", "--model and --handler-arg path are the same"),
        ("{}:WithAnother", {"state": "s"}, "s", "--handler-arg state are the same"),
        ("{}:at", {}, "m", "at needs --handler-arg url=VALUE."),
        (
            "{}:needs_class",
            {"path": "p"},
            None,
            "path needs model_class. Give it with --handler-arg model_class=VALUE; a class or a function is written as "
            "package.module:name.",
        ),
        ("fails:x", {}, None, "cannot import fails: ZeroDivisionError"),
    ],
)
def test_a_handler_that_cannot_be_made_is_explained(own, module, name, arguments, model, message):
    own.write("fails.py", "1 / 0")
    assert message in error_of(name.format(module), arguments, model)


def test_only_what_is_missing_is_asked_for_by_its_option_where_there_is_one(module):
    assert error_of(f"{module}:at", {}, "m", {}) == f"{module}:at needs --url, where the endpoint is."
    assert error_of(f"{module}:needs_class", {"path": "p", "model_class": "X"}) == "path needs model_class."


@pytest.mark.large
def test_no_error_asks_for_a_key_on_the_command_line(monkeypatch):
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    message = error_of("gemini", {}, model="m")
    assert "set GEMINI_API_KEY" in message
    assert "--handler-arg api_key" not in message


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sklearn-numpy", {}),
        ("tensorrt-numpy", {"min_batch_size": 1, "max_batch_size": 8}),
        pytest.param("xgboost-numpy", {"model_class": "Booster"}, marks=pytest.mark.large),
        pytest.param("xgboost-pandas", {"model_class": "Booster"}, marks=pytest.mark.large),
    ],
)
def test_the_model_is_a_file_that_is_there_though_it_is_not_the_first_parameter(tmp_path, name, arguments):
    missing, found = str(tmp_path / "none.pkl"), str(tmp_path / "nine.pkl")
    (tmp_path / "nine.pkl").touch()
    error = error_of(name, arguments, missing)
    assert error == f"--model: there is no file {missing!r}; did you mean {found!r}?"
    assert make_handler(name, arguments, found)


def test_values_are_json_or_text():
    pairs = ["a=1", "b=text", "c=[1, null]", 'd="1"', "e=x=y", "f=", "g=true"]
    values = [1, "text", [1, None], "1", "x=y", "", True]
    assert parse_arguments("--handler-arg", pairs) == dict(zip("abcdefg", values, strict=True))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [(["a"], "takes key=value, not 'a'"), (["=1"], "takes key=value"), (["a=1", "a=2"], "--x a is given twice")],
)
def test_malformed_pairs_are_refused(pairs, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_arguments("--x", pairs)


@pytest.mark.parametrize(
    ("name", "attribute"), [("model_class", "Net"), ("either", "Net"), ("function", "double"), ("alias", "double")]
)
def test_a_class_or_a_function_is_given_by_name(module, name, attribute):
    made = make_handler(f"{module}:takes", {name: f"{module}:{attribute}"})
    assert made[name] is getattr(sys.modules[module], attribute)


@pytest.mark.parametrize("name", ["secret", "text", "unsaid", "unknown"])
def test_a_text_stays_a_text(module, name):
    assert make_handler(f"{module}:takes", {name: "a:b"})[name] == "a:b"
    assert make_handler(f"{module}:takes", {"either": "Net"})["either"] == "Net"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{}:Nett", "--handler-arg model_class={}:Nett: {} has no 'Nett'; did you mean 'Net'?"),
        ("{}.py:Net", "--handler-arg takes a module, not its file '{}.py'; write {}:Net."),
        ("absent:Net", "--handler-arg model_class=absent:Net: cannot import absent: ModuleNotFound"),
        ("{}:__doc__", "--handler-arg model_class={}:__doc__: that is None, and no class or function."),
        ("Net", "--handler-arg model_class takes a class or a function, as package.module:name, not 'Net'."),
    ],
)
def test_a_name_that_leads_nowhere_is_explained(module, given, said):
    error = error_of(f"{module}:takes", {"model_class": given.replace("{}", module)})
    assert said.replace("{}", module) in error


@pytest.mark.large
@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_a_state_dict_runs_from_the_command_line(headrace, folder, isolate):
    import torch

    name = f"network_{folder.path.name}"
    folder.write(f"{name}.py", NETWORK)
    torch.save({"layer.weight": torch.tensor([[1.0, 10.0]]), "layer.bias": torch.tensor([0.5])}, "net.pt")
    folder.write("in.csv", "a,b\n1,2\n3,4\n")
    arguments = f'{{model_class = "{name}:Net", model_params = {{inputs = 2}}}}'
    folder.write("headrace.toml", f"[run]\nhandler-arg = {arguments}\n")
    words = ("--handler", "pytorch-tensor", "--model", "net.pt", "--output", "p.jsonl", isolate)
    result = headrace("run", "in.csv", *words)
    assert (result.code, result.err) == (0, "")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [[21.5], [43.5]]
