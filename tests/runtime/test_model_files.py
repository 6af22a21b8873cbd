"""Estimates of a model's size from its handler's files."""

from __future__ import annotations

import pytest

from headrace.runtime.model_source import bytes_of_model_files
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
def test_estimate_is_half_of_the_files_that_a_handler_names(file, name):
    assert bytes_of(**{name: str(file), "weights": file, "vocabulary_path": str(file)}) == 1000


@pytest.mark.parametrize(
    "value", ["gs://bucket/model.bin", "no such file", "a\0null", "x" * 5000, "", "/tmp", None, 7, b"model", ["m"]]
)
def test_estimate_is_unknown_without_a_local_file(value):
    assert bytes_of(model_uri=value) is None
