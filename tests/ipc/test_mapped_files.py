"""Weights that a framework has mapped from files on disk: mapped from there by others, too, where that is safe."""

from __future__ import annotations

import os
import sys

import numpy
import pytest

from headrace.ipc import mapped_files
from headrace.ipc.weights_file import MOST_FILES, attach, export

MB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what is mapped")


@pytest.fixture
def weights(tmp_path):
    """Maps arrays of ones, of 2 MB each, from files of their own."""

    def make(count=1, size=2 * MB):
        made = []
        for number in range(count):
            path = tmp_path / f"weights-{number}"
            numpy.ones(size, "u1").tofile(path)
            made.append(numpy.memmap(path, "u1", "c"))
        return made

    return make


@pytest.fixture(params=[True, False], ids=["destroyed", "in use"])
def exported(request):
    """Exports values; closes their files in the end."""
    opened = []

    def move(value):
        files, layout = export(value, destroys=request.param)
        opened.extend(files)
        return files, layout

    yield move
    for file in opened:
        os.close(file)


def copied(layout):
    """Bytes in the weights file."""
    return layout.nbytes


def test_weights_that_are_mapped_from_a_file_are_not_copied(exported, weights):
    value = [*weights(2), numpy.full(MB, 7, "u1")]
    value[0][:MB].sum()  # some pages are in memory, others are not
    files, layout = exported(value)
    assert copied(layout) == MB
    assert len(files) == 3
    assert layout.mapped_bytes == 5 * MB
    assert [int(part.sum()) for part in attach(files, layout)] == [2 * MB, 2 * MB, 7 * MB]


def test_weights_that_were_changed_in_memory_are_copied(exported, weights):
    changed, unchanged = weights(2)
    changed[5] = 3
    files, layout = exported([changed, unchanged])
    assert copied(layout) == 2 * MB
    assert [int(part.sum()) for part in attach(files, layout)] == [2 * MB + 2, 2 * MB]


def test_weights_whose_file_was_deleted_are_copied(exported, weights, tmp_path):
    value = weights()
    (tmp_path / "weights-0").unlink()
    files, layout = exported(value)
    assert copied(layout) == 2 * MB
    assert int(attach(files, layout)[0].sum()) == 2 * MB


def test_weights_whose_file_was_replaced_are_those_of_the_file_that_was_mapped(exported, weights, tmp_path):
    value = weights()
    path = tmp_path / "weights-0"
    path.rename(tmp_path / "older")
    path.write_bytes(b"x" * 2 * MB)
    files, layout = exported(value)
    assert int(attach(files, layout)[0].sum()) == 2 * MB


def test_weights_in_too_many_files_are_copied_but_for_the_largest(exported, weights):
    value = weights(MOST_FILES + 1)
    files, layout = exported(value)
    assert len(files) == MOST_FILES
    assert copied(layout) == 2 * 2 * MB
    assert [int(part.sum()) for part in attach(files, layout)] == [2 * MB] * (MOST_FILES + 1)


def test_small_weights_are_copied(exported, weights):
    _, layout = exported(weights(size=MB // 2))
    assert copied(layout) == MB // 2


@pytest.mark.parametrize("missing", ["_PAGEMAP", "sys"])
def test_weights_are_copied_where_the_system_does_not_tell(exported, weights, monkeypatch, tmp_path, missing):
    if missing == "sys":
        monkeypatch.setattr(mapped_files.sys, "byteorder", "big")
    else:
        monkeypatch.setattr(mapped_files, missing, tmp_path / "none")
    _, layout = exported(weights())
    assert copied(layout) == 2 * MB
