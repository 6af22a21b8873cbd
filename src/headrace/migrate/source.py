"""Moves one Python source over: its text in; its new text, and what a person has to know, out."""

from __future__ import annotations

from dataclasses import dataclass

import libcst

from headrace.migrate.advice import advice_findings, beam_stays
from headrace.migrate.imports import FileImports, Finding
from headrace.migrate.rewriting import Editor, Rewriting, apply_edits


@dataclass(frozen=True)
class MigratedSource:
    """What became of a source."""

    text: str
    """The same text as before if there is nothing to move."""
    findings: tuple[Finding, ...] = ()
    """In the order of the text."""
    beam_stays: bool = False
    """Whether a handler of Beam's is left."""


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
    return MigratedSource(text, (finding,), beam_stays=True)


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
    findings = sorted(set(advice_findings(imports, rewriting)), key=lambda one: (one.line, one.column, one.message))
    return MigratedSource(new, tuple(findings), beam_stays(imports, rewriting))
