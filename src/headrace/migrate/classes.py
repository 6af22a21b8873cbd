"""Checks of an object's class: Headrace's class and Beam's of the same name are two classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst
from libcst import matchers

from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import is_inference, module_for
from headrace.migrate.rewriting import Rewriting

_OF_BOTH = "RunInferenceDLQ"
"""A class whose objects are instances of Beam's, too."""
_FUNCTIONS = ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance")
_ITS_CLASS = matchers.Call(func=matchers.Name("type")) | matchers.Attribute(attr=matchers.Name("__class__"))


def class_findings(imports: FileImports, rewriting: Rewriting) -> Iterator[Finding]:
    """Where a file asks for the class of an object or of an error."""
    for what, classes in _checks(imports):
        for use in imports.uses_within(classes):
            if not is_inference(use.path) or len(use.path) < 4 or use.path[-1] == _OF_BOTH or use.node is None:
                continue
            check = what.format(use.path[-1])
            if not rewriting.stays(use):
                message = f"{check} does not match Beam's objects: name Beam's class, too."
                yield imports.finding(use.node, message, if_beam_stays=True)
            elif module_for(use.path[3]):
                message = f"{check} asks for a class of Beam's, which no object of Headrace's has: remove the check."
                yield imports.finding(use.node, message)


def _checks(imports: FileImports) -> Iterator[tuple[str, libcst.CSTNode]]:
    """Each check: how to name it, and the part of the file that has the classes."""
    for node in imports.nodes_of(libcst.Call):
        function = node.func.attr if isinstance(node.func, libcst.Attribute) else node.func
        name = function.value if isinstance(function, libcst.Name) else ""
        if name in _FUNCTIONS and len(node.args) > 1:
            yield f"{name}(..., {{}})", node.args[1].value
        elif name in ("assertIs", "assertEqual", "assertIsNot") and _of_class(arg.value for arg in node.args):
            yield "type(...) == {}", node
    for comparison in imports.nodes_of(libcst.Comparison):
        if _of_class([comparison.left, *(one.comparator for one in comparison.comparisons)]):
            yield "type(...) == {}", comparison
    caught = [one.type for one in imports.nodes_of(libcst.ExceptHandler)]
    for classes in (*caught, *(one.type for one in imports.nodes_of(libcst.ExceptStarHandler))):
        if classes is not None:
            yield "except {}", classes
    for pattern in imports.nodes_of(libcst.MatchClass):
        yield "case {}(...)", pattern.cls


def _of_class(nodes: Iterable[libcst.CSTNode]) -> bool:
    return any(matchers.matches(node, _ITS_CLASS) for node in nodes)
