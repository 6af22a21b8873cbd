"""What rewriting cannot settle: names that stay, names within text, checks of classes, lookups while running."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst
from libcst import matchers

from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import INFERENCE, REMOTE, find_counterpart, is_inference, module_for
from headrace.migrate.rewriting import Rewriting

_TEXT = re.compile(r"apache_beam\.ml\.inference(?:\.\w+)*(?::[\w.]+)?")
_UNPICKLING = matchers.Call(
    func=matchers.Attribute(
        value=matchers.OneOf(*map(matchers.Name, ("pickle", "dill", "cloudpickle", "joblib"))),
        attr=matchers.OneOf(matchers.Name("load"), matchers.Name("loads")),
    )
)
_PICKLED = "a handler of Beam's that was pickled stays Beam's: pickle it anew."
_OF_BOTH = "RunInferenceDLQ"
"""A class whose objects are instances of Beam's, too."""
_RUN_INFERENCE = {"transforms": "MLTransform", "anomaly": "AnomalyDetection", "rag": "Embeddings for RAG"}
"""Packages of ``apache_beam.ml`` that run inference themselves, and what users call them."""


class Adviser:
    """Finds what a person has to know about a file."""

    def __init__(self, imports: FileImports, rewriting: Rewriting, content: bytes) -> None:
        """Takes the file, what is decided about it, and its text in UTF-8."""
        self._imports = imports
        self._rewriting = rewriting
        self._content = content
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
        yield from self._texts()
        yield from self._calls()
        yield from self._packages()

    def _imports_that_stay(self) -> Iterator[Finding]:
        for binding, fate in self._rewriting.fates.items():
            if fate.keep and is_inference(binding.path) and (len(binding.path) > 4 or not self._is_used(binding.local)):
                yield self._about(binding.alias, _staying(binding.path), needs_person=_is_private_class(binding.path))
        for star in self._imports.stars:
            yield self._about(star, "import * from Beam's package stays: name what the file uses, and run this again.")

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
                yield self._about(use.node, _staying(path), needs_person=_is_private_class(path))

    def _texts(self) -> Iterator[Finding]:
        for node in self._imports.texts:
            text = node.evaluated_value
            if not isinstance(text, str) or not _TEXT.fullmatch(text):
                continue
            target = find_counterpart(re.split("[.:]", text))
            what = f"; Headrace's is {target.dotted!r}." if target else ", which has no counterpart in Headrace."
            yield self._about(node, f"the text {text!r} names something of Beam's{what}", needs_person=bool(target))

    def _calls(self) -> Iterator[Finding]:
        for call in self._imports.calls:
            name = call.func.value if isinstance(call.func, libcst.Name) else ""
            if name in ("isinstance", "issubclass") and len(call.args) == 2:
                yield from self._check_of_class(name, call.args[1].value)
            elif name in ("getattr", "setattr", "hasattr") and len(call.args) > 1:
                yield from self._lookup(name, call)
        if self._rewriting.fates:
            for call in [call for call in self._imports.calls if matchers.matches(call, _UNPICKLING)][:1]:
                yield self._about(call, _PICKLED, needs_person=False)

    def _check_of_class(self, name: str, classes: libcst.BaseExpression) -> Iterator[Finding]:
        span = self._imports.spans[classes]
        for use in self._imports.uses:
            is_within = span.start <= use.spans[0].start < span.start + span.length
            is_class = is_inference(use.path) and len(use.path) > 3 and use.path[-1] != _OF_BOTH
            if not is_within or not is_class or use.node is None:
                continue
            if not self._rewriting.stays(use):
                message = f"{name}(..., {use.path[-1]}) is False for objects of the handlers that stay Beam's."
                yield self._about(use.node, message, if_beam_stays=True)
            elif module_for(use.path[3]):
                message = f"{name}(..., {use.path[-1]}) is about a class of Beam's, which no object of Headrace's has."
                yield self._about(use.node, message)

    def _lookup(self, name: str, call: libcst.Call) -> Iterator[Finding]:
        use = next((use for use in self._imports.uses if use.node is call.args[0].value), None)
        if use is None or not is_inference(use.path) or len(use.path) > 4:
            return
        attribute = call.args[1].value
        text = attribute.evaluated_value if isinstance(attribute, libcst.SimpleString) else None
        if text is None:
            yield self._about(call, f"{name}({use.path[-1]}, ...) looks a name up while running: check it.")
        elif not find_counterpart((*use.path, str(text))):
            yield self._about(call, f"{name}({use.path[-1]}, {text!r}): Headrace has no counterpart of this name.")

    def _packages(self) -> Iterator[Finding]:
        """Other packages of Beam's that run inference."""
        for statement in self._imports.statements:
            module = statement.module if isinstance(statement, libcst.ImportFrom) else statement.names[0].name
            dotted = self._module.code_for_node(module).split(".") if module else []
            if tuple(dotted[:2]) == INFERENCE[:2] and len(dotted) > 2 and dotted[2] in _RUN_INFERENCE:
                name = _RUN_INFERENCE[dotted[2]]
                message = f"Beam's {name} stays; where it runs a model, it uses Beam's RunInference."
                yield self._about(statement, message, needs_person=False)

    def _about(
        self, node: libcst.CSTNode, message: str, *, needs_person: bool = True, if_beam_stays: bool = False
    ) -> Finding:
        before = self._content[: self._imports.spans[node].start].decode()
        column = len(before.rpartition("\n")[2]) + 1
        return Finding(before.count("\n") + 1, column, message, needs_person, if_beam_stays)


def _staying(path: tuple[str, ...]) -> str:
    """What to say of a name, or a module, that has no counterpart."""
    dotted = ".".join(path[3:]) or "inference"
    if len(path) > 3 and module_for(path[3]) is None:
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
