"""Beam's own test modules, read from the installed apache_beam, with parts of Headrace in the place of Beam's."""

from __future__ import annotations

import atexit
import importlib
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import apache_beam.ml.inference.base as incumbent


def source_of(name: str) -> str:
    """The text of Beam's module."""
    return Path(incumbent.__file__).with_name(f"{name}.py").read_text()


def changed(name: str, imported: str, ours: str, **modules: str) -> ModuleType:
    """Beam's module with another import, and more modules beside it; files, since model hosts import them, too."""
    folder = Path(tempfile.mkdtemp(prefix=name))
    atexit.register(shutil.rmtree, folder)
    source, count = re.subn(imported, ours, source_of(name))
    assert count == 1
    source = re.sub(r" *@pytest\.mark\.\w+\n", "", source)  # markers of Beam's own continuous integration
    for module, text in {**modules, f"beams_{name}": source}.items():
        (folder / f"{module}.py").write_text(text)
    sys.path.append(str(folder))
    return importlib.import_module(f"beams_{name}")


def absent(name: str, tests: set[str]) -> list[str]:
    """The tests that Beam's module does not have."""
    return [test for test in tests if f"def {test}(" not in source_of(name)]
