"""Files through Beam's filesystems: by URI, where entry points lead here, and as rows of a pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from io import UnsupportedOperation
from typing import Any, BinaryIO, cast

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes, FileSystem
from apache_beam.io.filesystems import FileSystems

from headrace.core.errors import ConfigurationError
from headrace.core.files import as_regex, is_uri, match_local
from headrace.rows.files import Contents, Decode, row_of_file

_EXTRAS = {
    "gs": ("Google Cloud Storage", "gcp", "google.cloud.storage"),
    "s3": ("Amazon S3", "aws", "boto3"),
    "azfs": ("Azure Blob Storage", "azure", "azure.storage.blob"),
}
"""By scheme: the store's name, the extra of apache-beam that brings its library, and the library's module."""

_FILES_AT_ONCE = 100


def open_uri(uri: str) -> BinaryIO:
    """Opens a file of any filesystem that Beam knows, and reads its bytes unchanged; raises OSError if it cannot."""
    _refuse_unknown(uri)
    return cast(BinaryIO, FileSystems.open(uri, compression_type=CompressionTypes.UNCOMPRESSED))


class BeamStorage:
    """The plug-in of ``headrace.jobs.storage`` for all of Beam's filesystems; their errors are OSErrors."""

    open_file = staticmethod(open_uri)

    @staticmethod
    def match(pattern: str) -> list[tuple[str, int, float]]:
        """Path, size in bytes, and modification time in seconds since 1970, of each file."""
        _refuse_unknown(pattern)
        wanted = as_regex(pattern) if "**/" in pattern else None  # for Beam that is at least one folder
        found = FileSystems.match([pattern.replace("**/", "**") if wanted else pattern])[0].metadata_list
        return [
            (file.path, file.size_in_bytes, file.last_updated_in_seconds or 0.0)
            for file in found
            if wanted is None or wanted.fullmatch(file.path)
        ]

    @staticmethod
    def split(path: str) -> tuple[str, str]:
        """The folder and the name."""
        _refuse_unknown(path)
        return cast(tuple[str, str], FileSystems.split(path))

    @staticmethod
    def join(folder: str, name: str) -> str:
        """The path of a file in a folder."""
        return str(FileSystems.join(folder, name))

    @staticmethod
    def exists(path: str) -> bool:
        """Whether there is a file or a folder."""
        _refuse_unknown(path)
        return bool(FileSystems.exists(path))

    @staticmethod
    def make_folder(path: str) -> None:
        """Creates a folder and its parents."""
        _refuse_unknown(path)
        FileSystems.mkdirs(path)

    @staticmethod
    def create(path: str) -> BinaryIO:
        """Opens a new file for writing."""
        _refuse_unknown(path)
        return cast(BinaryIO, FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED))

    @staticmethod
    def rename(source: str, destination: str) -> None:
        """Moves a file."""
        FileSystems.rename([source], [destination])

    @staticmethod
    def delete(path: str) -> None:
        """Removes a file or a folder."""
        FileSystems.delete([path])


def _refuse_unknown(uri: str) -> None:
    """Raises an error with the cure (an OSError and a ValueError) where Beam's would have none, or the wrong one."""
    scheme = FileSystems.get_scheme(uri)
    known = {kind.scheme() for kind in FileSystem.get_all_subclasses()}
    if scheme in _EXTRAS:
        store, extra, module = _EXTRAS[scheme]
        with suppress(ImportError):  # not even its package is there
            if scheme in known and find_spec(module) is not None:
                return
        raise UnsupportedOperation(
            f"Beam's part for {store} is not installed; install it with: pip install 'apache-beam[{extra}]'"
        )
    if scheme in ("http", "https"):
        raise UnsupportedOperation("files are not read from the web; download it first, for example with curl -O")
    if scheme not in known:
        raise UnsupportedOperation(
            f"Beam has no filesystem for {scheme}://; it has {', '.join(sorted(_EXTRAS))} and hdfs"
        )


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
        found.update((file[0], file) for file in some)
    files = sorted(found.values())
    for start in range(0, len(files), _FILES_AT_ONCE):
        yield files[start : start + _FILES_AT_ONCE]


def _rows(files: Sequence[Any], contents: Contents | None) -> Iterator[Any]:
    rows = (row_of_file(*file) for file in files)
    return rows if contents is None else (row for row, _ in contents.of((row, None) for row in rows))
