"""Moves the code cells of a notebook over: as one source, but for those that write a file; each file is a source."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple

from headrace.migrate.findings import Finding
from headrace.migrate.names import INFERENCE, extras_in, uses_headrace
from headrace.migrate.project import BEAM, findings_about, is_of_interest, missing_requirement
from headrace.migrate.source import MigratedSource, is_python, migrate_source

_MARK = "# headrace: cell {}"
_HIDDEN = "pass  # headrace: hidden "
_MAGIC = re.compile(r"([ \t]*)(?:[%!?]|[\w, ]+=\s*[%!]|[\w.]+\?{1,2}$)")
"""``%magic``, ``!command``, ``?help`` and ``help?``, and names for what they give."""
_PYTHON_MAGICS = re.compile(r"%%(?:time|timeit|capture|prun)\b")
_WRITE_FILE = re.compile(
    r"\s*%%(?:writefile|file)[ \t]+(?P<more>(?:-a|--append)[ \t]+)?(?P<name>'[^'\n]*'|\"[^\"\n]*\"|\S+)[^\n]*\n"
)
_INSTALL = re.compile(r"^[^#\n]*\b(?:pip3?|conda|mamba)[ \t]+install\b(?:[^\\\n]|\\[^\n]|\\\n)*", re.MULTILINE)
_LAYOUTS = [(indent, ascii_only) for indent in (1, 2, 4, None) for ascii_only in (False, True)]
"""How notebooks are written; the first is Jupyter's way."""


class _Part(NamedTuple):
    """A code cell, as a part of a program."""

    number: int
    """Of the cell, counted from 1."""
    file: str
    """The file that the cell writes; empty: it runs in the notebook."""
    head: str
    """The line that says so."""
    body: str

    def finding(self, line: int, message: str, *, needs_person: bool = True) -> Finding:
        """A finding about a line of the body, counted from 1; 0: the whole cell."""
        return Finding(line and line + self.head.count("\n"), 0, message, needs_person, cell=self.number)


def migrate_notebook(text: str) -> MigratedSource:
    """Moves a notebook over, given and returned as JSON. Findings name the cell and the line in it."""
    may_name_beam = "inference" in text and "apache_beam" in text
    try:
        notebook = json.loads(text)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError):
        finding = Finding(1, 0, "is not a notebook of format 4; nothing is changed.")
        return MigratedSource(text, (finding,) if "apache_beam.ml" in text else ())
    new, findings, beam_stays = list(sources), [], False
    for parts in _programs(sources) if may_name_beam else ():
        if parts[0].file.endswith(".py") or not parts[0].file:
            bodies, found, stays = _migrate_program(parts)
            findings += found
            beam_stays = beam_stays or stays
            for part, body in zip(parts, bodies, strict=True):
                new[part.number - 1] = part.head + body
        else:
            findings += (finding for part in parts for finding in _naming_beam(part, part.body.split("\n")))
    code = "\n".join(new)
    extras = extras_in(code)
    if uses_headrace(code):
        findings += _about_installing(_programs(new), set(extras))
    for cell, old, source in zip(cells, sources, new, strict=True):
        if source != old:
            cell["source"] = source if isinstance(cell["source"], str) else source.splitlines(keepends=True)
    changed = _as_json(notebook, text) if new != sources else text
    findings.sort(key=lambda one: (one.cell, one.line))
    return MigratedSource(changed, tuple(findings), beam_stays, extras)


def _programs(sources: list[str]) -> list[list[_Part]]:
    """The cells that run in the notebook, and those that write a file, by file."""
    programs = []
    by_file: dict[str, list[_Part]] = {}
    for number, source in enumerate(sources, 1):
        found = _WRITE_FILE.match(source)
        file = found["name"].strip("'\"") if found else ""
        if file not in by_file or (found and not found["more"]):
            by_file[file] = []
            programs.append(by_file[file])
        head = found[0] if found else ""
        by_file[file].append(_Part(number, file, head, source[len(head) :]))
    return programs


def _migrate_program(parts: list[_Part]) -> tuple[list[str], list[Finding], bool]:
    """The new bodies, what was found, and whether something of Beam's stays."""
    hidden = [_hide(part.body) for part in parts]
    findings = []
    for index, part in enumerate(parts):
        if not is_python(hidden[index]):
            hidden[index] = _as_comment(part.body)
            findings.append(part.finding(0, "cannot be parsed, and is left as it is."))
        findings += _naming_beam(part, (line if _HIDDEN in line else "" for line in hidden[index].split("\n")))
    joined = "".join(f"{_MARK.format(number)}\n{cell}\n" for number, cell in enumerate(hidden))
    moved = migrate_source(joined)
    findings += (_in_cell(finding, joined, parts) for finding in moved.findings)
    return list(_split(moved.text, len(parts))), findings, moved.beam_stays


def _naming_beam(part: _Part, lines: Iterable[str]) -> Iterator[Finding]:
    """Lines that are not moved, and name Beam's package."""
    for number, line in enumerate(lines, 1):
        if ".".join(INFERENCE) in line:
            yield part.finding(number, "this is not read as Python, and names Beam's package: write Headrace's.")


def _about_installing(programs: list[list[_Part]], extras: set[str]) -> Iterator[Finding]:
    """What commands that install packages lack, and lists of packages that cells write."""
    installed = []
    for part in (part for parts in programs for part in parts):
        if part.file and is_of_interest(PurePath(part.file)):
            for one in findings_about(PurePath(part.file), part.body, extras):
                yield part.finding(one.line, one.message, needs_person=one.needs_person)
        else:
            installed += [(part, found) for found in _INSTALL.finditer(part.body)]
    message = missing_requirement("\n".join(found[0] for _, found in installed), extras)
    for part, found in installed:
        if message and BEAM.search(found[0]):
            yield part.finding(part.body.count("\n", 0, found.start()) + 1, message)


def _hide(source: str) -> str:
    """The cell with what is no Python in comments."""
    if source.lstrip().startswith("%%") and not _PYTHON_MAGICS.match(source.lstrip()):
        return _as_comment(source)
    return source if is_python(source) else "\n".join(_hidden_lines(source))


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


def _in_cell(finding: Finding, joined: str, parts: list[_Part]) -> Finding:
    starts = [number for number, line in enumerate(joined.split("\n"), 1) if line.startswith(_MARK.format(""))]
    index = max(bisect_right(starts, finding.line), 1) - 1
    placed = parts[index].finding(finding.line - starts[index], finding.message)
    return replace(finding, line=placed.line, column=0, cell=placed.cell)


def _as_json(notebook: Any, text: str) -> str:
    """The notebook as JSON, in the layout of its old text."""
    end = "\n" if text.endswith("\n") else ""
    old = json.loads(text)
    for indent, ascii_only in _LAYOUTS:
        if json.dumps(old, indent=indent, ensure_ascii=ascii_only) + end == text:
            return json.dumps(notebook, indent=indent, ensure_ascii=ascii_only) + end
    return json.dumps(notebook, indent=_LAYOUTS[0][0], ensure_ascii=_LAYOUTS[0][1]) + end
