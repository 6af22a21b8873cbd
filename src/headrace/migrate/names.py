"""Where Beam's names are in Headrace, read from the source of both without importing them; what to install for them."""

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
        module = _module_with(first, others[0])
        return Counterpart(module, others[0], 5) if module else None
    own = module_for(first)
    return Counterpart(own, "", 4) if own else None


def module_for(name: str) -> str | None:
    """Headrace's module for a module of Beam's inference package; None if there is none."""
    if name in _OF_BASE:
        return _BASE
    is_there = name.endswith("_inference") and (_SOURCES / "handlers" / f"{name}.py").exists()
    return f"headrace.handlers.{name}" if is_there else None


def _module_with(module: str, name: str) -> str | None:
    """Headrace's module that has a name of Beam's ``module``, which may itself have imported it from ``base``."""
    if name == REMOTE:
        return None
    if name in names_in(_BASE):
        return _BASE
    own = module_for(module)
    return own if own and name in names_in(own) else None


@functools.cache
def names_in(module: str) -> frozenset[str]:
    """The names at the top level of a module of Headrace."""
    path = _SOURCES.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text("utf-8"))
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    lists = (node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__")
    return frozenset(_bound_in(tree)).union(*map(ast.literal_eval, lists))


def _bound_in(scope: ast.AST) -> Iterator[str]:
    """The names that a module binds, in conditions and ``try``, too."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _bound_in(node)


def extras_in(text: str) -> set[str]:
    """The extras of Headrace that Python code, or that of a notebook, needs, by the handlers it names."""
    words = set(re.findall(r"\w+", text.replace(r"\n", " "))) if "headrace.handlers" in text else set()
    return {card.extra for path, card in CARDS.items() if words.issuperset(path.split("."))}
