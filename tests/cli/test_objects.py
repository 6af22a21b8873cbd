"""Classes and functions are given by name where a handler takes them; texts stay texts."""

import sys

import pytest

from headrace.cli.handlers import make_handler
from headrace.core.errors import ConfigurationError

FACTORIES = """
from __future__ import annotations

import collections.abc
import typing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nowhere import Unknown

Alias = typing.Callable[[int], int]


class Net:
    def __call__(self):
        return "made"


def double(number):
    return 2 * number


def make(
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


class Base:
    def __init__(self, *, size_fn: Alias | None = None):
        self.size_fn = size_fn


class Handler(Base):
    def __init__(self, **options: typing.Any):
        super().__init__(**options)
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
    """A module of the current folder, by its name."""
    name = f"objects_{own.path.name}"
    own.write(f"{name}.py", FACTORIES)
    return name


@pytest.mark.parametrize(
    ("name", "attribute"), [("model_class", "Net"), ("either", "Net"), ("function", "double"), ("alias", "double")]
)
def test_a_class_or_a_function_is_given_by_name(module, name, attribute):
    made = make_handler(f"{module}:make", {name: f"{module}:{attribute}"})
    assert made[name] is getattr(sys.modules[module], attribute)


@pytest.mark.parametrize("name", ["secret", "text", "unsaid", "unknown"])
def test_a_text_stays_a_text(module, name):
    assert make_handler(f"{module}:make", {name: "a:b"})[name] == "a:b"
    assert make_handler(f"{module}:make", {"either": "Net"})["either"] == "Net"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{}:Nett", "--handler-arg model_class={}:Nett: {} has no 'Nett'; did you mean 'Net'?"),
        ("{}.py:Net", "--handler-arg takes a module, not its file '{}.py'; write {}:Net."),
        (
            "absent_module:Net",
            "--handler-arg model_class=absent_module:Net: cannot import absent_module: ModuleNotFound",
        ),
        ("{}:__doc__", "--handler-arg model_class={}:__doc__: that is None, and no class or function."),
        ("Net", "--handler-arg model_class takes a class or a function, as package.module:name, not 'Net'."),
    ],
)
def test_a_name_that_leads_nowhere_is_explained(module, given, said):
    with pytest.raises(ConfigurationError) as caught:
        make_handler(f"{module}:make", {"model_class": given.replace("{}", module)})
    assert said.replace("{}", module) in str(caught.value)


@pytest.mark.large
@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_a_state_dict_runs_from_the_command_line(headrace, folder, isolate):
    import torch

    name = f"network_{folder.path.name}"
    folder.write(f"{name}.py", NETWORK)
    torch.save({"layer.weight": torch.tensor([[1.0, 10.0]]), "layer.bias": torch.tensor([0.5])}, "net.pt")
    folder.write("in.csv", "a,b\n1,2\n3,4\n")
    folder.write(
        "headrace.toml", f'[run]\nhandler-arg = {{model_class = "{name}:Net", model_params = {{inputs = 2}}}}\n'
    )
    words = ("--handler", "pytorch-tensor", "--model", "net.pt", "--output", "p.jsonl", isolate)
    result = headrace("run", "in.csv", *words)
    assert (result.code, result.err) == (0, "")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [[21.5], [43.5]]


def test_the_option_of_a_fallback_is_named(module, headrace, folder, handlers):
    folder.write("in.jsonl", [{"a": 1}])
    fallback = ("--fallback", f"{module}:make", "--fallback-arg", f"function={module}:zzzz")
    result = headrace("run", "in.jsonl", "--handler", f"{handlers}:Add", "--output", "p.jsonl", *fallback)
    assert result.code == 2
    assert f"--fallback-arg function={module}:zzzz: {module} has no 'zzzz'." in result.error
