"""Private attributes of Beam's classes in a file, and whether Headrace's classes have them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst

from headrace.migrate.definitions import is_private, private_of_beam, private_of_headrace
from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import find_counterpart

_CURE = "use its public arguments and methods, or an attribute of your own."


def private_findings(imports: FileImports) -> Iterator[Finding]:
    """Where a file uses or overrides private attributes of Beam's classes that move."""
    attributes = [node for node in imports.nodes_of(libcst.Attribute) if is_private(node.attr.value)]
    methods = [node for node in imports.nodes_of(libcst.FunctionDef) if is_private(node.name.value)]
    if not attributes and not methods:
        return
    owners = _Owners(imports)
    for attribute in attributes:
        yield from _about(imports, attribute.attr, owners.of(attribute.value, attribute.attr.value))
        if isinstance(attribute.value, libcst.Name) and attribute.value.value in ("self", "cls"):
            yield from _clashes(imports, attribute.attr, owners.around(attribute))
    for method in methods:
        yield from _about(imports, method.name, owners.around(method) & owners.knowing(method.name.value))
        yield from _clashes(imports, method.name, owners.around(method))


def _about(imports: FileImports, name: libcst.Name, owners: set[str]) -> Iterator[Finding]:
    for owner in sorted(owners)[:1]:
        what = f"{owner}.{name.value} is private in Beam"
        if name.value in private_of_headrace(owner):
            yield imports.finding(name, f"{what}, and exists in Headrace.", needs_person=False)
        else:
            yield imports.finding(name, f"{what}, and missing in Headrace: {_CURE}")


def _clashes(imports: FileImports, name: libcst.Name, owners: set[str]) -> Iterator[Finding]:
    """About a name of the file's own that Headrace's class uses for itself, and Beam's does not."""
    for owner in sorted(owners):
        if name.value in private_of_headrace(owner) - private_of_beam(owner):
            yield imports.finding(name, f"{name.value} is in use by Headrace's {owner}: give yours another name.")
            return


class _Owners:
    """Which of Beam's classes an expression is an object of, as far as the file shows."""

    def __init__(self, imports: FileImports) -> None:
        self._imports = imports
        self._by_node: dict[libcst.CSTNode, str] = {}
        """The expressions that are one of Beam's classes that move, by its name there."""
        for use in imports.uses:
            if use.node is not None and (target := find_counterpart(use.path)) and target.consumed == 5:
                node = use.node
                for _ in use.path[5:]:
                    assert isinstance(node, libcst.Attribute)
                    node = node.value
                self._by_node[node] = use.path[4]
        paths = [
            binding.path for binding in imports.bindings if len(binding.path) == 5 and find_counterpart(binding.path)
        ]
        self._named = {*self._by_node.values(), *(path[4] for path in paths)}
        """Beam's classes that the file names."""
        self._derived: dict[str, set[str]] = {}
        """By the file's own classes: those of Beam's from which they derive."""
        self._own: set[str] = set()
        """Private attributes that classes of the file set which do not derive from Beam's."""
        for node in imports.nodes_of(libcst.ClassDef):
            self._add_class(node)
        self._variables: dict[str, set[str]] = {}
        for assignment in imports.nodes_of(libcst.Assign):
            made = self._made_by(assignment.value)
            for one in assignment.targets:
                if isinstance(one.target, libcst.Name):
                    self._variables.setdefault(one.target.value, set()).update(made)

    def of(self, node: libcst.BaseExpression, attribute: str) -> set[str]:
        """Beam's classes of which ``node`` may be an object, and which have a private attribute."""
        return self._candidates(node, attribute) & self.knowing(attribute)

    def knowing(self, attribute: str) -> set[str]:
        """Beam's classes, named in the file, that have a private attribute."""
        return {name for name in self._named if attribute in private_of_beam(name)}

    def around(self, node: libcst.CSTNode) -> set[str]:
        """The classes of Beam's from which the innermost class around a node derives."""
        while node in self._imports.parents:
            node = self._imports.parents[node]
            if isinstance(node, libcst.ClassDef):
                return self._derived.get(node.name.value, set())
        return set()

    def _candidates(self, node: libcst.BaseExpression, attribute: str) -> set[str]:
        if isinstance(node, libcst.Name) and node.value in ("self", "cls"):
            return self.around(node)
        if isinstance(node, libcst.Call):
            is_super = isinstance(node.func, libcst.Name) and node.func.value == "super"
            return self.around(node) if is_super else self._made_by(node)
        if isinstance(node, libcst.Name) and node.value in self._variables:
            return self._variables[node.value]
        return self._class_of(node) or (set() if attribute in self._own else self._named)

    def _made_by(self, node: libcst.BaseExpression) -> set[str]:
        """The classes of the object that a call makes."""
        return self._class_of(node.func) if isinstance(node, libcst.Call) else set()

    def _class_of(self, node: libcst.BaseExpression) -> set[str]:
        """Beam's classes that an expression is, or from which it derives."""
        if node in self._by_node:
            return {self._by_node[node]}
        return self._derived.get(node.value, set()) if isinstance(node, libcst.Name) else set()

    def _add_class(self, node: libcst.ClassDef) -> None:
        bases = [base.value.value if isinstance(base.value, libcst.Subscript) else base.value for base in node.bases]
        found = set().union(*map(self._class_of, bases))
        self._derived[node.name.value] = found
        if not found:
            span = self._imports.spans[node]
            for one in self._imports.nodes_of(libcst.Attribute):
                if span.start <= self._imports.spans[one].start < span.start + span.length:
                    self._own.add(one.attr.value)
