"""Files by URI with Beam's filesystems; ``core.files`` and ``jobs.storage`` find this by name."""

from __future__ import annotations

from typing import BinaryIO, cast

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems


def open_uri(uri: str) -> BinaryIO:
    """Opens a file of any filesystem that Beam knows, for reading its bytes as they are."""
    return cast(BinaryIO, FileSystems.open(uri, compression_type=CompressionTypes.UNCOMPRESSED))


class BeamStorage:
    """The ``Storage`` of ``headrace.jobs.storage`` for whatever Beam knows; errors are Beam's, which are OSErrors."""

    open_file = staticmethod(open_uri)

    @staticmethod
    def match(pattern: str) -> list[tuple[str, int, float]]:
        """Path, size in bytes, and the time of the last change in seconds, of each file."""
        try:
            found = FileSystems.match([pattern])[0].metadata_list
        except ValueError as error:  # nobody knows the scheme
            raise OSError(str(error)) from error
        return [(file.path, file.size_in_bytes, file.last_updated_in_seconds or 0.0) for file in found]

    @staticmethod
    def create(path: str) -> BinaryIO:
        """A new file."""
        return cast(BinaryIO, FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED))

    @staticmethod
    def exists(path: str) -> bool:
        """Whether there is such a file."""
        return bool(FileSystems.exists(path))

    @staticmethod
    def rename(source: str, destination: str) -> None:
        """Moves a file."""
        FileSystems.rename([source], [destination])

    @staticmethod
    def copy(source: str, destination: str) -> None:
        """Copies a file."""
        FileSystems.copy([source], [destination])

    @staticmethod
    def delete(path: str) -> None:
        """Removes a file, or a folder."""
        FileSystems.delete([path])

    @staticmethod
    def make_folder(path: str) -> None:
        """Makes a folder."""
        FileSystems.mkdirs(path)

    @staticmethod
    def split(path: str) -> tuple[str, str]:
        """Folder and name."""
        folder, name = FileSystems.split(path)
        return str(folder), str(name)

    @staticmethod
    def join(folder: str, name: str) -> str:
        """A file in a folder."""
        return str(FileSystems.join(folder, name))
