"""Moves one Python source over: its text in; its new text, and what a person has to know, out.

That is what rewriting cannot settle: names that stay, lookups while running, class checks, texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst
from libcst import matchers

from headrace.migrate.imports import FileImports, Finding
from headrace.migrate.names import REMOTE, find_counterpart, is_inference, module_for
from headrace.migrate.rewriting import Editor, Rewriting, apply_edits

_STAR = "import * from Beam's package stays: name what the file uses, and run this again."
_OF_BOTH = "RunInferenceDLQ"
"""A class whose objects are instances of Beam's, too."""
_ASK_FOR_CLASSES = ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance")
_ITS_CLASS = matchers.Call(func=matchers.Name("type")) | matchers.Attribute(attr=matchers.Name("__class__"))
_NAME = re.compile(r"apache_beam\.ml\.inference(?:[.:][\w.{}]*)?")
_IMPORT = re.compile(
    r"(?:^|;)[ \t>.]*(?:from|import)[ \t]+apache_beam\.ml(?:\.inference|[ \t]+import[ \t]+inference\b)", re.MULTILINE
)


@dataclass(frozen=True)
class MigratedSource:
    """What became of a source."""

    text: str
    """The same text as before if there is nothing to move."""
    findings: tuple[Finding, ...] = ()
    """In the order of the text."""


def migrate_source(text: str) -> MigratedSource:
    """Moves the text of a Python file over, decoded and without a byte order mark. Never raises."""
    if "inference" not in text or "apache_beam" not in text:
        return MigratedSource(text)
    try:
        module = libcst.parse_module(text)
        if not text.startswith(module.code.rstrip()):  # LibCST loses spaces at the end
            raise ValueError("its text would not stay the same")
        return _migrate_module(module, text)
    except libcst.ParserSyntaxError as error:
        finding = Finding(error.raw_line, 0, "cannot be parsed as Python; nothing is changed.")
    except Exception as error:  # one odd file must not stop the others
        finding = Finding(1, 0, f"cannot be moved ({type(error).__name__}: {error}); nothing is changed.")
    return MigratedSource(text, (finding,))


def is_python(text: str) -> bool:
    """Whether a text can be parsed."""
    try:
        libcst.parse_module(text)
    except Exception:
        return False
    return True


def _migrate_module(module: libcst.Module, text: str) -> MigratedSource:
    imports = FileImports(module)
    content = text.encode()
    rewriting = Rewriting(imports)
    edits = Editor(imports, rewriting, content).edits()
    new = apply_edits(content, edits).decode()
    libcst.parse_module(new)  # raises if an edit went wrong
    findings = sorted(set(_findings(imports, rewriting)), key=lambda one: (one.line, one.column, one.message))
    return MigratedSource(new, tuple(findings))


def _findings(imports: FileImports, rewriting: Rewriting) -> Iterator[Finding]:
    yield from _imports_that_stay(imports, rewriting)
    yield from _uses_that_stay(imports, rewriting)
    yield from _lookups(imports)
    yield from _class_checks(imports, rewriting)
    yield from _texts(imports)


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
    about = f"{'.'.join(path[3:]) or 'inference'} stays Beam's"
    is_private_class = path[-1][:1] == "_" and path[-1][1:2].isupper() and not path[-1].isupper()
    if is_private_class and module_for(path[3]):
        message = f"{about}: Headrace has no counterpart of this private class; look at what uses it."
        return imports.finding(node, message)
    if path[-1] == REMOTE:
        about += ": Headrace's sends several requests at a time, which the client has to allow."
    else:
        about += ", and works as it is: Headrace has no counterpart."
    return imports.finding(node, about, needs_person=False)


def _lookups(imports: FileImports) -> Iterator[Finding]:
    """``getattr`` and the like, of a module."""
    by_node = {use.node: use for use in imports.uses if use.node and is_inference(use.path) and len(use.path) < 5}
    for call in imports.nodes_of(libcst.Call):
        name = call.func.value if isinstance(call.func, libcst.Name) else ""
        if name not in ("getattr", "setattr", "hasattr") or len(call.args) < 2 or call.args[0].value not in by_node:
            continue
        path, attribute = by_node[call.args[0].value].path, call.args[1].value
        text = attribute.evaluated_value if isinstance(attribute, libcst.SimpleString) else ""
        if not find_counterpart((*path, str(text))):
            yield imports.finding(call, f"{name}({path[-1]}, ...) looks a name up while running: check it.")


def _class_checks(imports: FileImports, rewriting: Rewriting) -> Iterator[Finding]:
    """Where a file asks for the class of an object: Headrace's class and Beam's of the same name are two classes."""
    for what, classes in _checks(imports):
        for use in imports.uses_within(classes):
            if not is_inference(use.path) or len(use.path) < 4 or use.path[-1] == _OF_BOTH or use.node is None:
                continue
            check = what.format(use.path[-1])
            if not rewriting.stays(use):
                message = (
                    f"{check} does not match Beam's objects: name Beam's class, too, if some of its handlers stay."
                )
                yield imports.finding(use.node, message, needs_person=False)
            elif module_for(use.path[3]):
                message = f"{check} asks for a class of Beam's, which no object of Headrace's has: remove the check."
                yield imports.finding(use.node, message)


def _checks(imports: FileImports) -> Iterator[tuple[str, libcst.CSTNode]]:
    """Each check: how to name it, and the part of the file that has the classes."""
    for call in imports.nodes_of(libcst.Call):
        function = call.func.attr if isinstance(call.func, libcst.Attribute) else call.func
        name = function.value if isinstance(function, libcst.Name) else ""
        if name in _ASK_FOR_CLASSES and len(call.args) > 1:
            yield f"{name}(..., {{}})", call.args[1].value
    for comparison in imports.nodes_of(libcst.Comparison):
        compared = [comparison.left, *(one.comparator for one in comparison.comparisons)]
        if any(matchers.matches(one, _ITS_CLASS) for one in compared):
            yield "type(...) == {}", comparison
    for handler in imports.nodes_of(libcst.ExceptHandler):
        if handler.type is not None:
            yield "except {}", handler.type
    for pattern in imports.nodes_of(libcst.MatchClass):
        yield "case {}(...)", pattern.cls


def _texts(imports: FileImports) -> Iterator[Finding]:
    """Texts that name something of Beam's, and code that is text."""
    for node in imports.nodes_of(libcst.SimpleString, libcst.ConcatenatedString, libcst.FormattedString):
        if isinstance(imports.parents[node], libcst.ConcatenatedString):
            continue
        text = _content(node)
        if _IMPORT.search(text):
            is_documentation = isinstance(imports.parents[node], libcst.Expr)  # a statement by itself
            what = "this documentation" if is_documentation else "code within this text"
            message = f"{what} imports from Beam's package: write Headrace's."
            yield imports.finding(node, message, needs_person=not is_documentation)
        elif _NAME.fullmatch(text):
            path = re.split("[.:]", text)
            target = find_counterpart(path)
            ours = ".".join([target.dotted, *path[target.consumed :]]) if target else ""
            cure = f"Headrace's is {ours!r}." if ours else "Headrace may have another, or none."
            yield imports.finding(node, f"the text {text!r} names something of Beam's; {cure}")


def _content(node: libcst.BaseExpression) -> str:
    """What a literal says, with ``{}`` where an f-string has a value."""
    if isinstance(node, libcst.ConcatenatedString):
        return _content(node.left) + _content(node.right)
    if isinstance(node, libcst.FormattedString):
        return "".join(one.value if isinstance(one, libcst.FormattedStringText) else "{}" for one in node.parts)
    text = node.evaluated_value if isinstance(node, libcst.SimpleString) else ""
    return text.decode("latin-1") if isinstance(text, bytes) else text
