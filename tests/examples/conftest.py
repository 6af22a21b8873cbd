"""The examples as modules, and the runner that their pipelines use here."""

import importlib.util
import sys
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

_FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", _FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # where Beam looks for the module of what it pickles
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def new_pipeline():
    """Makes a pipeline; to be used with ``with``, at whose end it runs."""
    return lambda: beam.Pipeline(runner=FnApiRunner())
