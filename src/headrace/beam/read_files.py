"""``ReadFiles``: a row for each file, in a pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam

from headrace.beam.filesystems import BeamStorage
from headrace.core.errors import ConfigurationError
from headrace.core.files import is_uri, match_local
from headrace.rows.files import Contents, Decode, row_of_file

_FILES_AT_ONCE = 100


class ReadFiles(beam.PTransform):
    """A row for each file: a dict with ``path``, ``size`` in bytes, and ``modified``, a datetime in UTC.

    Workers list the files when the pipeline runs, share them, and read each where its content is asked for.

    Args:
        patterns: paths and globs, local or of any filesystem that Beam supports; ``*`` stays within a folder, ``**/``
            is any number of folders.
        content: whether ``row["content"]`` is the file's bytes. Threads read at most 64 files or 64 MiB ahead. It is no
            item of the dict, and does not travel with it: behind a shuffle, the file is read there.
        decode: a function of the bytes that runs on these threads; what it returns is the content.

    Raises:
        ConfigurationError: no pattern is given. If one matches nothing, the pipeline fails with it.
    """

    def __init__(self, patterns: str | Sequence[str], *, content: bool = False, decode: Decode | None = None) -> None:
        super().__init__()
        given = [patterns] if isinstance(patterns, str) else [*patterns]
        if not given or not all(given):
            raise ConfigurationError("ReadFiles needs a path or a glob, such as 'images/**/*.jpg'.")
        self._patterns = [one if is_uri(one) else os.path.abspath(one) for one in given]
        self._contents = Contents(decode) if content or decode is not None else None

    def expand(self, begin: Any) -> beam.PCollection:
        """The lists of files are shared among workers; rows are made, and files read, behind that."""
        return (
            begin
            | beam.Create([self._patterns])
            | "List" >> beam.FlatMap(_lists)
            | beam.Reshuffle()
            | "Read" >> beam.FlatMap(_rows, self._contents)
        )


def _lists(patterns: Sequence[str]) -> Iterator[Any]:
    found: dict[str, tuple[str, int, float]] = {}
    for pattern in patterns:
        some = BeamStorage.match(pattern) if is_uri(pattern) else match_local(pattern)
        if not some:
            raise ConfigurationError(f"no file matches {pattern!r}.")
        found.update((path, (path, size, changed)) for path, size, changed in some)
    files = sorted(found.values())
    for start in range(0, len(files), _FILES_AT_ONCE):
        yield files[start : start + _FILES_AT_ONCE]


def _rows(files: Sequence[Any], contents: Contents | None) -> Iterator[Any]:
    rows = (row_of_file(*file) for file in files)
    return rows if contents is None else (row for row, _ in contents.of((row, None) for row in rows))
