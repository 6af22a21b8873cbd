"""Files by URI, through Beam's filesystems; entry points lead ``core.files`` and ``jobs.storage`` here."""

from __future__ import annotations

from importlib.util import find_spec
from io import UnsupportedOperation
from typing import BinaryIO, cast

from apache_beam.io.filesystem import CompressionTypes, FileSystem
from apache_beam.io.filesystems import FileSystems

from headrace.core.files import as_regex

_EXTRAS = {
    "gs": ("Google Cloud Storage", "gcp", "google.cloud.storage"),
    "s3": ("Amazon S3", "aws", "boto3"),
    "azfs": ("Azure Blob Storage", "azure", "azure.storage.blob"),
}
"""By scheme: the store's name, the extra of apache-beam that brings its library, and the library's module."""


def open_uri(uri: str) -> BinaryIO:
    """Opens a file of any filesystem that Beam knows, and reads its bytes unchanged.

    Raises:
        OSError: it cannot be opened; where Beam lacks a library for its scheme, the message names the extra.
    """
    _refuse_unknown(uri)
    return cast(BinaryIO, FileSystems.open(uri, compression_type=CompressionTypes.UNCOMPRESSED))


class BeamStorage:
    """The ``Storage`` of ``headrace.jobs.storage`` for all of Beam's filesystems; their errors are OSErrors."""

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
        folder, name = FileSystems.split(path)
        return folder, name

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
    store, extra, module = _EXTRAS.get(scheme, ("", "", ""))
    known = {kind.scheme() for kind in FileSystem.get_all_subclasses()}
    if store and (scheme not in known or not _is_installed(module)):
        raise UnsupportedOperation(
            f"Beam's part for {store} is not installed; install it with: pip install 'apache-beam[{extra}]'"
        )
    if scheme in ("http", "https"):
        raise UnsupportedOperation("files are not read from the web; download it first, for example with curl -O")
    if scheme not in known:
        raise UnsupportedOperation(
            f"Beam has no filesystem for {scheme}://; it has {', '.join(sorted(_EXTRAS))} and hdfs"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # not even its package is there
        return False
