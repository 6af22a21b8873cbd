"""What rewriting cannot settle: names that stay, lookups while running, pickles, other packages of Beam's."""

from __future__ import annotations

from collections.abc import Iterator

import libcst
from libcst import matchers

from headrace.migrate.definitions import complaint_about
from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import INFERENCE, REMOTE, find_counterpart, is_inference, module_for
from headrace.migrate.rewriting import Rewriting

_UNPICKLING = matchers.Call(
    func=matchers.Attribute(
        value=matchers.OneOf(*map(matchers.Name, ("pickle", "dill", "cloudpickle", "joblib"))),
        attr=matchers.OneOf(matchers.Name("load"), matchers.Name("loads")),
    )
)
_STAR = "import * from Beam's package stays: name what the file uses, and run this again."
_PICKLED = "a handler in a pickle file stays Beam's: if you load one, make the file again with Headrace's handler."
_RUN_INFERENCE = {"transforms": "MLTransform", "anomaly": "AnomalyDetection", "rag": "Embeddings for RAG"}
"""Packages of ``apache_beam.ml`` that run inference themselves, and what users call them."""


class Adviser:
    """Finds what a person has to know about a file."""

    def __init__(self, imports: FileImports, rewriting: Rewriting) -> None:
        """Takes the file, and what is decided about it."""
        self._imports = imports
        self._rewriting = rewriting
        self._module = imports.wrapper.module

    @property
    def beam_stays(self) -> bool:
        """Whether something of Beam's package is left in the file, whose objects are of Beam's classes."""
        return bool(self._imports.stars) or any(
            [fate.keep and len(one.path) > 3 and is_inference(one.path) for one, fate in self._rewriting.fates.items()]
            + [self._rewriting.stays(use) and len(use.path) > 4 for use in self._imports.uses]
        )

    def findings(self) -> Iterator[Finding]:
        """All findings, in no order."""
        yield from self._imports_that_stay()
        yield from self._uses_that_stay()
        yield from self._calls()
        yield from self._packages()

    def _imports_that_stay(self) -> Iterator[Finding]:
        for binding, fate in self._rewriting.fates.items():
            if fate.keep and is_inference(binding.path) and (len(binding.path) > 4 or not self._is_used(binding.local)):
                yield self._staying(binding.alias, binding.path)
        for star in self._imports.stars:
            yield self._imports.finding(star, _STAR)

    def _is_used(self, local: str) -> bool:
        return any(local in {one.local for one in use.bindings} for use in self._imports.uses)

    def _uses_that_stay(self) -> Iterator[Finding]:
        seen = set()
        for use in self._imports.uses:
            if not self._rewriting.stays(use) or len(use.bindings[0].path) > 4:
                continue
            path = use.path[:5]
            if path not in seen and use.node is not None:
                seen.add(path)
                yield self._staying(use.node, path)

    def _staying(self, node: libcst.CSTNode, path: tuple[str, ...]) -> Finding:
        missing = complaint_about(path)
        needs_person = bool(missing) or _is_private_class(path)
        return self._imports.finding(node, missing or _staying(path), needs_person=needs_person)

    def _calls(self) -> Iterator[Finding]:
        calls = self._imports.nodes_of(libcst.Call)
        for call in calls:
            name = call.func.value if isinstance(call.func, libcst.Name) else ""
            if name in ("getattr", "setattr", "hasattr") and len(call.args) > 1:
                yield from self._lookup(name, call)
        if self._rewriting.fates:
            for call in [call for call in calls if matchers.matches(call, _UNPICKLING)][:1]:
                yield self._imports.finding(call, _PICKLED, needs_person=False)

    def _lookup(self, name: str, call: libcst.Call) -> Iterator[Finding]:
        use = next((use for use in self._imports.uses if use.node is call.args[0].value), None)
        if use is None or not is_inference(use.path) or len(use.path) > 4:
            return
        attribute = call.args[1].value
        text = attribute.evaluated_value if isinstance(attribute, libcst.SimpleString) else None
        if text is None:
            yield self._imports.finding(call, f"{name}({use.path[-1]}, ...) looks a name up while running: check it.")
        elif not find_counterpart((*use.path, str(text))):
            message = f"{name}({use.path[-1]}, {text!r}): Headrace has no counterpart of this name."
            yield self._imports.finding(call, message)

    def _packages(self) -> Iterator[Finding]:
        """Other packages of Beam's that run inference: the first import of each."""
        seen = set()
        for statement in self._imports.statements:
            module = statement.module if isinstance(statement, libcst.ImportFrom) else statement.names[0].name
            dotted = self._module.code_for_node(module).split(".") if module else []
            name = _RUN_INFERENCE.get(dotted[2]) if tuple(dotted[:2]) == INFERENCE[:2] and len(dotted) > 2 else None
            if name and name not in seen:
                seen.add(name)
                message = f"Beam's {name} stays; where it runs a model, it uses Beam's RunInference."
                yield self._imports.finding(statement, message, needs_person=False)


def _staying(path: tuple[str, ...]) -> str:
    """What to say of a name, or a module, that has no counterpart."""
    dotted = ".".join(path[3:]) or "inference"
    if len(path) > 3 and module_for(path[3]) is None and path[-1].endswith("Handler"):
        return f"{dotted} stays Beam's: Headrace has no counterpart, and runs Beam's handlers as they are."
    if path[-1] == REMOTE:
        return f"{dotted} stays Beam's: Headrace's sends several requests at a time, which the client has to allow."
    if _is_private_class(path):
        return f"{dotted} stays Beam's: Headrace has no counterpart of this private class; look at what uses it."
    return f"{dotted} stays Beam's, and works as it is: Headrace has no counterpart."


def _is_private_class(path: tuple[str, ...]) -> bool:
    """Whether a name is that of a class on which code cannot rely: Headrace's objects are of other classes."""
    name = path[-1]
    is_private = name.startswith("_") and name[1:2].isupper() and not name.isupper()
    return is_private and module_for(path[3]) is not None
