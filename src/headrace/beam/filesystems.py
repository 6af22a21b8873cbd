"""Opens URIs with Beam's filesystems; core finds this by name."""

from __future__ import annotations

from typing import BinaryIO, cast

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems


def open_uri(uri: str) -> BinaryIO:
    """Opens a file of any filesystem that Beam knows, for reading its bytes as they are."""
    return cast(BinaryIO, FileSystems.open(uri, compression_type=CompressionTypes.UNCOMPRESSED))
