"""Moves the files of a tree over: reads each, writes those that changed, and looks at what lists dependencies."""

from __future__ import annotations

import codecs
import difflib
import io
import os
import shutil
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.errors import ConfigurationError
from headrace.core.files import replacing
from headrace.migrate.imports import Finding
from headrace.migrate.notebook import migrate_notebook
from headrace.migrate.source import migrate_source

_PYTHON = (".py", ".pyi", ".pyw")
_NOTEBOOK = ".ipynb"
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages")


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
        encoding = _encoding_of(path, content)
        text = content.decode(encoding)
    except (OSError, SyntaxError, UnicodeError) as error:
        return MigratedFile(path, "", "", "utf-8", (Finding(1, 0, f"cannot be read: {error}"),))
    return MigratedFile(path, text, text, encoding, ())


def _encoding_of(path: Path, content: bytes) -> str:
    if path.suffix in _PYTHON:
        return tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    return "utf-8-sig" if content.startswith(codecs.BOM_UTF8) else "utf-8"
