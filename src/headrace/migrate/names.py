"""Where each name of Beam's inference package is in Headrace, read from Headrace's own source."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.handlers.cards import CARDS

INFERENCE = ("apache_beam", "ml", "inference")
"""Beam's package."""

_SOURCES = Path(__file__).parents[1]
_BASE = "headrace.beam"
_OF_BASE = ("", "base", "utils")
"""Modules of Beam's package, and the package itself, whose public names ``headrace.beam`` has."""

REMOTE = "RemoteModelHandler"
"""Stays Beam's: Headrace's calls the client from several threads, and only a person can tell whether that is safe."""


class Counterpart(NamedTuple):
    """What takes the place of a dotted name of Beam's."""

    module: str
    """Of Headrace."""
    name: str
    """In that module; empty: the module itself."""
    consumed: int
    """How many parts of the dotted name it replaces."""

    @property
    def dotted(self) -> str:
        """``module.name``."""
        return f"{self.module}.{self.name}" if self.name else self.module


def is_inference(path: Sequence[str]) -> bool:
    """Whether a dotted name, in parts, is Beam's inference package or something in it."""
    return tuple(path[:3]) == INFERENCE


def find_counterpart(path: Sequence[str]) -> Counterpart | None:
    """What takes the place of ``apache_beam.ml.inference.module.name``, or of a module; None if nothing does."""
    if not is_inference(path) or len(path) == len(INFERENCE):
        return None
    first, *others = path[3:]
    if first == "RunInference":
        return Counterpart(_BASE, first, 4)
    if others:
        module = module_with(first, others[0])
        return Counterpart(module, others[0], 5) if module else None
    own = module_for(first)
    return Counterpart(own, "", 4) if own else None


def module_for(name: str) -> str | None:
    """Headrace's module for a module of Beam's inference package; None if there is none."""
    if name in _OF_BASE:
        return _BASE
    is_there = name.endswith("_inference") and (_SOURCES / "handlers" / f"{name}.py").exists()
    return f"headrace.handlers.{name}" if is_there else None


def module_with(module: str, name: str) -> str | None:
    """Headrace's module that has a name of Beam's ``module``, which may itself have imported it from ``base``."""
    if name == REMOTE:
        return None
    if name in names_in(_BASE):
        return _BASE
    own = module_for(module)
    return own if own and name in names_in(own) else None


@functools.cache
def names_in(module: str) -> frozenset[str]:
    """The names at the top level of a module of Headrace, without importing it."""
    path = _SOURCES.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(name for node in tree.body for name in _declared(node))


def _declared(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        if (node.module or "").startswith("headrace"):
            yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from names
        if "__all__" in names and isinstance(node.value, ast.List):
            yield from map(str, ast.literal_eval(node.value))
    elif isinstance(node, ast.If):
        yield from (name for inner in node.body for name in _declared(inner))


def uses_headrace(text: str) -> bool:
    """Whether code imports Headrace's counterparts."""
    return "headrace.beam" in text or "headrace.handlers" in text or "from headrace import" in text


def extras_in(text: str) -> frozenset[str]:
    """The extras of Headrace that Python code needs, by the handlers it names."""
    if "headrace.handlers" not in text:
        return frozenset()
    words = set(re.findall(r"\w+", text))
    return frozenset(card.extra for path, card in CARDS.items() if words.issuperset(path.split(".")))
