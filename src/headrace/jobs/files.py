"""Input and output files: matching, formats, the columns that folders give, and names beside the output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

from headrace.core.errors import ConfigurationError
from headrace.core.files import FileInfo, file_info, files_below, is_folder_name
from headrace.core.spelling import no_file
from headrace.jobs import pipes, storage
from headrace.rows.blocks import Row
from headrace.rows.files import Contents, Decode, row_of_file

_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".lzma": "xz", ".zst": "zstd", ".zstd": "zstd"}
_FILES_AT_ONCE = 500
"""How many of the files that are rows are one source."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_KEY = re.compile(r"([^=]+)=(.*)")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_listed: dict[str, FileInfo] = {}
"""Remote files, from the listing that found them: asking for each would take a request."""


class Part(NamedTuple):
    """Neighbouring rows of a file, for one of several workers."""

    row: int
    """Number of the first row in the file, counted from 0; unreadable lines count."""
    rows: int
    is_last: bool
    """Whether the file ends with them."""
    start: int = 0
    """Of a text file: where the first row begins, in bytes."""
    stop: int = 0
    line: int = 0
    """Of a text file: how many lines come before the first row."""


class Key(NamedTuple):
    """A column that a folder's name, such as ``year=2024``, gives to all rows below it, as Hive has it."""

    name: str
    value: Any
    type: str
    """``int`` if all values of this column are whole numbers, else ``str``."""


class Source(NamedTuple):
    """An input file or a part of one, or some files that are rows."""

    path: str
    """Of the first one, if the files are rows."""
    format: str
    """``jsonl``, ``csv``, ``parquet`` or, if the files are rows, ``files``."""
    delimiter: str = ","
    """Separates the fields of a CSV file."""
    letters: bool = False
    """Whether the file holds dead letters whose rows are the input."""
    files: tuple[FileInfo, ...] = ()
    """Those that are rows."""
    keys: tuple[Key, ...] = ()
    """The columns that the names of its folders give."""
    name: str = ""
    """Its path below the fixed part of the pattern that means it."""
    part: Part | None = None
    """The only rows to read; None: all."""

    @property
    def paths(self) -> list[str]:
        """Of the file, or of those that are rows."""
        return [file[0] for file in self.files] or [self.path]


def match(patterns: Sequence[str], file_format: str | None = None, delimiter: str | None = None) -> tuple[Source, ...]:
    """The files that paths and globs name, without duplicates; the files of one glob are sorted.

    Args:
        patterns: local, or of any filesystem that Beam supports; ``*`` stays within a folder, ``**`` does not. Local
            paths may be pipes, and ``-`` is standard input; each pipe can be read once per call of this function. A
            local folder that is partitioned as Hive does it stands for all its files.
        file_format: of all files; by default, from each file's extension. ``files``: each file is a row.
        delimiter: of CSV files; by default a comma, or a tab for ``.tsv``.

    Raises:
        ConfigurationError: a pattern matches nothing, or a file's format is unknown.
    """
    if not all(patterns):
        raise ConfigurationError("an INPUT has no name (''); is a variable of the shell empty?")
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ConfigurationError(f"--delimiter is one character, not {delimiter!r}; a tab is $'\\t' in a shell.")
    if file_format == "files":
        files = match_files(patterns)
        pieces = (tuple(files[start : start + _FILES_AT_ONCE]) for start in range(0, len(files), _FILES_AT_ONCE))
        return tuple(Source(some[0].path, "files", files=some) for some in pieces)
    bases: dict[str, str] = {}
    for pattern in patterns:
        for file in _matching(pattern):
            bases.setdefault(file.path, _base(pattern, file.path))
    for path in [path for path in bases if not storage.is_remote(path)]:
        pipes.expect(path)
    sources = tuple(
        Source(path, file_format or _format_of(path), delimiter or delimiter_of(path), keys=keys, name=name)
        for (path, base), keys in zip(bases.items(), _keys_of(bases), strict=True)
        for name in [path[len(base) :].lstrip("/" + os.sep) or storage.split(path)[1]]
    )
    for path in [source.path for source in sources if source.format == "parquet"]:
        if pipes.is_pipe(path) or compression_of(path) is not None:
            kind, cure = ("a pipe", "write") if pipes.is_pipe(path) else ("compressed", "decompress")
            raise ConfigurationError(
                f"{pipes.as_name(path)} is {kind}, and Parquet has to be read from its end: {cure} it to a file first."
            )
    return sources


def read_files(patterns: str | Sequence[str], *, content: bool = False, decode: Decode | None = None) -> Iterator[Row]:
    """A row for each file, in order: ``path``, ``size`` in bytes, and ``modified``, a datetime in UTC.

    Args:
        patterns: paths and globs, local or of any filesystem that Beam supports; ``*`` stays within a folder, ``**/``
            is any number of folders.
        content: whether ``row["content"]`` is the file's bytes. Threads read at most 64 files or 64 MiB ahead. It is no
            item of the dict: it is handed out once, and read again if it is asked for again.
        decode: a function of the bytes that runs on these threads; what it returns is the content.

    Returns:
        An iterator. A file that cannot be read or decoded raises where its content is asked for: so it fails alone.

    Raises:
        ConfigurationError: at once, if a pattern matches nothing.
    """
    rows = (row_of_file(*file) for file in match_files([patterns] if isinstance(patterns, str) else patterns))
    if not content and decode is None:
        return rows
    return (row for row, _ in Contents(decode).of((row, None) for row in rows))


def match_files(patterns: Iterable[str]) -> list[FileInfo]:
    """The files that paths and globs name, without duplicates, each to be a row; errors are those of ``match``."""
    found = {file.path: file for pattern in patterns for file in _matching(pattern, are_rows=True)}
    for path in found:
        if pipes.is_pipe(path):
            raise ConfigurationError(f"{pipes.as_name(path)} is a pipe, and no file to be a row of.")
    return [*found.values()]


def absolute(path: str) -> str:
    """A local path made absolute, since workers may run in other folders; a URI unchanged."""
    path = path.removeprefix("file://")
    return path if storage.is_remote(path) else os.path.abspath(path)


def location(path: str) -> str:
    """A canonical path: resolves links in the folder, but not the file itself."""
    if storage.is_remote(path):
        return path
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def stamp(path: str) -> tuple[int, float]:
    """Size in bytes and modification time in seconds, to detect that a file has changed.

    Raises:
        OSError: there is no such file.
    """
    return (_listed.get(path) or storage.find(path))[1:]


def known_size(source: Source) -> int | None:
    """A source's size in bytes, if no request has to be made to learn it; None of a pipe."""
    if source.files:
        return sum(file[1] for file in source.files)
    if storage.is_remote(source.path):
        return _listed[source.path].size if source.path in _listed else None
    return None if pipes.is_pipe(source.path) else storage.size(source.path)


def name_in_folder(source: Source, file_format: str | None) -> str:
    """The path of an input's output below the folder: the input's own, with the ending of the output's format."""
    extensions = _extensions(source.name)
    known = "".join(extensions) if extensions and extensions[0] in ("", *_FORMATS) else ""
    return f"{source.name[: len(source.name) - len(known)]}.{file_format or source.format}"


def output_format(path: str, option: str = "--output") -> str:
    """``jsonl``, ``csv`` or ``parquet``, by the extension of the ``path`` that the option names.

    Raises:
        ConfigurationError: the extension is none of these.
    """
    kind = _kind_of(path)
    if not storage.is_remote(path) and os.path.isdir(path):
        example = os.path.join(path, "predictions.jsonl")
        may_be_folder = option == "--output" and not is_folder_name(path)
        more = "; or end it in a slash for a file for each input." if may_be_folder else "."
        raise ConfigurationError(
            f"{option} must be a file, and {path} is a folder; name a file in it, such as {example}{more}"
        )
    if kind is None or (kind == "parquet" and compression_of(path)):
        raise ConfigurationError(f"{option} must end in .jsonl, .csv (both also .gz) or .parquet, not {path!r}.")
    return kind


def delimiter_of(path: str) -> str:
    """The character between the fields of a CSV file: a comma, or a tab for ``.tsv``."""
    return "\t" if ".tsv" in _extensions(path) else ","


def dead_letters_path(output: str) -> str:
    """The dead letters' default path, beside the output."""
    folder, name = storage.split(output)
    stem = name[: len(name) - len("".join(_extensions(name)))]
    return storage.join(folder, f"{stem}.dead-letters.jsonl")


def failed_path(dead_letters: str) -> str:
    """The path for the dead letters of a refused run: ``x.failed.jsonl`` for ``x.jsonl``."""
    end = len("".join(_extensions(dead_letters)))
    return f"{dead_letters[:-end]}.failed{dead_letters[-end:]}"


def compression_of(path: str) -> str | None:
    """The compression by file extension: gzip, bz2, xz or zstd; None: none."""
    return next((kind for suffix, kind in _COMPRESSIONS.items() if path.lower().endswith(suffix)), None)


def _matching(pattern: str, *, are_rows: bool = False) -> list[FileInfo]:
    path = absolute(pipes.as_path(pattern))
    if os.path.isdir(path):
        files = [] if are_rows else _files_below(path)
        if any(True for file in files for _ in _pairs(file[len(path) :])):
            return list(map(file_info, files))
        names = f"'{os.path.join(pattern, '**/*')}{''.join(_extensions(files[0])) if files else ''}'"
        if not (are_rows or files):
            names = f"'{os.path.join(pattern, '*.jsonl')}', for example; it has none of .jsonl, .csv or .parquet"
        raise ConfigurationError(f"{pattern} is a folder; name its files: {names}.")
    try:
        if os.path.exists(path):  # also a file whose name looks like a glob
            return [file_info(path)]
        found = storage.match(path)
    except OSError as error:
        raise ConfigurationError(f"cannot look for {pattern}: {error}.") from error
    if not found:
        is_glob = any(character in pattern for character in "*?[")
        if is_glob or storage.is_remote(path):
            raise ConfigurationError(f"no file matches {pattern!r}.")
        raise ConfigurationError(no_file(pattern))
    _listed.update((file.path, file) for file in found if storage.is_remote(file.path))
    return found


def _base(pattern: str, path: str) -> str:
    """The folder below which the names of folders are keys of a file that a pattern means."""
    fixed = absolute(pipes.as_path(pattern))
    if os.path.isdir(fixed) or fixed == path:
        return fixed
    return os.path.dirname(re.split(r"[*?\[]", fixed)[0])


def _keys_of(bases: Mapping[str, str]) -> list[tuple[Key, ...]]:
    """The keys of files, the same columns for all; ``bases`` has the folder below which names of folders are keys."""
    found = [dict(_pairs(path[len(base) :])) for path, base in bases.items()]
    columns = []
    for name in dict.fromkeys(chain.from_iterable(found)):
        values = [pairs.get(name) for pairs in found]
        known = [value for value in values if value is not None]
        kind: Any = int if known and all(map(_WHOLE.fullmatch, known)) else str
        columns.append([Key(name, None if value is None else kind(value), kind.__name__) for value in values])
    return list(zip(*columns, strict=True)) if columns else [()] * len(found)


def _pairs(path: str) -> Iterator[tuple[str, str | None]]:
    for folder in re.split(r"[/\\]", os.path.dirname(path)):
        if found := _KEY.fullmatch(folder):
            yield unquote(found[1]), None if found[2] == _NULL else unquote(found[2])


def _files_below(folder: str) -> list[str]:
    """The files of rows in a folder, sorted; without hidden ones, and those that Spark writes for itself."""
    return sorted(
        path
        for path in files_below(folder)
        if _kind_of(path) and not any(part.startswith((".", "_")) for part in path[len(folder) :].split(os.sep))
    )


def _kind_of(path: str) -> str | None:
    """The format that the extension says."""
    return _FORMATS.get((_extensions(path) or [""])[0])


def _extensions(path: str) -> list[str]:
    """The extensions for format and compression, in lower case."""
    stem, last = os.path.splitext(path)
    if compression_of(path) is None:
        return [last.lower()] if last else []
    return [os.path.splitext(stem)[1].lower(), last.lower()]


def _format_of(path: str) -> str:
    if kind := _kind_of(path):
        return kind
    if pipes.is_pipe(path):
        raise ConfigurationError(f"{pipes.as_name(path)} is a pipe, which tells no format; add --format jsonl or csv.")
    raise ConfigurationError(f"the extension of {path!r} tells no format; add --format jsonl, csv or parquet.")
