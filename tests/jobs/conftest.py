"""Models and the comparison of the two ways in which rows go through."""

import itertools
import json
import pickle
from dataclasses import replace

import numpy
import pandas
import pyarrow.parquet
import pytest
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression

from headrace.cli.columns import choose
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy
from headrace.jobs.files import match
from headrace.jobs.job import Job
from headrace.jobs.output import Output
from headrace.jobs.parts import PartWriter
from headrace.jobs.reading import infer_schema
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from output_rows import write_rows
from tables_of_all_types import write_columns_of_all_types


class Picky(LogisticRegression):
    """Refuses a batch with a row that begins with 13."""

    def predict(self, rows):
        if (numpy.asarray(rows)[:, 0] == 13).any():
            raise ValueError("13 again")
        return super().predict(rows)


@pytest.fixture(scope="session")
def logistic(tmp_path_factory):
    """The file of a model of two columns, that refuses some rows."""
    rows = numpy.random.default_rng(3).normal(size=(50, 2)) * 20
    path = tmp_path_factory.mktemp("model") / "model.pkl"
    path.write_bytes(pickle.dumps(Picky().fit(rows, rows.sum(axis=1) > 0)))
    return str(path)


@pytest.fixture
def handler_of(tmp_path):
    """Pickles a model of scikit-learn for a handler of such a file."""

    def make(model, kind=SklearnModelHandlerNumpy, **options):
        path = tmp_path / f"{type(model).__name__}.pkl"
        path.write_bytes(pickle.dumps(model))
        return kind(str(path), **options)

    return make


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file below the current folder; returns its path."""
    monkeypatch.chdir(tmp_path)

    def to(name, content=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return to


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """1,500 rows of Parquet with columns of all kinds."""
    return write_columns_of_all_types(tmp_path_factory.mktemp("good") / "good.parquet")


@pytest.fixture
def both_ways(tmp_path, logistic):
    """Runs over the same files in columns and row by row; gives what came of it, which must be equal, once."""

    def run(
        *files, columns=("a", "b"), keep=None, output="out.jsonl", handler=None, in_columns=True, alone=False, **options
    ):
        sources = match([str(file) for file in files])
        head = infer_schema(sources)
        examples = Examples(choose("--columns", columns, head.columns), head.columns)
        text = options.pop("text", ())
        types = {**head.csv, **dict.fromkeys(text, "str"), **options.pop("types", {})}
        examples = replace(examples, types={**head.stated, **types})
        keep = choose("--keep", keep, head.columns)
        outcomes = []
        for columnar in (True, False):
            path = tmp_path / str(columnar) / output
            path.parent.mkdir(exist_ok=True)
            job = Job(
                handler or SklearnModelHandlerNumpy(logistic),
                sources,
                str(path),
                examples,
                types,
                keep,
                columnar=columnar,
                batch_sizes={} if columnar or not alone else {"max_batch_size": 1},
                **options,
            )
            started = Run(job)
            assert started.is_columnar is (columnar and in_columns)
            report = started.execute()
            outcomes.append((_content(path), _letters(path), report.predictions, report.dead_letters))
        assert repr(outcomes[0]) == repr(outcomes[1])  # NaN is like NaN
        return outcomes[0]

    return run


def _content(path):
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        return table.schema, table.to_pylist()
    return path.read_text()


def _letters(path):
    place = path.parent / "out.dead-letters.jsonl"
    text = place.read_text() if place.exists() else ""
    letters = [
        json.loads(line.replace(".run_columns was given", ".run_inference was given")) for line in text.split("\n")[:-1]
    ]
    assert not letters or letters[0]["traceback"]
    letters = [{**letter, "traceback": None} for letter in letters]
    letters = [{**letter, "attempts": None} if letter["stage"] == "inference" else letter for letter in letters]
    return sorted(letters, key=json.dumps)


class Answers(BaseEstimator):
    """Answers with sums, in a form of its own."""

    def __init__(self, form):
        self.form = form

    def predict(self, rows):
        return FORMS[self.form](numpy.asarray(rows).sum(axis=1))


class Unwritable:
    def tolist(self):
        raise RuntimeError("no list")


def _some_unwritable(sums):
    itself = {}
    itself["x"] = itself
    odd = {1: itself, 2: Unwritable(), 3: {1: 1, "1": 2}}
    return numpy.array([odd.get(n % 5, {"sum": one}) for n, one in enumerate(sums.tolist())], object)


FORMS = {
    "list": list,
    "generator": iter,
    "text": lambda sums: "x" * len(sums),
    "frame": lambda sums: pandas.DataFrame({"x": sums, "y": sums}),
    "series": lambda sums: pandas.Series(sums, index=range(9, 9 + len(sums))),
    "dict": lambda sums: {"sum": sums, "rows": sums.reshape(-1, 1)},
    "columns": lambda sums: numpy.column_stack([sums, sums]),
    "objects": lambda sums: numpy.array([*({"sum": one} for one in sums)], object),
    "unwritable": _some_unwritable,
    "other bytes": lambda sums: sums.astype(">f8"),
    "large": lambda sums: numpy.full(len(sums), 2**63 + 1, "uint64"),
    "tuple": lambda sums: (sums, sums),
    "too few": lambda sums: sums[1:],
    "one": lambda _: numpy.array(5.0),
    "none": lambda _: None,
}


@pytest.fixture(params=list(FORMS))
def answering(tmp_path, request):
    """The file of a model that answers in one of many forms, some of them wrong."""
    path = tmp_path / "answers.pkl"
    path.write_bytes(pickle.dumps(Answers(request.param)))
    return str(path)


@pytest.fixture
def written(tmp_path):
    """Writes parts of predictions and of dead letters, and their manifest."""

    def to(name, predictions, letters=(), dead_letters=None):
        output = Output(str(tmp_path / "out" / name), dead_letters and str(tmp_path / dead_letters))
        output.prepare()
        for kind, parts in (("predictions", predictions), ("letters", letters)):
            for rows in parts:
                part = PartWriter(output.folder, kind)
                write_rows(part, [(place, row) for row, place in zip(rows, places)])
                part.finish()
        return output

    places = itertools.count()

    return to
