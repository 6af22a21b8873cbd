"""The public doors: declared, sorted, complete, and nothing else is public."""

from __future__ import annotations

import ast
import importlib
from types import ModuleType

import pytest
from apache_beam.ml.inference import base

import headrace
import headrace.beam


@pytest.mark.parametrize("door", ["headrace", "headrace.beam", "headrace.testing"])
def test_public_names_are_declared_in_order_documented_and_all_there_is(door):
    module = importlib.import_module(door)
    declared = list(module.__all__)
    assert declared == sorted(set(declared), key=lambda name: (not name.isupper(), name))  # constants first
    values = {name: getattr(module, name) for name in declared}
    assert None not in values.values()
    assert _public(module) <= set(declared)
    own = {name: value for name, value in values.items() if callable(value) and _is_ours(value)}
    assert own
    assert [name for name, value in own.items() if not value.__doc__] == []


def test_dir_shows_the_lazy_names():
    assert dir(headrace) == sorted([*headrace.__all__, "__version__"])


def test_type_checkers_see_the_same_names(sources):
    guarded = next(node for node in sources["headrace"].body if isinstance(node, ast.If))
    seen = {alias.name for node in guarded.body for alias in node.names}
    assert seen == set(headrace.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'RunInferance'"):
        headrace.RunInferance


def test_the_beam_door_has_every_public_name_of_beams_module():
    theirs = {
        name
        for name, value in vars(base).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == base.__name__
    }
    assert {"RunInference", "ModelHandler", "ExampleT"} <= theirs
    assert theirs - set(headrace.beam.__all__) == set()


def _public(module: ModuleType) -> set[str]:
    """Names without an underscore, but for modules and for what every module of ours imports for its annotations."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and name not in ("annotations", "Any", "TYPE_CHECKING")
    }


def _is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith("headrace.") and type(value).__name__ != "TypeVar"
