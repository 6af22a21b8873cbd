"""Local files open here, URIs through Beam's filesystems."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from apache_beam.io.localfilesystem import LocalFileSystem

from headrace.core import files
from headrace.core.files import keep_copies, kept_copies, open_uri


@pytest.mark.parametrize("named", [str, Path.as_uri])
def test_local_files_are_opened_by_path_and_by_uri(tmp_path, named):
    path = tmp_path / "my model.bin"
    path.write_bytes(b"abc")
    with open_uri(named(path)) as file:
        assert file.read() == b"abc"


class Shelf(LocalFileSystem):
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


@pytest.fixture
def copies(monkeypatch):
    monkeypatch.setattr(files, "_copies", None)
    keep_copies({})
    yield
    for file in kept_copies().values():
        os.close(file)


def test_a_remote_file_with_copies_is_opened_once(tmp_path, copies):
    path = tmp_path / "model.bin"
    path.write_bytes(b"abc")
    uri = f"shelf:/{path}"
    with open_uri(uri) as one, open_uri(uri) as two:
        path.write_bytes(b"changed")
        assert (one.read(2), two.read()) == (b"ab", b"abc")
    with open_uri(uri) as three:
        assert three.read() == b"abc"
    assert list(kept_copies()) == [uri]


def test_copies_can_be_handed_on(tmp_path, copies):
    (tmp_path / "copy").write_bytes(b"abc")
    keep_copies({"shelf://elsewhere": os.open(tmp_path / "copy", os.O_RDONLY)})
    with open_uri("shelf://elsewhere") as file:
        assert file.read() == b"abc"
