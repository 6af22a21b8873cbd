"""``ReadFiles``: files are rows of a pipeline, and are read where their content is asked for."""

import apache_beam as beam
import pytest

from headrace import ConfigurationError
from headrace.beam import ReadFiles, RunInference
from toys import Acting


@pytest.fixture
def files(tmp_path):
    for name, content in (("a.bin", b"1"), ("sub/b.bin", b"bad"), ("sub/c.bin", b"333")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_rows_have_what_is_known_of_the_files(run, files):
    rows = run.values(rows=run.pipeline | ReadFiles([f"{files}/**/*.bin", f"{files}/a*"]))
    assert sorted((row["path"], row["size"]) for row in rows) == [
        (f"{files}/a.bin", 1),
        (f"{files}/sub/b.bin", 3),
        (f"{files}/sub/c.bin", 3),
    ]
    assert {type(row) for row in rows} == {dict}


@pytest.mark.parametrize("shuffled", [True, False])
def test_contents_go_to_the_model_and_bad_files_fail_alone(run, files, shuffled):
    rows = run.pipeline | ReadFiles(f"{files}/**/*.bin", decode=int)
    rows = rows | "Shuffle" >> beam.Reshuffle() if shuffled else rows
    handler = Acting().with_preprocess_fn(lambda row: row["content"])
    good, dead = rows | RunInference(handler).with_exception_handling()
    values, letters = run.values(values=good, letters=dead.failed_preprocessing[0])
    assert sorted(values) == [1, 333]
    ((row, error),) = letters
    assert (row["path"], error[0]) == (f"{files}/sub/b.bin", ValueError)
    assert "content" not in dict(row)


def test_mistakes_are_told(run, files):
    with pytest.raises(ConfigurationError, match="ReadFiles needs a path or a glob"):
        ReadFiles([])
    with pytest.raises(Exception, match="no file matches"):
        run.values(rows=run.pipeline | ReadFiles(f"{files}/*.jpg"))
