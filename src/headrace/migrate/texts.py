"""Beam's names within text: dotted names, and import statements of code that is text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst

from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import complaint_about, find_counterpart, module_for

_NAME = re.compile(r"apache_beam\.ml\.inference(?:[.:][\w.{}]*)?")
_IMPORT = re.compile(
    r"(?:^|;)[ \t>.]*(?:from|import)[ \t]+apache_beam\.ml(?:\.inference|[ \t]+import[ \t]+inference\b)", re.MULTILINE
)


def text_findings(imports: FileImports) -> Iterator[Finding]:
    """Texts that name something of Beam's."""
    for node in imports.nodes_of(libcst.SimpleString, libcst.ConcatenatedString, libcst.FormattedString):
        if isinstance(imports.parents[node], libcst.ConcatenatedString):
            continue
        text = _content(node)
        if _IMPORT.search(text):
            yield _about_import(imports, node)
        elif _NAME.fullmatch(text) and ("{" in text or text.endswith(".")):
            yield imports.finding(node, f"the text {text!r} becomes a name of Beam's while running: write Headrace's.")
        elif _NAME.fullmatch(text):
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


def _about_import(imports: FileImports, node: libcst.CSTNode) -> Finding:
    is_documentation = isinstance(imports.parents[node], libcst.Expr)  # a statement by itself, as docstrings are
    what = "this documentation" if is_documentation else "code within this text"
    return imports.finding(
        node, f"{what} imports from Beam's package: write Headrace's.", needs_person=not is_documentation
    )
