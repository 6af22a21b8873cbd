"""Files by URI, through Beam's filesystems; entry points lead ``core.files`` and ``jobs.storage`` here."""

from __future__ import annotations

from typing import BinaryIO, cast

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems


def open_uri(uri: str) -> BinaryIO:
    """Opens a file of any filesystem that Beam knows, and reads its bytes unchanged."""
    return cast(BinaryIO, FileSystems.open(uri, compression_type=CompressionTypes.UNCOMPRESSED))


class BeamStorage:
    """The ``Storage`` of ``headrace.jobs.storage`` for all of Beam's filesystems; their errors are OSErrors."""

    open_file = staticmethod(open_uri)
    exists = staticmethod(FileSystems.exists)
    make_folder = staticmethod(FileSystems.mkdirs)
    split = staticmethod(FileSystems.split)
    join = staticmethod(FileSystems.join)

    @staticmethod
    def match(pattern: str) -> list[tuple[str, int, float]]:
        """Path, size in bytes, and modification time in seconds since 1970, of each file."""
        try:
            found = FileSystems.match([pattern])[0].metadata_list
        except ValueError as error:  # no filesystem has the scheme
            raise OSError(str(error)) from error
        return [(file.path, file.size_in_bytes, file.last_updated_in_seconds or 0.0) for file in found]

    @staticmethod
    def create(path: str) -> BinaryIO:
        """Opens a new file for writing."""
        return cast(BinaryIO, FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED))

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
        """Removes a file or a folder."""
        FileSystems.delete([path])
