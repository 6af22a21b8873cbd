"""Local files open here, URIs through Beam's filesystems."""

from __future__ import annotations

import gzip

import pytest
from apache_beam.io.localfilesystem import LocalFileSystem

from headrace.core.files import open_uri


def test_local_paths_are_opened(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"abc")
    with open_uri(str(path)) as file:
        assert file.read() == b"abc"


def test_missing_local_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_uri(str(tmp_path / "none"))


def test_file_uris_are_opened(tmp_path):
    path = tmp_path / "my model.bin"
    path.write_bytes(b"abc")
    with open_uri(path.as_uri()) as file:
        assert file.read() == b"abc"


class Shelf(LocalFileSystem):
    """A filesystem of Beam's with a scheme of its own."""

    @classmethod
    def scheme(cls):
        return "shelf"

    def open(self, path, *args, **kwargs):
        return super().open(path.removeprefix("shelf:/"), *args, **kwargs)


def test_other_uris_go_through_beams_filesystems_as_they_are(tmp_path):
    path = tmp_path / "model.gz"
    content = gzip.compress(b"abc")
    path.write_bytes(content)
    with open_uri(f"shelf:/{path}") as file:
        assert file.read() == content


def test_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="nowhere"):
        open_uri("nowhere://model.bin")
