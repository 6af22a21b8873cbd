"""Handlers are found by name or path and built from text; an error names the mistake and the valid choices."""

import enum
import sys
import types

import pytest

from headrace.cli.handlers import make_handler, parse_arguments
from headrace.core.errors import ConfigurationError, MissingExtraError
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy


class Kind(enum.Enum):
    PICKLE = 1
    JOBLIB = 2


def make(path, kind=Kind.PICKLE, *, size=1, **options):
    return path, kind, size, options


def make_of_two(task, model=""):
    return task, model


class OfTheHub:
    models_have_ids = True

    def __init__(self, model_uri):
        self.uri = model_uri


class WithAnother:
    model_parameter = "state"

    def __init__(self, model, state):
        self.both = model, state


def make_without_parameters():
    return "made"


def fail_for_want_of_torch():
    raise MissingExtraError("torch", "pytorch")


@pytest.fixture
def module(monkeypatch):
    """A module with factories, by its name."""
    found = types.ModuleType("factories_of_a_test")
    found.make = make
    found.of_two = make_of_two
    found.OfTheHub = OfTheHub
    found.WithAnother = WithAnother
    found.plain = make_without_parameters
    found.missing = fail_for_want_of_torch
    found.inner = types.SimpleNamespace(make=make_without_parameters)
    found.nothing = None
    found.at = lambda url, model: url
    monkeypatch.setitem(sys.modules, found.__name__, found)
    return found.__name__


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
    assert make_handler(f"{module}:make", {"path": "p", "kind": "joblib"})[1] is Kind.JOBLIB


LISTS = "`headrace handlers` lists them all; write one of your own as"


@pytest.mark.parametrize(
    ("name", "arguments", "model", "message"),
    [
        ("my_model.make", {}, None, f"there is no handler 'my_model.make'. {LISTS} my_model:make."),
        (
            "sklern-numpy",
            {},
            None,
            f"there is no handler 'sklern-numpy'; did you mean 'sklearn-numpy'? {LISTS} package.module:factory.",
        ),
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
    ],
)
def test_a_handler_that_cannot_be_made_is_explained(module, name, arguments, model, message):
    assert message in error_of(name.format(module), arguments, model)


def test_a_missing_url_is_asked_for_by_its_option_where_there_is_one(module):
    assert error_of(f"{module}:at", {}, "m", {}) == f"{module}:at needs --url, where the endpoint is."


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
        pytest.param("xgboost-numpy", {"model_class": "Booster"}, marks=pytest.mark.large),
        pytest.param("xgboost-pandas", {"model_class": "Booster"}, marks=pytest.mark.large),
        ("tensorrt-numpy", {"min_batch_size": 1, "max_batch_size": 8}),
    ],
)
def test_the_model_is_a_file_though_it_is_not_the_first_parameter(tmp_path, name, arguments):
    path = tmp_path / "model"
    assert f"there is no file {str(path)!r}" in error_of(name, arguments, model=str(path))
    path.write_bytes(b"")
    assert make_handler(name, arguments, model=str(path))


def test_a_parameter_that_a_handler_misses_comes_with_its_option(module):
    def needs_class(path, model_class=None):
        raise ConfigurationError("path needs model_class.")

    sys.modules[module].needs_class = needs_class
    assert error_of(f"{module}:needs_class", {"path": "p"}) == (
        "path needs model_class. Give it with --handler-arg model_class=VALUE; a class or a function is written as "
        "package.module:name."
    )
    assert error_of(f"{module}:needs_class", {"path": "p", "model_class": "X"}) == "path needs model_class."


def test_values_are_json_or_text():
    pairs = ["a=1", "b=text", "c=[1, null]", 'd="1"', "e=x=y", "f=", "g=true"]
    assert parse_arguments("--handler-arg", pairs) == {
        "a": 1,
        "b": "text",
        "c": [1, None],
        "d": "1",
        "e": "x=y",
        "f": "",
        "g": True,
    }


@pytest.mark.parametrize(
    ("pairs", "message"),
    [(["a"], "takes key=value, not 'a'"), (["=1"], "takes key=value"), (["a=1", "a=2"], "--x a is given twice")],
)
def test_malformed_pairs_are_refused(pairs, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_arguments("--x", pairs)


def test_a_model_file_that_is_not_there_is_named_before_anything_starts(tmp_path):
    missing = str(tmp_path / "none.pkl")
    (tmp_path / "nine.pkl").touch()
    found = str(tmp_path / "nine.pkl")
    assert error_of("sklearn-numpy", {}, missing) == f"--model: there is no file {missing!r}; did you mean {found!r}?"
    assert isinstance(make_handler("sklearn-numpy", {}, "gs://bucket/model.pkl"), SklearnModelHandlerNumpy)


def test_a_module_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "factories_that_fail.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "cannot import factories_that_fail: ZeroDivisionError" in error_of("factories_that_fail:x", {})
