"""Estimates of a model's size from its handler's files."""

from __future__ import annotations

import pytest

from headrace.runtime.model_files import bytes_of_model_files
from headrace.testing import DoublingHandler


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(1000))
    return path


def bytes_of(**attributes):
    handler = DoublingHandler()
    vars(handler).update(attributes)
    return bytes_of_model_files(handler)


@pytest.mark.parametrize("name", ["model_uri", "_model", "state_dict_path", "the_WEIGHTS"])
@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["string", "path"])
def test_estimate_is_half_of_the_file_that_a_handler_names(file, name, kind):
    assert bytes_of(**{name: kind(file)}) == 500


def test_estimate_adds_up_several_files(file):
    assert bytes_of(model_path=file, weights_path=str(file), vocabulary_path=str(file)) == 1000


@pytest.mark.parametrize(
    "value",
    ["gs://bucket/model.bin", "no such file", "a\0null", "x" * 5000, "", None, 7, b"model", ["model"], print],
    ids=["remote", "missing", "null", "long", "empty", "None", "number", "bytes", "list", "function"],
)
def test_estimate_is_unknown_without_a_local_file(value):
    assert bytes_of(model_uri=value) is None


def test_estimate_is_unknown_for_a_folder_or_an_empty_file(tmp_path):
    (tmp_path / "empty").touch()
    assert bytes_of(model_path=tmp_path) is None
    assert bytes_of(model_path=tmp_path / "empty") is None


def test_estimate_is_unknown_if_the_handler_names_no_file():
    assert bytes_of(threads=4) is None
