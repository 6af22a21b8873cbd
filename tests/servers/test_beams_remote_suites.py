"""Beam's own unit tests of its handlers for Gemini and Vertex AI, on Headrace's handlers.

They are read from the installed apache_beam; the module that they test is Headrace's.
"""

from __future__ import annotations

import types
import unittest
from pathlib import Path

import apache_beam.ml.inference.base as incumbent
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

MODULES = ("gemini_inference", "vertex_ai_inference")


def beams_tests(name):
    source = Path(incumbent.__file__).with_name(f"{name}_test.py").read_text()
    ours = source.replace(f"apache_beam.ml.inference.{name}", f"headrace.handlers.{name}")
    assert ours.count(f"headrace.handlers.{name}") >= 2
    module = types.ModuleType(f"beams_{name}_test")
    exec(compile(ours, f"{name}_test.py", "exec"), vars(module))
    return module


for _name in MODULES:
    _found = vars(beams_tests(_name))
    _suites = {
        name: one for name, one in _found.items() if isinstance(one, type) and issubclass(one, unittest.TestCase)
    }
    assert _suites
    globals().update({f"{name}{_name.title().replace('_', '')}": one for name, one in _suites.items()})


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
