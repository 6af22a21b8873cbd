"""What rewriting cannot settle: names that stay, lookups while running, checks of an object's class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst
from libcst import matchers

from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import REMOTE, complaint_about, find_counterpart, is_inference, module_for
from headrace.migrate.rewriting import Rewriting

_STAR = "import * from Beam's package stays: name what the file uses, and run this again."
_OF_BOTH = "RunInferenceDLQ"
"""A class whose objects are instances of Beam's, too."""
_ASK_FOR_CLASSES = ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance")
_ITS_CLASS = matchers.Call(func=matchers.Name("type")) | matchers.Attribute(attr=matchers.Name("__class__"))


def beam_stays(imports: FileImports, rewriting: Rewriting) -> bool:
    """Whether something of Beam's package is left in the file, whose objects are of Beam's classes."""
    return bool(imports.stars) or any(
        [fate.keep and len(one.path) > 3 and is_inference(one.path) for one, fate in rewriting.fates.items()]
        + [rewriting.stays(use) and len(use.path) > 4 for use in imports.uses]
    )


def advice_findings(imports: FileImports, rewriting: Rewriting) -> Iterator[Finding]:
    """All findings, in no order."""
    yield from _imports_that_stay(imports, rewriting)
    yield from _uses_that_stay(imports, rewriting)
    yield from _lookups(imports)
    yield from _class_checks(imports, rewriting)


def _imports_that_stay(imports: FileImports, rewriting: Rewriting) -> Iterator[Finding]:
    used = {one.local for use in imports.uses for one in use.bindings}
    for binding, fate in rewriting.fates.items():
        if fate.keep and is_inference(binding.path) and (len(binding.path) > 4 or binding.local not in used):
            yield _staying(imports, binding.alias, binding.path)
    for star in imports.stars:
        yield imports.finding(star, _STAR)


def _uses_that_stay(imports: FileImports, rewriting: Rewriting) -> Iterator[Finding]:
    seen = set()
    for use in imports.uses:
        if not rewriting.stays(use) or len(use.bindings[0].path) > 4:
            continue
        path = use.path[:5]
        if path not in seen and use.node is not None:
            seen.add(path)
            yield _staying(imports, use.node, path)


def _staying(imports: FileImports, node: libcst.CSTNode, path: tuple[str, ...]) -> Finding:
    """About a name, or a module, that has no counterpart."""
    missing = complaint_about(path)
    is_private = _is_private_class(path)
    about = f"{'.'.join(path[3:]) or 'inference'} stays Beam's"
    if len(path) > 3 and module_for(path[3]) is None and path[-1].endswith("Handler"):
        about += ": Headrace has no counterpart, and runs Beam's handlers as they are."
    elif path[-1] == REMOTE:
        about += ": Headrace's sends several requests at a time, which the client has to allow."
    elif is_private:
        about += ": Headrace has no counterpart of this private class; look at what uses it."
    else:
        about += ", and works as it is: Headrace has no counterpart."
    return imports.finding(node, missing or about, needs_person=bool(missing) or is_private)


def _is_private_class(path: tuple[str, ...]) -> bool:
    """Whether a name is that of a class on which code cannot rely: Headrace's objects are of other classes."""
    name = path[-1]
    return name.startswith("_") and name[1:2].isupper() and not name.isupper() and module_for(path[3]) is not None


def _lookups(imports: FileImports) -> Iterator[Finding]:
    """``getattr`` and the like, of a module."""
    by_node = {use.node: use for use in imports.uses if use.node and is_inference(use.path) and len(use.path) < 5}
    for call in imports.nodes_of(libcst.Call):
        name = call.func.value if isinstance(call.func, libcst.Name) else ""
        if name not in ("getattr", "setattr", "hasattr") or len(call.args) < 2 or call.args[0].value not in by_node:
            continue
        path, attribute = by_node[call.args[0].value].path, call.args[1].value
        text = attribute.evaluated_value if isinstance(attribute, libcst.SimpleString) else None
        if text is None:
            yield imports.finding(call, f"{name}({path[-1]}, ...) looks a name up while running: check it.")
        elif not find_counterpart((*path, str(text))):
            yield imports.finding(call, f"{name}({path[-1]}, {text!r}): Headrace has no counterpart of this name.")


def _class_checks(imports: FileImports, rewriting: Rewriting) -> Iterator[Finding]:
    """Where a file asks for the class of an object: Headrace's class and Beam's of the same name are two classes."""
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
        if name in _ASK_FOR_CLASSES and len(node.args) > 1:
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
