"""A Parquet output has the columns of its Parquet input as they are, whatever the handler takes, and after retries."""

import functools

import pyarrow
import pyarrow.parquet
import pytest

from headrace import ModelHandler
from headrace.jobs.files import match
from headrace.jobs.job import Job
from headrace.jobs.letters import dead_letter_columns, match_dead_letters
from headrace.jobs.reading import infer_schema
from headrace.jobs.run import Run
from headrace.rows.examples import Examples


class Answers(ModelHandler):
    """Answers each row in a form of its own; every tenth fails at first."""

    def __init__(self, answer, fails=False):
        self._answer, self._fails = answer, fails

    def load_model(self):
        """None is needed."""
        return self._answer

    def run_inference(self, batch, model, inference_args=None):
        """The model's answers."""
        if self._fails and any(row["id"] % 10 == 0 for row in batch):
            raise ValueError("not yet")
        return [model(row["id"]) for row in batch]


def run(handler, sources, output, *, letters=False, **options):
    columns = dead_letter_columns(sources, {}) if letters else infer_schema(sources).columns
    return Run(Job(handler, sources, str(output), Examples(None, tuple(columns)), **options)).execute()


def without(table, *names):
    """The types and the values of other columns; NaN is like NaN."""
    table = table.drop_columns([name for name in names if name in table.column_names])
    return table.schema, repr(table.to_pylist())


ANSWERS = {
    "numbers": (lambda number: number, pyarrow.int64()),
    "objects": (lambda number: {"label": f"n{number}"}, pyarrow.struct([("label", pyarrow.string())])),
    "of two kinds": (lambda number: number if number % 2 else "even", pyarrow.string()),
}


@pytest.mark.parametrize("answers", ANSWERS)
def test_columns_are_those_of_the_input(tmp_path, good, answers):
    answer, kind = ANSWERS[answers]
    report = run(Answers(answer), match([str(good)]), tmp_path / "out.parquet")
    found, given = (pyarrow.parquet.read_table(path) for path in (tmp_path / "out.parquet", good))
    assert (report.predictions, found.schema.field("prediction").type) == (given.num_rows, kind)
    assert without(found, "prediction") == without(given)


def test_in_columns_the_same(tmp_path, good, both_ways):
    keep = ("single", "day", "money", "category", "nested", "raw")
    (schema, _), _, _, _ = both_ways(good, output="out.parquet", keep=keep)
    given = pyarrow.parquet.read_schema(good)
    assert schema.types[: len(keep)] == [given.field(name).type for name in keep]


def test_rows_that_are_retried_have_the_types_of_the_others(tmp_path, good):
    run(Answers(float, fails=True), match([str(good)]), tmp_path / "out.parquet")
    letters = tmp_path / "out.dead-letters.jsonl"
    first = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert 0 < first.num_rows < 3000
    retry = functools.partial(run, Answers(float), match_dead_letters([str(letters)]), letters=True)
    retry(tmp_path / "out.parquet", dead_letters=str(letters), into=True)
    found, given = (pyarrow.parquet.read_table(path) for path in (tmp_path / "out.parquet", good))
    inexact = ("raw", "holes")  # JSON has neither bytes nor NaN
    assert without(found, "prediction", *inexact) == without(given, *inexact)


def test_files_of_several_types_are_one_output(tmp_path):
    kinds = {"a": pyarrow.float32(), "b": pyarrow.float64()}
    for name, kind in kinds.items():
        table = pyarrow.table({"id": [1, 2], "x": pyarrow.array([0.5, 2.0], kind), "day": [None, None]})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    run(Answers(float), match([str(tmp_path / "*.parquet")]), tmp_path / "out" / "all.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "out" / "all.parquet")
    assert (found["x"].type, found["x"].to_pylist()) == (pyarrow.float64(), [0.5, 2.0, 0.5, 2.0])
