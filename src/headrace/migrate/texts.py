"""Beam's names within text: dotted names, and import statements of code that is text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst

from headrace.migrate.definitions import complaint_about
from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import Counterpart, find_counterpart, module_for

_NAME = re.compile(r"apache_beam\.ml\.inference(?:\.\w+)*(?::[\w.]+)?")
_BEGINNING = re.compile(r"apache_beam\.ml\.inference\.(?:[\w.{}]*\.)?(?:[\w.]*\{\}[\w.{}]*)?")
"""A dotted name that is put together while running: the rest is added, or stands in braces."""
_IMPORT = re.compile(
    r"(?:^|;)[ \t>.]*((?:from[ \t]+apache_beam\.ml\.inference[\w.{}]*[ \t]+import\b"
    r"|import[ \t]+apache_beam\.ml\.inference|from[ \t]+apache_beam\.ml[ \t]+import[ \t]+inference\b)[^\n;]*)",
    re.MULTILINE,
)
_Text = libcst.SimpleString | libcst.ConcatenatedString | libcst.FormattedString


def text_findings(imports: FileImports) -> Iterator[Finding]:
    """Texts that name something of Beam's."""
    for node in imports.nodes_of(libcst.SimpleString, libcst.ConcatenatedString, libcst.FormattedString):
        if isinstance(imports.parents[node], libcst.ConcatenatedString):
            continue
        text = _content(node)
        if _NAME.fullmatch(text):
            yield _about_name(imports, node, text)
        elif _BEGINNING.fullmatch(text):
            yield imports.finding(node, f"the text {text!r} becomes a name of Beam's while running: write Headrace's.")
        else:
            yield from _about_imports(imports, node, text)


def _content(node: libcst.BaseExpression) -> str:
    """What a literal says, with ``{}`` where an f-string has a value."""
    if isinstance(node, libcst.ConcatenatedString):
        return _content(node.left) + _content(node.right)
    if isinstance(node, libcst.FormattedString):
        return "".join(one.value if isinstance(one, libcst.FormattedStringText) else "{}" for one in node.parts)
    text = node.evaluated_value if isinstance(node, libcst.SimpleString) else ""
    return text.decode("latin-1") if isinstance(text, bytes) else text


def _about_name(imports: FileImports, node: libcst.CSTNode, text: str) -> Finding:
    path = re.split("[.:]", text)
    about = f"the text {text!r} names something of Beam's"
    if target := find_counterpart(path):
        ours = ".".join([target.dotted, *path[target.consumed :]])
        return imports.finding(node, f"{about}; Headrace's is {ours!r}.")
    module = module_for(path[3]) if len(path) > 4 else None
    if module:
        return imports.finding(node, f"{about}, which the moved code does not use: name what {module} has.")
    missing = complaint_about(path)
    return imports.finding(node, missing or f"{about}, which stays.", needs_person=bool(missing))


def _about_imports(imports: FileImports, node: libcst.CSTNode, text: str) -> Iterator[Finding]:
    code = imports.wrapper.module.code_for_node(node)
    place = 0
    for found in _IMPORT.finditer(text):
        statement = found[1].strip()
        place = max(code.find(statement, place), place)
        new = "Headrace's" if "{}" in statement.partition(" import")[0] else _moved(statement)
        is_documentation = isinstance(imports.parents[node], libcst.Expr)  # a statement by itself, as docstrings are
        if is_documentation and not new:
            continue
        what = "this documentation" if is_documentation else "code within this text"
        message = f"{what} imports from Beam's package: write {new}." if new else f"{what} imports what stays Beam's."
        needs_person = bool(new) and not is_documentation
        yield imports.finding(node, message, needs_person=needs_person, at=len(code[:place].encode()))
        place += 1


def _moved(statement: str) -> str:
    """The import statements to write instead, in quotes; empty if nothing of it moves, or it cannot be known."""
    try:
        (node,) = ast.parse(statement.rstrip("(, \t")).body
    except (SyntaxError, ValueError):
        module = find_counterpart(statement.split()[1].split("."))
        return f"'from {module.dotted} import ...'" if module else ""
    assert isinstance(node, ast.Import | ast.ImportFrom)
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    statements: dict[str, list[str]] = {}
    for alias in node.names:
        if target := find_counterpart((prefix + alias.name).split(".")):
            beginning, name = _import(target, alias, is_from=bool(prefix))
            statements.setdefault(beginning, []).append(name)
    text = "; ".join(f"{beginning} {', '.join(names)}" for beginning, names in statements.items())
    return text and f"'{text}'"


def _import(target: Counterpart, alias: ast.alias, *, is_from: bool) -> tuple[str, str]:
    """The beginning of a statement, and the name that it imports."""
    if not target.name and not is_from:
        return "import", target.module + (f" as {alias.asname}" if alias.asname else "")
    module, _, last = (target.module, "", target.name) if target.name else target.module.rpartition(".")
    local = alias.asname or alias.name
    return f"from {module} import", last + (f" as {local}" if local != last else "")
