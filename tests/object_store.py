"""An object store in this process's memory, without folders, as one of Beam's filesystems."""

from __future__ import annotations

import io
import posixpath

from apache_beam.io.filesystem import BeamIOError, CompressedFile, CompressionTypes, FileMetadata, FileSystem

OBJECTS: dict[str, bytes] = {}


class ObjectFile(io.BytesIO):
    """An object that is there once it is closed."""

    mode = "wb"

    def __init__(self, path):
        super().__init__()
        self.path = path

    def close(self):
        if not self.closed:
            OBJECTS[self.path] = self.getvalue()
        super().close()


class ObjectStore(FileSystem):
    """Objects by their whole names; how it moves them is a test's choice, and which calls fail."""

    moves = "refuses"
    """Objects onto others: ``replaces`` them, ``refuses``, or ``copies`` and then deletes, as real ones do."""
    denied = ""
    """The name of a finished object that cannot be moved, however often it is tried."""
    calls = 0
    failing = frozenset()
    """Numbers of the calls that fail: before they do anything, or afterwards where the number is negative."""

    @classmethod
    def scheme(cls):
        return "objects"

    def _call(self, name, act):
        cls = type(self)
        cls.calls += 1
        if cls.calls in self.failing:
            raise BeamIOError(f"{name} failed")
        act()
        if -cls.calls in self.failing:
            raise BeamIOError(f"{name} failed after it was done")

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        return posixpath.split(path)

    def mkdirs(self, path):
        """There are no folders."""

    def has_dirs(self):
        return False

    def _list(self, dir_or_prefix):
        return [FileMetadata(path, len(data)) for path, data in OBJECTS.items() if path.startswith(dir_or_prefix)]

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        return self._compressed(ObjectFile(path), path, compression_type)

    def open(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        if path not in OBJECTS:
            raise BeamIOError(f"no object {path}")
        return self._compressed(io.BytesIO(OBJECTS[path]), path, compression_type)

    def _compressed(self, file, path, compression):
        compression = self._get_compression_type(path, compression)
        if compression == CompressionTypes.UNCOMPRESSED:
            return file
        return CompressedFile(file, compression_type=compression)

    def rename(self, source_file_names, destination_file_names):
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            self._rename(source, destination)

    def _rename(self, source, destination):
        if self.denied and source.endswith(f"parts/{self.denied}"):
            raise PermissionError(f"{destination} is not yours")
        if self.moves == "copies":
            self._call("copy", lambda: OBJECTS.update({destination: OBJECTS[source]}))
            self.delete([source])
        elif self.moves == "refuses" and destination in OBJECTS:
            raise BeamIOError(f"{destination} is there already")
        else:
            self._call("rename", lambda: OBJECTS.update({destination: OBJECTS.pop(source)}))

    def exists(self, path):
        return path in OBJECTS

    def delete(self, paths):
        for path in paths:
            self._call("delete", lambda path=path: OBJECTS.pop(path))

    def copy(self, source_file_names, destination_file_names):
        raise NotImplementedError

    def metadata(self, path):
        return FileMetadata(path, len(OBJECTS[path]))

    size = last_updated = checksum = copy
