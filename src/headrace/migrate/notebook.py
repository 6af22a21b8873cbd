"""Moves the code cells of a notebook over, as one source: what one cell imports, others use."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace.migrate.findings import Finding
from headrace.migrate.names import extras_in
from headrace.migrate.source import MigratedSource, is_python, migrate_source

_MARK = "# headrace: cell {}"
_HIDDEN = "pass  # headrace: hidden "
_MAGIC = re.compile(r"([ \t]*)(?:[%!?]|[\w, ]+=\s*[%!]|[\w.]+\?{1,2}$)")
"""``%magic``, ``!command``, ``?help`` and ``help?``, and names for what they give."""
_PYTHON_MAGICS = re.compile(r"%%(?:time|timeit|capture|prun)\b")
_LAYOUTS = [(indent, ascii_only) for indent in (1, 2, 4, None) for ascii_only in (False, True)]
"""How notebooks are written; the first is Jupyter's way."""


def migrate_notebook(text: str) -> MigratedSource:
    """Moves a notebook over, given and returned as JSON. Findings name the cell and the line in it."""
    try:
        notebook = json.loads(text)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError):
        is_of_interest = "apache_beam.ml" in text
        finding = Finding(1, 0, "is not a notebook of format 4; nothing is changed.")
        return MigratedSource(text, (finding,) if is_of_interest else ())
    if "inference" not in text or "apache_beam" not in text:
        return MigratedSource(text, extras=extras_in("\n".join(sources)))
    hidden = [_hide(source) for source in sources]
    broken = [number for number, cell in enumerate(hidden) if not is_python(cell)]
    for number in broken:
        hidden[number] = _as_comment(sources[number])
    joined = "".join(f"{_MARK.format(number)}\n{cell}\n" for number, cell in enumerate(hidden))
    moved = migrate_source(joined)
    findings = (
        *(Finding(0, 0, f"code cell {number + 1} cannot be parsed, and is left as it is.") for number in broken),
        *(_in_cell(finding, joined) for finding in moved.findings),
    )
    if moved.text == joined:
        return replace(moved, text=text, findings=findings)
    for cell, old, new in zip(cells, sources, _split(moved.text, len(cells)), strict=True):
        if new != old:
            cell["source"] = new if isinstance(cell["source"], str) else new.splitlines(keepends=True)
    return replace(moved, text=_as_json(notebook, text), findings=findings)


def _hide(source: str) -> str:
    """The cell with what is no Python in comments."""
    if source.startswith("%%") and not _PYTHON_MAGICS.match(source):
        return _as_comment(source)
    return "\n".join(_hidden_lines(source))


def _as_comment(source: str) -> str:
    return "\n".join(f"# {_HIDDEN}{line}" for line in source.split("\n"))


def _hidden_lines(source: str) -> Iterator[str]:
    indent, goes_on = "", False
    for line in source.split("\n"):
        found = _MAGIC.match(line)
        if not goes_on and not found:
            yield line
            continue
        if found and not goes_on:
            indent = found[1]
        goes_on = line.endswith("\\")
        yield f"{indent}{_HIDDEN}{line}"


def _split(joined: str, count: int) -> Iterator[str]:
    """The cells of a joined text, with what was hidden."""
    marks = "|".join(re.escape(_MARK.format(number)) for number in range(count))
    for cell in re.split(rf"^(?:{marks})\n", joined, flags=re.MULTILINE)[1:]:
        yield re.sub(rf"^(?:[ \t]*|# ){re.escape(_HIDDEN)}", "", cell.removesuffix("\n"), flags=re.MULTILINE)


def _in_cell(finding: Finding, joined: str) -> Finding:
    starts = [number for number, line in enumerate(joined.split("\n"), 1) if line.startswith(_MARK.format(""))]
    cell = max(bisect_right(starts, finding.line), 1)
    where = f"code cell {cell}, line {finding.line - starts[cell - 1]}"
    return replace(finding, line=0, column=0, message=f"{where}: {finding.message}")


def _as_json(notebook: Any, text: str) -> str:
    """The notebook as JSON, in the layout of its old text."""
    end = "\n" if text.endswith("\n") else ""
    old = json.loads(text)
    for indent, ascii_only in _LAYOUTS:
        if json.dumps(old, indent=indent, ensure_ascii=ascii_only) + end == text:
            return json.dumps(notebook, indent=indent, ensure_ascii=ascii_only) + end
    return json.dumps(notebook, indent=_LAYOUTS[0][0], ensure_ascii=_LAYOUTS[0][1]) + end
