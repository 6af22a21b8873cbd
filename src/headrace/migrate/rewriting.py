"""What becomes of each import that leads to Beam's inference package, and of each use of what it binds.

The decisions become edits of the text; what no edit touches stays as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import libcst

from headrace.migrate.imports import Binding, FileImports, Statement, Use
from headrace.migrate.names import Counterpart, find_counterpart, is_inference, names_in


@dataclass
class Fate:
    """What becomes of one binding."""

    keep: bool = True
    moves_to: tuple[str, str] | None = None
    """``from module import name`` takes its place, or with an empty name ``import module``, under the same name."""
    adds: dict[str, None] = field(default_factory=dict)
    """Modules to import beside it, or in its place; in this order."""


class Rewriting:
    """The decisions for a file.

    An imported class or function moves by itself. A module is exchanged under its name in the file if its counterpart
    has all that is used of it; else, as with a package, each chain of attributes is rewritten by itself.
    """

    def __init__(self, imports: FileImports) -> None:
        self._uses: dict[Binding, list[Use]] = {binding: [] for binding in imports.bindings}
        for use in imports.uses:
            for binding in use.bindings:
                self._uses[binding].append(use)
        self.chains: dict[Use, Counterpart] = {}
        """The uses whose text changes."""
        self.fates = {binding: self._decide(binding) for binding in imports.bindings}

    def stays(self, use: Use) -> bool:
        """Whether a use still means something in Beam's package, or may."""
        return is_inference(use.path) and use not in self.chains and any(self.fates[one].keep for one in use.bindings)

    def _decide(self, binding: Binding) -> Fate:
        target = find_counterpart(binding.path)
        if target and target.consumed < len(binding.path):  # from a class of Beam's: no import statement does that
            return Fate()
        if target and (target.name or self._fits(binding, target.module)):
            return Fate(keep=False, moves_to=(target.module, target.name))
        if len(binding.path) > 4:
            return Fate()
        return self._decide_chains(binding)

    def _fits(self, binding: Binding, module: str) -> bool:
        depth = len(binding.path)
        used = [use.path for use in self._uses[binding] if len(use.path) > depth]
        return all(find_counterpart(path) and path[depth] in names_in(module) for path in used)

    def _decide_chains(self, binding: Binding) -> Fate:
        fate = Fate()
        for use in self._uses[binding]:
            target = find_counterpart(use.path)
            is_clear = len({one.path for one in use.bindings}) == 1
            if target and is_clear and target.consumed > len(binding.path):
                self.chains[use] = target
                fate.adds[target.module] = None
        left = [use for use in self._uses[binding] if use not in self.chains]
        loads = find_counterpart(binding.imported[:4])
        if not left and not fate.adds and loads and binding.path != binding.imported:
            fate.adds[loads.module] = None  # an import that is there only to load the module
        fate.keep = bool(left) or not fate.adds
        return fate


@dataclass(frozen=True, order=True)
class Edit:
    """Replaces bytes of the text."""

    start: int
    end: int
    text: str


def apply_edits(content: bytes, edits: Iterable[Edit]) -> bytes:
    """The content with all edits made; they do not overlap."""
    for edit in sorted(edits, reverse=True):
        content = content[: edit.start] + edit.text.encode() + content[edit.end :]
    return content


class Editor:
    """Makes the edits of a file."""

    def __init__(self, imports: FileImports, rewriting: Rewriting, content: bytes) -> None:
        self._imports = imports
        self._rewriting = rewriting
        self._content = content
        self._newline = imports.module.default_newline
        self._is_taken = imports.is_taken("headrace")
        """Whether the file uses the name ``headrace`` for something else."""
        self._there: dict[libcst.CSTNode, set[str]] = {}
        """By block: the modules that its ``import`` statements name, those that edits add included."""

    def edits(self) -> list[Edit]:
        """The edits of import statements, and of chains of attributes."""
        fates = self._rewriting.fates.items()
        changed = dict.fromkeys(one.statement for one, fate in fates if fate.adds or not fate.keep)
        for statement in self._imports.statements:
            if statement not in changed and isinstance(statement, libcst.Import):
                self._modules_beside(statement).update(".".join(one.imported) for one in self._imports.bound[statement])
        edits = [self._statement_edit(statement) for statement in changed]
        return edits + [self._chain_edit(use, target) for use, target in self._rewriting.chains.items()]

    def _modules_beside(self, statement: Statement) -> set[str]:
        block = self._imports.parents[self._imports.parents[statement]]
        return self._there.setdefault(block, set())

    def _chain_edit(self, use: Use, target: Counterpart) -> Edit:
        span = use.spans[target.consumed - len(use.bindings[0].path)]
        module = target.module.replace(".", "_") if self._is_taken else target.module
        return Edit(span.start, span.start + span.length, f"{module}.{target.name}" if target.name else module)

    def _statement_edit(self, statement: Statement) -> Edit:
        bound = {one: self._rewriting.fates.get(one, Fate()) for one in self._imports.bound[statement]}
        if isinstance(statement, libcst.ImportFrom) and statement.module and (module := _common_module(bound)):
            span = self._imports.spans[statement.module]
            return Edit(span.start, span.start + span.length, module)
        span = self._imports.spans[statement]
        indent = self._content[: span.start].decode().rpartition("\n")[2]
        line = self._imports.parents[statement]
        is_alone = not indent.strip() and isinstance(line, libcst.SimpleStatementLine) and len(line.body) == 1
        separator = self._newline + indent if is_alone else "; "
        if all(fate.keep for fate in bound.values()):
            added = [separator + line for line in self._added(statement, bound)]
            end = span.start + span.length
            comment = self._content[end:].partition(b"\n")[0].removesuffix(b"\r") if added and is_alone else b""
            return Edit(end + len(comment), end + len(comment), "".join(added))
        comments = re.findall(r"#[^\r\n]*", self._imports.module.code_for_node(statement)) if is_alone else []
        text = "\n".join([*comments, *self._lines(statement, bound)]).replace("\n", separator)
        if is_alone and not text:
            after = self._content.find(b"\n", span.start) + 1 or len(self._content)
            return Edit(span.start - len(indent), after, "")
        return Edit(span.start, span.start + span.length, text)

    def _lines(self, statement: Statement, bound: Mapping[Binding, Fate]) -> Iterator[str]:
        yield from self._kept(statement, [one for one, fate in bound.items() if fate.keep])
        moved: dict[str, list[str]] = {}
        for binding, fate in bound.items():
            if not fate.moves_to:
                continue
            module, name = fate.moves_to
            if name or isinstance(statement, libcst.ImportFrom):
                package, _, last = (module, "", name) if name else module.rpartition(".")
                moved.setdefault(package, []).append(last if last == binding.local else f"{last} as {binding.local}")
            else:
                yield f"import {module} as {binding.local}"
        for package, names in moved.items():
            yield f"from {package} import {', '.join(names)}"
        yield from self._added(statement, bound)

    def _kept(self, statement: Statement, kept: list[Binding]) -> Iterator[str]:
        code = self._imports.module.code_for_node
        names = [code(one.alias.with_changes(comma=libcst.MaybeSentinel.DEFAULT)) for one in kept]
        if names and isinstance(statement, libcst.Import):
            yield f"import {', '.join(names)}"
        elif names and isinstance(statement, libcst.ImportFrom) and statement.module:
            yield f"from {code(statement.module)} import {', '.join(names)}"

    def _added(self, statement: Statement, bound: Mapping[Binding, Fate]) -> Iterator[str]:
        """Imports of the modules that rewritten chains begin with, unless the same block has them."""
        there = self._modules_beside(statement)
        for module in dict.fromkeys(module for fate in bound.values() for module in fate.adds):
            if module not in there:
                there.add(module)
                is_renamed = self._is_taken and module.startswith("headrace.")
                yield f"import {module} as {module.replace('.', '_')}" if is_renamed else f"import {module}"


def _common_module(bound: Mapping[Binding, Fate]) -> str | None:
    """The module to which all names move, and keep their names; None if they do not."""
    modules = {fate.moves_to[0] for fate in bound.values() if fate.moves_to}
    same = all(fate.moves_to and fate.moves_to[1] == one.path[-1] and not fate.adds for one, fate in bound.items())
    return modules.pop() if len(modules) == 1 and same else None
