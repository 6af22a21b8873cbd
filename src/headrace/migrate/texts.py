"""Beam's names within text: dotted names, and import statements of code that is text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst

from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import complaint_about, find_counterpart, module_for

_NAME = re.compile(r"apache_beam\.ml\.inference(?:[.:][\w.{}]*)?")
_IMPORT = re.compile(
    r"(?:^|;)[ \t>.]*((?:from[ \t]+apache_beam\.ml\.inference[\w.{}]*[ \t]+import\b"
    r"|import[ \t]+apache_beam\.ml\.inference|from[ \t]+apache_beam\.ml[ \t]+import[ \t]+inference\b)[^\n;]*)",
    re.MULTILINE,
)


def text_findings(imports: FileImports, move: Callable[[str], tuple[str, bool]]) -> Iterator[Finding]:
    """Texts that name something of Beam's.

    Args:
        imports: of the file.
        move: the text of a statement after the move, and whether it could be read.
    """
    for node in imports.nodes_of(libcst.SimpleString, libcst.ConcatenatedString, libcst.FormattedString):
        if isinstance(imports.parents[node], libcst.ConcatenatedString):
            continue
        text = _content(node)
        if not _NAME.fullmatch(text):
            yield from _about_imports(imports, node, text, move)
        elif "{" in text or text.endswith("."):
            yield imports.finding(node, f"the text {text!r} becomes a name of Beam's while running: write Headrace's.")
        else:
            yield _about_name(imports, node, text)


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


def _about_imports(
    imports: FileImports, node: libcst.CSTNode, text: str, move: Callable[[str], tuple[str, bool]]
) -> Iterator[Finding]:
    code = imports.wrapper.module.code_for_node(node)
    is_documentation = isinstance(imports.parents[node], libcst.Expr)  # a statement by itself, as docstrings are
    what = "this documentation" if is_documentation else "code within this text"
    place = 0
    for found in _IMPORT.finditer(text):
        statement = found[1].strip()
        place = max(code.find(statement, place), place)
        moved, is_read = move(statement)
        new = f"'{'; '.join(moved.splitlines())}'" if is_read else "Headrace's"
        stays = is_read and moved == statement
        message = f"{what} imports what stays Beam's." if stays else f"{what} imports from Beam's package: write {new}."
        if not (stays and is_documentation):
            needs_person = not (stays or is_documentation)
            yield imports.finding(node, message, needs_person=needs_person, at=len(code[:place].encode()))
        place += 1
