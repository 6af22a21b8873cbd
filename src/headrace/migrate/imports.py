"""Import statements of a Python file, and the uses of the names that they bind; what is found about a place there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from headrace.core.errors import extra_required
from headrace.migrate.names import INFERENCE

with extra_required("migrate"):
    import libcst
    from libcst import matchers
    from libcst.helpers import get_full_name_for_node
    from libcst.metadata import (
        ByteSpanPositionProvider,
        CodeRange,
        CodeSpan,
        ImportAssignment,
        MetadataWrapper,
        ParentNodeProvider,
        PositionProvider,
        Scope,
        ScopeProvider,
    )

NodeT = TypeVar("NodeT", bound=libcst.CSTNode)
Statement = libcst.Import | libcst.ImportFrom
_ABOVE = {INFERENCE[:1], INFERENCE[:2]}


@dataclass(frozen=True)
class Finding:
    """One remark about a place in a file."""

    line: int
    """Counted from 1, in a notebook in the cell; 0: the whole file."""
    column: int
    """Counted from 1; 0: the whole line."""
    message: str
    """What is there, and what to do about it."""
    needs_person: bool = True
    """Whether something is left to do; else the code runs as it is."""
    cell: int = 0
    """The code cell of a notebook, counted from 1; 0: this is about another file."""

    @property
    def place(self) -> str:
        """What follows the file's name."""
        if self.cell:
            return f": code cell {self.cell}" + (f", line {self.line}" if self.line else "")
        return "".join(f":{number}" for number in (self.line, self.column) if number)


@dataclass(frozen=True, eq=False)
class Binding:
    """A name that an import statement binds."""

    statement: Statement
    alias: libcst.ImportAlias
    local: str
    """The name in this file."""
    path: tuple[str, ...]
    """What the name stands for: ``import a.b`` binds ``a``, which stands for ``a``."""
    imported: tuple[str, ...]
    """What is imported: ``import a.b`` imports ``a.b``."""

    @property
    def leads_there(self) -> bool:
        """Whether attributes of the name lead to Beam's inference package, or to something in it."""
        return self.path in _ABOVE or self.path[:3] == INFERENCE


@dataclass(frozen=True, eq=False)
class Use:
    """A place where an imported name is used, with the attributes that follow it."""

    bindings: tuple[Binding, ...]
    """Where the name may come from, in the order of the file."""
    path: tuple[str, ...]
    """What name and attributes stand for."""
    spans: tuple[CodeSpan, ...]
    """Bytes of the text: of the name, of the name with its first attribute, and so on."""
    node: libcst.CSTNode | None
    """The name with all its attributes; None within text, as some annotations are."""


class FileImports:
    """The imports of a file that lead to Beam's inference package, and their uses."""

    def __init__(self, module: libcst.Module) -> None:
        self.module = module
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.spans: Mapping[libcst.CSTNode, CodeSpan] = wrapper.resolve(ByteSpanPositionProvider)
        self._places: Mapping[libcst.CSTNode, CodeRange] = wrapper.resolve(PositionProvider)
        self.parents: Mapping[libcst.CSTNode, libcst.CSTNode] = wrapper.resolve(ParentNodeProvider)
        scopes: Mapping[libcst.CSTNode, Scope | None] = wrapper.resolve(ScopeProvider)
        self.scopes = {scope for scope in scopes.values() if scope is not None}
        self.statements: list[Statement] = self.nodes_of(libcst.Import, libcst.ImportFrom)
        self.bound = {statement: _bindings_of(statement) for statement in self.statements}
        """The names that each statement binds."""
        self.bindings = [one for some in self.bound.values() for one in some if one.leads_there]
        self.uses = sorted((*self._uses(), *self._uses_in_text()), key=lambda use: use.spans[0].start)

    def nodes_of(self, *kinds: type[NodeT]) -> list[NodeT]:
        """The nodes of some kinds, in the order of the file."""
        found = [node for node in self.parents if isinstance(node, kinds)]
        return sorted(found, key=lambda node: self.spans[node].start)

    def finding(self, node: libcst.CSTNode, message: str, *, needs_person: bool = True) -> Finding:
        """A finding about a node."""
        start = self._places[node].start
        return Finding(start.line, start.column + 1, message, needs_person)

    def uses_within(self, node: libcst.CSTNode) -> list[Use]:
        """The uses of names in a part of the file; not those in text."""
        span = self.spans[node]
        end = span.start + span.length
        return [use for use in self.uses if use.node is not None and span.start <= use.spans[0].start < end]

    @property
    def stars(self) -> list[libcst.ImportFrom]:
        """``from apache_beam.ml.inference... import *``."""
        return [
            node
            for node in self.statements
            if isinstance(node, libcst.ImportFrom)
            and isinstance(node.names, libcst.ImportStar)
            and tuple(_module_of(node).split(".")[:3]) == INFERENCE
        ]

    def is_taken(self, name: str) -> bool:
        """Whether the file gives a name to anything but the package of that name."""
        assignments = (one for scope in self.scopes for one in scope.assignments if one.name == name)
        return not all(
            isinstance(one, ImportAssignment)
            and isinstance(one.node, Statement)
            and any(bound.local == name and bound.path == (name,) for bound in self.bound[one.node])
            for one in assignments
        )

    def _uses(self) -> Iterator[Use]:
        places: dict[libcst.Name, set[Binding]] = {}
        for scope in self.scopes:
            for assignment in scope.assignments:
                if not isinstance(assignment, ImportAssignment) or not isinstance(assignment.node, Statement):
                    continue
                bound = [one for one in self.bound[assignment.node] if one.leads_there]
                for access in assignment.references:
                    head = _head(access.node)
                    if head and head in self.parents:  # not in an annotation that is text
                        found = [one for one in bound if one.local == head.value]
                        places.setdefault(head, set()).update(found)
        for name, bindings in places.items():
            if bindings:
                yield self._use(name, tuple(sorted(bindings, key=self.bindings.index)))

    def _use(self, head: libcst.Name, bindings: tuple[Binding, ...]) -> Use:
        nodes: list[libcst.CSTNode] = [head]
        attributes = []
        while isinstance(parent := self.parents[nodes[-1]], libcst.Attribute) and parent.value is nodes[-1]:
            nodes.append(parent)
            attributes.append(parent.attr.value)
        spans = tuple(self.spans[node] for node in nodes)
        return Use(bindings, (*bindings[0].path, *attributes), spans, nodes[-1])

    def _uses_in_text(self) -> Iterator[Use]:
        """Within annotations that are text: those of LibCST have no position."""
        by_local: dict[str, list[Binding]] = {}
        for binding in self.bindings:
            by_local.setdefault(binding.local, []).append(binding)
        for annotation in self.nodes_of(libcst.Annotation):
            for text in matchers.findall(annotation, matchers.SimpleString()):
                assert isinstance(text, libcst.SimpleString)
                for found in re.finditer(r"(?<![\w.])[^\W\d]\w*(?:\.\w+)*", text.value):
                    head, *attributes = found[0].split(".")
                    if head in by_local:
                        spans = tuple(_spans_of(found, text.value, self.spans[text].start))
                        bindings = tuple(by_local[head])
                        yield Use(bindings, (*bindings[0].path, *attributes), spans, None)


def _bindings_of(statement: Statement) -> list[Binding]:
    """The names that a statement binds; none for ``*`` and for relative imports."""
    if isinstance(statement, libcst.Import):
        return [_bound(statement, alias, "") for alias in statement.names]
    if statement.relative or isinstance(statement.names, libcst.ImportStar):
        return []
    return [_bound(statement, alias, f"{_module_of(statement)}.") for alias in statement.names]


def _bound(statement: Statement, alias: libcst.ImportAlias, prefix: str) -> Binding:
    imported = tuple((prefix + alias.evaluated_name).split("."))
    path = imported[:1] if isinstance(statement, libcst.Import) and alias.asname is None else imported
    return Binding(statement, alias, alias.evaluated_alias or path[-1], path, imported)


def _module_of(statement: libcst.ImportFrom) -> str:
    return (statement.module and get_full_name_for_node(statement.module)) or ""


def _head(node: libcst.CSTNode) -> libcst.Name | None:
    while isinstance(node, libcst.Attribute):
        node = node.value
    return node if isinstance(node, libcst.Name) else None


def _spans_of(found: re.Match[str], text: str, start: int) -> Iterator[CodeSpan]:
    """The spans of ``a``, ``a.b`` and so on, of a match of ``a.b...`` within a text that starts at a byte."""
    begin = start + len(text[: found.start()].encode())
    ends = [*(dot.start() for dot in re.finditer(r"\.", found[0])), len(found[0])]
    for end in ends:
        yield CodeSpan(begin, len(found[0][:end].encode()))
