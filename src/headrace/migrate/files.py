"""Moves the files of a tree over: reads each, and writes those that changed.

The code cells of a notebook move as one source; cells and lines that are no Python stay.
"""

from __future__ import annotations

import difflib
import io
import json
import os
import re
import shutil
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.files import replacing
from headrace.migrate.imports import Finding
from headrace.migrate.names import INFERENCE
from headrace.migrate.source import MigratedSource, is_python, migrate_source

_PYTHON = (".py", ".pyi", ".pyw")
_NOTEBOOK = ".ipynb"
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages")
_MARK = "# headrace: cell {}"
_HIDDEN = "pass  # headrace: hidden "
_MAGIC = re.compile(r"([ \t]*)(?:[%!?]|[\w, ]+=\s*[%!]|[\w.]+\?{1,2}$)")
"""``%magic``, ``!command``, ``?help`` and ``help?``, and names for what they give."""
_PYTHON_MAGICS = re.compile(r"%%(?:time|timeit|capture|prun)\b")
_LAYOUTS = [(indent, ascii_only) for indent in (1, 2, 4, None) for ascii_only in (False, True)]
"""How notebooks are written; the first is Jupyter's way."""
_NOT_PYTHON = "this is not read as Python, and names Beam's package: write Headrace's."


@dataclass(frozen=True)
class MigratedFile:
    """A file, before and after."""

    path: Path
    old: str
    """Its text; without a byte order mark."""
    new: str
    encoding: str
    findings: tuple[Finding, ...]

    @property
    def is_changed(self) -> bool:
        """Whether there is something to write."""
        return self.old != self.new

    def diff(self) -> str:
        """What changes, as a unified diff that ``patch -p1`` and ``git apply`` take."""
        name = self.path.as_posix().lstrip("/")
        old, new = (io.StringIO(text, newline="\n").readlines() for text in (self.old, self.new))
        lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Puts the new text in the file's place at once; a link stays, and leads to the new text."""
        target = self.path.resolve()
        with replacing(str(target)) as part:
            Path(part).write_bytes(self.new.encode(self.encoding))
            shutil.copymode(target, part)


def migrate_files(paths: Iterable[str | Path]) -> list[MigratedFile]:
    """Moves files and the files of folders over, in memory.

    Args:
        paths: files and folders. Of folders everything is read but hidden folders, virtual environments and packages
            that are installed there.

    Returns:
        The files that change, or about which there is something to say, in the order of their paths.

    Raises:
        ConfigurationError: a path does not exist.
    """
    files = [_read(path) for path in sorted(set(_files_of(map(Path, paths))))]
    sources = [(migrate_notebook if file.path.suffix == _NOTEBOOK else migrate_source)(file.old) for file in files]
    done = [
        replace(file, new=source.text, findings=(*file.findings, *source.findings))
        for file, source in zip(files, sources, strict=True)
    ]
    return [file for file in done if file.is_changed or file.findings]


def _files_of(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = [name for name in folders if not _is_left_out(Path(folder, name))]
                some = (Path(folder, name) for name in names)
                yield from (file for file in some if file.suffix in (*_PYTHON, _NOTEBOOK) and file.is_file())
        elif path.exists():
            yield path
        else:
            raise ConfigurationError(f"there is no file or folder {str(path)!r}.")


def _is_left_out(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _LEFT_OUT or (folder / "pyvenv.cfg").exists()


def _read(path: Path) -> MigratedFile:
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (OSError, SyntaxError, UnicodeError) as error:
        return MigratedFile(path, "", "", "utf-8", (Finding(1, 0, f"cannot be read: {error}"),))
    return MigratedFile(path, text, text, encoding, ())


def migrate_notebook(text: str) -> MigratedSource:
    """Moves a notebook over, given and returned as JSON. Findings name the cell and the line in it."""
    try:
        notebook = json.loads(text)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError):
        finding = Finding(1, 0, "is not a notebook of format 4; nothing is changed.")
        return MigratedSource(text, (finding,) if "apache_beam.ml" in text else ())
    new, findings = list(sources), list[Finding]()
    if "inference" in text and "apache_beam" in text:
        new, findings = _migrate_cells(sources)
    for cell, old, source in zip(cells, sources, new, strict=True):
        if source != old:
            cell["source"] = source if isinstance(cell["source"], str) else source.splitlines(keepends=True)
    changed = _as_json(notebook, text) if new != sources else text
    findings.sort(key=lambda one: (one.cell, one.line))
    return MigratedSource(changed, tuple(findings))


def _migrate_cells(sources: list[str]) -> tuple[list[str], list[Finding]]:
    findings = []
    hidden = [_hide(source) for source in sources]
    for number, source in enumerate(sources, 1):
        if not is_python(hidden[number - 1]):
            hidden[number - 1] = _as_comment(source)
            findings.append(Finding(0, 0, "cannot be parsed, and is left as it is.", cell=number))
        for line, code in enumerate(hidden[number - 1].split("\n"), 1):
            if _HIDDEN in code and ".".join(INFERENCE) in code:
                findings.append(Finding(line, 0, _NOT_PYTHON, cell=number))
    joined = "".join(f"{_MARK.format(number)}\n{cell}\n" for number, cell in enumerate(hidden))
    moved = migrate_source(joined)
    starts = [number for number, line in enumerate(joined.split("\n"), 1) if line.startswith(_MARK.format(""))]
    for finding in moved.findings:
        cell = max(bisect_right(starts, finding.line), 1)
        findings.append(replace(finding, line=finding.line - starts[cell - 1], column=0, cell=cell))
    return list(_split(moved.text, len(sources))), findings


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
    marks = "|".join(re.escape(_MARK.format(number)) for number in range(count))
    for cell in re.split(rf"^(?:{marks})\n", joined, flags=re.MULTILINE)[1:]:
        yield re.sub(rf"^(?:[ \t]*|# ){re.escape(_HIDDEN)}", "", cell.removesuffix("\n"), flags=re.MULTILINE)


def _as_json(notebook: Any, text: str) -> str:
    end = "\n" if text.endswith("\n") else ""
    old = json.loads(text)
    for indent, ascii_only in _LAYOUTS:
        if json.dumps(old, indent=indent, ensure_ascii=ascii_only) + end == text:
            return json.dumps(notebook, indent=indent, ensure_ascii=ascii_only) + end
    return json.dumps(notebook, indent=_LAYOUTS[0][0], ensure_ascii=_LAYOUTS[0][1]) + end
