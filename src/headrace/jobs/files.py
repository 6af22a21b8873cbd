"""Files of rows: matched, opened whatever compresses them, and where the output goes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from headrace.core.errors import ConfigurationError
from headrace.jobs import pipes, storage
from headrace.jobs.compression import compression_of, decompressed

_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}


class Source(NamedTuple):
    """A file of rows."""

    path: str
    format: str
    """``jsonl``, ``csv`` or ``parquet``."""
    delimiter: str = ","
    """Between the fields of a CSV file."""
    letters: bool = False
    """Whether its rows are dead letters, and the rows in those are meant."""


def match(patterns: Sequence[str], file_format: str | None = None, delimiter: str | None = None) -> tuple[Source, ...]:
    """The files that paths and globs name, each once; those of one glob sorted.

    Args:
        patterns: local, or of any filesystem that Beam knows; ``*`` stays within a folder, ``**`` does not. Local ones
            may be pipes; ``-`` is standard input. A pipe can be read once after each call of this function.
        file_format: of all files; by default each one's extension tells.
        delimiter: of CSV files; by default a comma, or a tab where the extension is ``.tsv``.

    Raises:
        ConfigurationError: a pattern matches nothing, or the format of a file is not known.
    """
    if not all(patterns):
        raise ConfigurationError("an INPUT has no name (''); is a variable of the shell empty?")
    paths = dict.fromkeys(path for pattern in patterns for path in _matching(pattern))
    sources = tuple(
        Source(path, file_format or _format_of(path), delimiter or ("\t" if ".tsv" in _extensions(path) else ","))
        for path in paths
    )
    for source in sources:
        if source.format == "parquet" and pipes.is_pipe(source.path):
            raise ConfigurationError(
                f"{pipes.as_name(source.path)} is a pipe, and Parquet has to be read from its end: write it to a file "
                "first."
            )
    return sources


def absolute(path: str) -> str:
    """A local path made absolute, since workers may run elsewhere; a URI as it is."""
    path = path.removeprefix("file://")
    return path if "://" in path else os.path.abspath(path)


def location(path: str) -> str:
    """Where a file lies, by one name, whatever links lead to its folder; a link in its place is not followed."""
    if "://" in path:
        return path
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def stamp(path: str) -> tuple[int, float]:
    """What changes when a file does: its size in bytes, and when it was changed, in seconds.

    Raises:
        OSError: there is no such file.
    """
    if not storage.is_remote(path):
        status = os.stat(path)
        return status.st_size, status.st_mtime
    found = storage.match(path)
    if not found:
        raise FileNotFoundError(path)
    return found[0].size, found[0].changed


def output_format(path: str, option: str = "--output") -> str:
    """``jsonl`` or ``parquet``, by the extension of the ``path`` that the option names.

    Raises:
        ConfigurationError: it is neither.
    """
    extension, *compression = _extensions(path) or [""]
    kind = _FORMATS.get(extension)
    if kind not in ("jsonl", "parquet") or (kind == "parquet" and compression):
        raise ConfigurationError(f"{option} must end in .jsonl (or .jsonl.gz) or .parquet, not {path!r}.")
    return kind


def dead_letters_path(output: str) -> str:
    """Where the dead letters of an output go: beside it."""
    folder, name = storage.split(output)
    stem = name[: len(name) - len("".join(_extensions(name)))]
    return storage.join(folder, f"{stem}.dead-letters.jsonl")


def failed_path(dead_letters: str) -> str:
    """Where dead letters go whose run is refused: beside the others, ``x.failed.jsonl`` for ``x.jsonl``."""
    end = len("".join(_extensions(dead_letters)))
    return f"{dead_letters[:-end]}.failed{dead_letters[-end:]}"


def _matching(pattern: str) -> list[str]:
    path = absolute(pipes.as_path(pattern))
    if os.path.isdir(path):
        raise ConfigurationError(f"{pattern} is a folder; name its files, for example '{pattern.rstrip('/')}/*.jsonl'.")
    if os.path.exists(path):  # also a file whose name looks like a glob
        return _expected([path])
    try:
        found = [file.path for file in storage.match(path)]
    except OSError as error:
        raise ConfigurationError(f"cannot look for {pattern}: {error}") from error
    if not found:
        is_glob = any(character in pattern for character in "*?[")
        raise ConfigurationError(f"no file matches {pattern!r}." if is_glob else f"there is no file {pattern!r}.")
    return _expected(found)


def _expected(paths: list[str]) -> list[str]:
    for path in paths:
        if "://" not in path:
            pipes.expect(path)
    return paths


def _extensions(path: str) -> list[str]:
    """The extensions that mean something: of the format, and of the compression."""
    stem, last = os.path.splitext(path)
    if compression_of(path) is None:
        return [last.lower()] if last else []
    return [os.path.splitext(stem)[1].lower(), last.lower()]


def _format_of(path: str) -> str:
    for extension in _extensions(path)[:1]:
        if extension in _FORMATS:
            return _FORMATS[extension]
    if pipes.is_pipe(path):
        raise ConfigurationError(f"{pipes.as_name(path)} is a pipe, which tells no format; add --format jsonl or csv.")
    raise ConfigurationError(f"the extension of {path!r} tells no format; add --format jsonl, csv or parquet.")


@contextmanager
def open_source(source: Source) -> Iterator[BinaryIO]:
    """The file, uncompressed; one that breaks off, or goes on as something else, is an error, as it is not to Beam.

    Raises:
        OSError: it cannot be opened.
    """
    compression, seekable = compression_of(source.path), source.format == "parquet"
    if pipes.is_pipe(source.path):
        with pipes.opened(source.path) as pipe:
            yield decompressed(pipe, compression, seekable=seekable)
        return
    with storage.open_file(source.path) as file:
        yield decompressed(file, compression, seekable=seekable)
