"""Tests marked ``large`` are slow or need a large framework: only ``make test-all`` runs them, ``make test`` does not.

A file that is large as a whole says so in its ``pytestmark``, and the light run does not import it. A file with large
tests has the mark in it, and the run of large tests alone imports no other.

Large frameworks are absent from the light run, installed or not, so that no test comes to need one unnoticed. A table
of cases does without: there ``from large import torch`` is None. Its cases with torch are marked as well, or no run
that is light or of large tests alone would have them.
"""

from __future__ import annotations

import functools
import re
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

FRAMEWORKS = frozenset(
    {"datatable", "keras", "lightgbm", "sentence_transformers", "tensorflow", "torch", "transformers", "xgboost"}
)

_MARK = re.compile(r"\bpytest\.mark\.large\b")
_WHOLE = re.compile(rf"^pytestmark = (\[\s*)?{_MARK.pattern}", re.MULTILINE)


class _LargeFrameworksAreAbsent(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in FRAMEWORKS:
            raise ModuleNotFoundError(f"{name} is left out of the light run: mark what needs it large", name=name)


_FINDER = _LargeFrameworksAreAbsent()


def leave_out() -> None:
    """From here on large frameworks cannot be imported."""
    assert not FRAMEWORKS & sys.modules.keys()
    sys.meta_path.insert(0, _FINDER)


def is_left_out(file: Path, marks: str) -> bool:
    """Whether a test file has nothing for a run of tests with these marks: it is large as a whole, or not at all."""
    if marks not in {"large", "not large"} or not re.fullmatch(r"test_.*\.py", file.name):
        return False
    return not may_be_in(file) if marks == "large" else _WHOLE.search(file.read_text()) is not None


@functools.cache
def may_be_in(file: Path) -> bool:
    """Whether the file has the mark of large tests."""
    return _MARK.search(file.read_text()) is not None


def __getattr__(name: str) -> Any:
    """A large framework; None in the light run."""
    if name not in FRAMEWORKS:
        raise AttributeError(name)
    return None if _FINDER in sys.meta_path else import_module(name)
