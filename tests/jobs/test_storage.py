"""Local files are found as Beam finds them, but for ``**/``, which may be no folder, as in Python and shells."""

import glob as python
import warnings

import pytest
from apache_beam.io.filesystems import FileSystems

from headrace.jobs import storage

NAMES = ("a.jsonl", "b.jsonl", ".hidden.jsonl", "a[1].csv", "x/a.jsonl", "x/y/a.jsonl", "x/y/b.csv", "xy/a.csv")
GLOBS = ("*", "*.jsonl", "**", "**.jsonl", "x/*", "x*/*.csv", "?.jsonl", "[ab].jsonl", "[!a].jsonl", "a[[]*")


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("glob", [*GLOBS, "a.jsonl", "absent", "absent*"])
def test_a_glob_names_the_files_that_it_names_to_beam(folder, glob):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Beam's regular expressions are not all as Python wants them
        beams = FileSystems.match([str(folder / glob)])[0].metadata_list
    found = storage.match(str(folder / glob))
    assert [file.path for file in found] == sorted(file.path for file in beams)
    assert {file.path: file.size for file in found} == {file.path: file.size_in_bytes for file in beams}


@pytest.mark.parametrize("glob", ["**/a.*", "x/**/*.jsonl", "x/**/y/*", "**/absent"])
def test_two_stars_and_a_slash_are_any_number_of_folders(folder, glob):
    expected = python.glob(str(folder / glob), recursive=True)
    assert [file.path for file in storage.match(str(folder / glob))] == sorted(expected)
