"""``predict`` takes the rows of data frames and Arrow tables, and gives handlers what ``headrace run`` would."""

from __future__ import annotations

import json
import pickle

import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from sklearn.base import BaseEstimator
from sklearn.preprocessing import OneHotEncoder

from headrace import SKIP, BatchingConfig, ConfigurationError, Failure, KeyedModelHandler, predict
from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas
from headrace.jobs.files import match
from headrace.jobs.job import Job
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from toys import Acting

ROWS = [{"id": "x", "n": 1, "text": "a"}, {"id": "y", "n": 2, "text": "b"}, {"id": "z", "n": 3, "text": "c"}]


class Vectors(Acting):
    """Makes its examples of rows itself, as handlers of arrays do."""

    def example_from_row(self, row):
        return list(row.values())


def tables():
    """Those rows in everything that is read as a table; some can be read once."""
    arrow = pyarrow.Table.from_pylist(ROWS)
    frame = polars.from_arrow(arrow)
    batch = pyarrow.RecordBatch.from_pylist(ROWS)
    return [pandas.DataFrame(ROWS), arrow, batch, arrow.to_reader(2), frame, frame.lazy()]


@pytest.mark.parametrize(
    ("handler", "columns"),
    [
        (Acting(), None),
        (Acting(), "text"),
        (Acting(), ["text"]),
        (Acting(), ["text", "n"]),
        (Vectors(), ["text", "n"]),
        (Vectors(), None),
        (Vectors().with_preprocess_fn(repr), ["n"]),
    ],
)
def test_handler_is_given_what_the_command_line_would_give_it(handler, columns, tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "in.parquet")
    names = (columns,) if isinstance(columns, str) else columns and tuple(columns)
    Run(
        Job(
            handler=handler,
            sources=match([str(tmp_path / "in.parquet")]),
            output=str(tmp_path / "out.jsonl"),
            examples=Examples(names, ("id", "n", "text")),
        )
    ).execute()
    written = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [list(predict(handler, table, columns=columns)) for table in tables()] == [written] * 6


def test_key_is_a_column_and_predictions_come_without_it():
    keyed, table = KeyedModelHandler(Acting()), pandas.DataFrame(ROWS)
    assert list(predict(keyed, table, columns="text", key="id")) == ["a", "b", "c"]
    with pytest.raises(ConfigurationError, match=r"takes keys; name their column with --key \(in Python, key=\)"):
        predict(keyed, table)


def test_skipped_rows_yield_nothing():
    handler = Acting().with_preprocess_fn(lambda n: SKIP if n == 2 else n)
    assert list(predict(handler, pandas.DataFrame(ROWS), columns="n")) == [1, 3]


def test_table_is_read_only_as_far_as_the_next_batch_needs(monkeypatch):
    read = []
    monkeypatch.setattr(pandas.Series, "__iter__", lambda self: read.append(len(self)) or iter(self.tolist()))
    frame = pandas.DataFrame({"o": [[n] for n in range(5000)]})
    assert next(predict(Acting(), frame, columns="o")) == [0]
    assert 1024 <= sum(read) < 2 * 1024


def test_mistaken_arguments_are_refused_at_once():
    frame = pandas.DataFrame(ROWS)
    with pytest.raises(ConfigurationError, match="no column 'txt'; did you mean 'text'"):
        predict(Acting(), frame, columns=["txt"])
    with pytest.raises(ConfigurationError, match="takes no keys; leave --key out"):
        predict(Acting(), frame, key="id")
    with pytest.raises(ConfigurationError, match=r"give a list of a DataFrame, or leave columnar out"):
        predict(Acting(), frame, batching=BatchingConfig(columnar=True))
    with pytest.raises(ConfigurationError, match="columns and key choose from the columns of a data frame"):
        predict(Acting(), ROWS, columns=["text"])
    with pytest.raises(ConfigurationError, match="5 is no model handler"):
        predict(5, frame)


class Adds(BaseEstimator):
    """Adds two columns, and counts its calls; fails where it sees 1300."""

    calls = []

    def predict(self, frame):
        self.calls.append(len(frame))
        if (frame["a"] == 1300).any():
            raise ValueError("13 again")
        return (frame["a"] + frame["b"]).to_numpy()


MAKERS = {
    "pandas": lambda frame: frame,
    "arrow": pyarrow.Table.from_pandas,
    "polars": polars.from_pandas,
    "lazy": lambda frame: polars.from_pandas(frame).lazy(),
    "reader": lambda frame: pyarrow.Table.from_pandas(frame).to_reader(700),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_frames_go_to_the_model_in_blocks_and_come_back_row_by_row(tmp_path, make):
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Adds()))
    handler = SklearnModelHandlerPandas(str(tmp_path / "model.pkl"))
    frame = pandas.DataFrame({"t": "x", "a": range(3000), "b": 0.5}, index=range(3000, 0, -1))
    Adds.calls.clear()
    results = list(predict(handler, make(frame), columns=["a", "b"], on_failure="yield"))
    assert len(Adds.calls) < 100
    bad = results.pop(1300)
    assert isinstance(bad, Failure)
    assert (str(bad.error), bad.element["a"], bad.tag) == ("13 again", 1300, 1300)
    assert [result.inference for result in results] == [n + 0.5 for n in range(3000) if n != 1300]
    assert results[5].example == {"a": 5, "b": 0.5}
    assert results[5].model_id == str(tmp_path / "model.pkl")
    with pytest.raises(ValueError, match="13 again"):
        list(predict(handler, make(frame), columns=["a", "b"]))


def test_lazy_frames_are_computed_as_they_are_read(monkeypatch):
    collected, collect = [], polars.LazyFrame.collect
    monkeypatch.setattr(polars.LazyFrame, "collect", lambda frame: collected.append(collect(frame)) or collected[-1])
    lazy = polars.DataFrame({"n": range(5)}).lazy()
    assert list(map(str, predict(Acting(), lazy.filter(polars.col("n") > 2), columns="n"))) == ["3", "4"]
    assert not list(predict(Acting(), lazy.filter(polars.col("n") > 7), columns="n"))
    assert not any(map(len, collected))


def test_series_and_arrays_are_elements_though_they_can_be_streams():
    for given in (polars.Series(["a", "b"]), pyarrow.chunked_array([["a"], ["b"]])):
        assert list(map(str, predict(Acting(), given))) == ["a", "b"]


def test_categories_of_polars(tmp_path):
    """Whose texts Arrow does not decode."""
    frame = pandas.DataFrame({"plan": pandas.Categorical(["free", "pro"] * 5)})
    model = OneHotEncoder(sparse_output=False).fit(frame)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    handler = SklearnModelHandlerPandas(str(tmp_path / "model.pkl"), method="transform")
    found = [result.inference.tolist() for result in predict(handler, polars.from_pandas(frame))]
    assert found == [[1, 0], [0, 1]] * 5


def test_batches_of_a_stream_are_elements_where_elements_have_many_rows():
    reader = pyarrow.Table.from_pylist(ROWS).to_reader(2)
    handler = Acting(lambda batch: [batch.num_rows]).with_no_batching()
    assert list(predict(handler, reader)) == [2, 1]
