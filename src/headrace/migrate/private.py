"""Private attributes of Beam's classes in a file, and whether Headrace's classes have them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst

from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import find_counterpart, is_private, private_of_beam, private_of_headrace

_CURE = "use its public arguments and methods, or an attribute of your own."


def private_findings(imports: FileImports) -> Iterator[Finding]:
    """Where a file uses or overrides private attributes of Beam's classes that move."""
    owners = _Owners(imports)
    methods = imports.nodes_of(libcst.FunctionDef)
    nodes: list[libcst.Attribute | libcst.FunctionDef] = [*imports.nodes_of(libcst.Attribute), *methods]
    for node in nodes:
        name = node.attr if isinstance(node, libcst.Attribute) else node.name
        if not is_private(name.value):
            continue
        if isinstance(node, libcst.FunctionDef) or _is_self(node.value):
            is_own, candidates = True, owners.around(node)
        else:
            is_own, candidates = False, owners.of(node.value, name.value)
        theirs = sorted(one for one in candidates if name.value in private_of_beam(one))
        ours = sorted(one for one in candidates if name.value in private_of_headrace(one))
        if theirs:
            what = f"{theirs[0]}.{name.value} is private in Beam"
            if name.value in private_of_headrace(theirs[0]):
                yield imports.finding(name, f"{what}, and exists in Headrace.", needs_person=False)
            else:
                yield imports.finding(name, f"{what}, and missing in Headrace: {_CURE}")
        elif is_own and ours:
            yield imports.finding(name, f"{name.value} is in use by Headrace's {ours[0]}: give yours another name.")


def _is_self(node: libcst.BaseExpression) -> bool:
    return isinstance(node, libcst.Name) and node.value in ("self", "cls")


class _Owners:
    """Which of Beam's classes an expression is, derives from or is an object of, as far as the file shows."""

    def __init__(self, imports: FileImports) -> None:
        self._imports = imports
        self._by_text: dict[str, set[str]] = {}
        """By an expression's text: names of classes, of the file's own derived ones, and of variables."""
        for path, text in imports.names_in_use():
            if len(path) >= 5 and (target := find_counterpart(path[:5])) and target.consumed == 5:
                self._by_text[text] = {path[4]}
        self._named = set().union(*self._by_text.values())
        for node in imports.nodes_of(libcst.ClassDef):
            bases = [
                base.value.value if isinstance(base.value, libcst.Subscript) else base.value for base in node.bases
            ]
            self._by_text[node.name.value] = set().union(*(self._by_text.get(self._text(base), ()) for base in bases))
        for assignment in imports.nodes_of(libcst.Assign):
            made = self._class_made_by(assignment.value) or set()
            for one in assignment.targets:
                if isinstance(one.target, libcst.Name):
                    self._by_text.setdefault(one.target.value, set()).update(made)
        self._own = {
            one.attr.value for one in imports.nodes_of(libcst.Attribute) if _is_self(one.value) and not self.around(one)
        }
        """Attributes of the file's other classes."""

    def around(self, node: libcst.CSTNode) -> set[str]:
        """The classes of Beam's from which the innermost class around a node derives."""
        while node in self._imports.parents:
            node = self._imports.parents[node]
            if isinstance(node, libcst.ClassDef):
                return self._by_text[node.name.value]
        return set()

    def of(self, node: libcst.BaseExpression, attribute: str) -> set[str]:
        """Beam's classes of which an expression may be an object: any that the file names, if it shows nothing."""
        if isinstance(node, libcst.Call) and self._text(node.func) == "super":
            return self.around(node)
        found = self._class_made_by(node) if isinstance(node, libcst.Call) else self._by_text.get(self._text(node))
        return found if found is not None else set() if attribute in self._own else self._named

    def _class_made_by(self, node: libcst.BaseExpression) -> set[str] | None:
        """The classes of the object that a call makes; None if it is unknown."""
        return self._by_text.get(self._text(node.func)) if isinstance(node, libcst.Call) else None

    def _text(self, node: libcst.CSTNode) -> str:
        return self._imports.wrapper.module.code_for_node(node)
