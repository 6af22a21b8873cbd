"""Parts become two files at once or none."""

import gzip
import json
from pathlib import Path

import pyarrow.parquet
import pytest

from headrace.core.errors import ConfigurationError
from headrace.jobs import storage
from headrace.jobs.output import Output
from headrace.jobs.parts import PartWriter
from object_store import OBJECTS
from output_rows import write_rows


def lines(path, opener=open):
    with opener(path) as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("letters", [None, "elsewhere/a.jsonl"])
def test_without_dead_letters_those_of_earlier_runs_are_gone(written, tmp_path, letters):
    output = written("a.jsonl", [[{"n": 0}]], dead_letters=letters)
    for path in (output.path, output.dead_letters, output.failed_letters):
        Path(path).write_text("old")
    output.publish(threshold=1)
    output.clean()
    assert lines(output.path) == [{"n": 0}]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.jsonl"]


@pytest.mark.parametrize("folder", ["", "objects:/"])
def test_what_else_is_in_the_folder_does_no_harm(tmp_path, folder):
    """Parts that a process has begun which was killed, and files of others."""
    OBJECTS.clear()
    output = Output(f"{folder}{tmp_path}/a.jsonl")
    output.prepare()
    for n in range(2):
        part = PartWriter(output.folder, "predictions")
        write_rows(part, [(n, {"n": n, "text": "x" * 100})])
        part.finish()
    (first, _) = storage.match(storage.join(output.folder, "*.predictions"))
    with storage.open_file(first.path) as file:
        whole = file.read()
    strange = {f"{lost}.predictions": whole[:-lost] for lost in range(1, len(whole) + 1, 9)}
    strange |= {"a.letters": b"text\n" * 99, "b.skipped": b"\0", "c.letters": b"", "cut.txt": b"", ".DS_Store": b"\0"}
    for name, content in strange.items():
        with storage.create(storage.join(output.folder, name)) as file:
            file.write(content)
    report = output.publish()
    output.clean()
    with storage.open_file(output.path) as file:
        assert [json.loads(line)["n"] for line in file.read().splitlines()] == [0, 1]
    assert (report.rows, report.is_cut) == (2, False)
    assert [file.path for file in storage.match(f"{folder}{tmp_path}/**")] == [output.path]


def test_parquet_output_without_rows(written):
    output = written("a.parquet", [])
    output.publish(threshold=1)
    assert pyarrow.parquet.read_table(output.path).num_rows == 0


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_check_that_fails_leaves_what_was_there(written, name, tmp_path):
    output = written(name, [[{"n": 0}], [{"n": 1}]], [LETTERS], "elsewhere/a.jsonl")
    Path(output.path).write_text("old")

    def check():
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        output.publish(check, 1)
    output.clean()
    output.clean()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [Path(output.path)]
    assert Path(output.path).read_text() == "old"


def test_outputs_that_cannot_be_written(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="must be a file"):
        Output(str(tmp_path / "folder.jsonl")).prepare()
    with pytest.raises(ConfigurationError, match="cannot write"):
        Output(str(tmp_path / "file" / "a.jsonl")).prepare()


LETTERS = [
    {"row": {"n": 1}, "stage": "inference", "error_type": "E", "attempts": 2},
    {"row": {"m": [1]}, "stage": "reading", "error_type": "E"},
]


@pytest.mark.parametrize("parts", [[], [LETTERS], [LETTERS[:1], LETTERS[1:]]])
@pytest.mark.parametrize("path", ["out/a.parquet", "elsewhere/b/a.parquet", "elsewhere/a.jsonl.gz", "else/a.p.jsonl"])
def test_dead_letters_go_where_they_should(written, tmp_path, path, parts):
    output = written("a.p.jsonl", [[{"n": 0}]], parts, path)
    output.publish(threshold=1)
    output.clean()
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()) == sorted(
        ["out/a.p.jsonl", *([path] if parts else [])]
    )
    assert lines(output.path) == [{"n": 0}]
    if parts and path.endswith(".parquet"):
        table = pyarrow.parquet.read_table(output.dead_letters)
        assert table.column_names[:3] == ["row", "stage", "operation"]
        rows = table.to_pylist()
        assert [json.loads(row["row"]) for row in rows] == [row["row"] for part in parts for row in part]
        assert [row["attempts"] for row in rows] == [row.get("attempts") for part in parts for row in part]
    elif parts:
        found = lines(output.dead_letters, gzip.open if path.endswith(".gz") else open)
        assert found == [row for part in parts for row in part]
