"""In columns the same comes of a run as row by row."""

import gzip
import json
import os
from unittest import mock

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy
from headrace.jobs import csv_blocks
from headrace.jobs.files import Source, match
from headrace.jobs.reading import RowRanges, read_blocks, read_rows
from headrace.rows.blocks import place_at
from headrace.rows.columns import Fit, fitted
from tables_of_all_types import OUTPUTS, parquet


@pytest.mark.parametrize("keep", [None, [""], ["b", "t*", "a"]], ids=["all", "none", "some"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_parquet_with_columns_of_all_kinds_of_which_some_are_kept(both_ways, good, keep, output):
    _, letters, predictions, _ = both_ways(good, keep=keep, output=output)
    assert (len(letters), predictions) == (3, 1497)


@pytest.mark.parametrize("output", OUTPUTS)
def test_model_columns_with_what_is_no_finite_number(both_ways, tmp_path, output):
    wrong = [None, float("nan"), float("inf"), -1e39, 1e308, 13.0, 1.5]
    numbers = [wrong[n % 7] if n % 10 == 0 else n / 3 for n in range(700)]
    path = parquet(tmp_path / "in.parquet", a=numbers, b=[None if n % 33 == 0 else n for n in range(700)])
    both_ways(path, output=output)


def test_numbers_of_all_types(both_ways, tmp_path):
    for kind in ("int8", "uint16", "int64", "uint64", "float16", "float32", "bool"):
        numbers = numpy.arange(300).astype(kind)
        large = numbers + numpy.uint64(2**63 + 1) if kind == "uint64" else numbers
        parquet(tmp_path / f"{kind}.parquet", a=numbers, b=large)
    both_ways(tmp_path / "*.parquet")


@pytest.mark.parametrize("output", OUTPUTS)
def test_files_that_differ(both_ways, good, tmp_path, output):
    others = [
        parquet(tmp_path / "1.parquet", b=[1.5, 2.5], a=[1, 2], id=["x", "y"]),
        parquet(tmp_path / "2.parquet", a=[1, 2], id=[3, 4]),
        parquet(tmp_path / "3.parquet", a=["1", "one", None], b=[1, None, 0], prediction=[7, 8, 9]),
        parquet(tmp_path / "4.parquet", a=pyarrow.array([], pyarrow.float64()), b=pyarrow.array([], pyarrow.float64())),
        tmp_path / "5.csv",
    ]
    others[-1].write_text("b,a,id\n1,2,3\n4,x,5\n6,7,8\n")
    both_ways(good, *others, output=output, types={"a": "int"})


def assert_same_rows(path, numbers):
    """In columns, in blocks and record by record."""
    source = Source(str(path), "csv")
    rows, place = [], 0
    names = tuple(numbers)
    for block in fitted(read_blocks(source, types=numbers, names=names), Fit(names)):
        assert block.first == place
        place += len(block)
        rows += [block[index] for index in range(len(block))]
    assert list(map(repr, rows)) == list(map(repr, read_rows(source, numbers)))
    with mock.patch.object(csv_blocks._ArrowParser, "read", return_value=None):
        assert list(map(repr, rows)) == list(map(repr, read_rows(source, numbers)))
    return rows


ODD_LINES = [
    '1,2.5,1,"quoted, ""text""",1',
    "1, 2.5 ,1,é,",
    "1,,1,t,1",
    "1,smudge,1,t,1",
    "1,2.5,1_0,t,1",
    "1,2.5,+5,t,1",
    "1,2.5,0x1F,t,1",
    "1,nan,1,t,1",
    "1,1e400,1,t,1",
    "1,2.5,1",
    "1,2.5,1,t,1,2",
    "",
    "   ",
    '1,2.5,1,"two\nlines",1',
    "1,2.5,1.5,t,x",
    '1,2.5,1,a"b,1',
    '1,2.5,1,"a"b,1',
    '1,2.5,1, "a",1',
    "1,2.5,1,t,nan(7)",
    "1,nan(7),1,t,1",
    "1,2.5,007,t,1",
    "1,2.5,99999999999999999999,t,1",
    "1,2.5,1,t\r,1",
    "1,2.5,1,\x00,1",
    "1,2.5,\u0663,t,1",
    "1,2.5,1,t,0xFF",
    "1,2.5,1,\udcff,1",
    '1,"2.5",1,"",""',
    "1,2.5, ,t,\t",
]


@pytest.mark.parametrize("line", ODD_LINES)
def test_each_line_that_can_be_wrong(tmp_path, line):
    lines = [f"{n},{n / 8},{n},plain,{n}" for n in range(200)]
    lines.insert(170, line)
    text = "\n".join(["id,a,b,text,extra", *lines])
    (tmp_path / "in.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert_same_rows(tmp_path / "in.csv", {"id": "int", "a": "float", "b": "int", "extra": "int"})


MANY = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@settings(max_examples=40, **MANY)
@given(st.lists(st.text(alphabet='0123456789.,-+eE"\n\r xn_é\t\0', max_size=12), max_size=60))
def test_any_text(tmp_path, strange):
    text = "a,b\n" + "1,2\n" * 70 + "\n".join(strange) + "\n" + "3,4\n" * 70
    (tmp_path / "in.csv").write_text(text, newline="")
    assert_same_rows(tmp_path / "in.csv", {"a": "int", "b": "float"})


MARK = "\ufeff"


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (f"{MARK}x,1\n", {"text": f"{MARK}x", "a": 1}),
        (f"{MARK},1\n", {"text": MARK, "a": 1}),
        (f"{'x' * 200_000},1\n", {"text": "x" * 200_000, "a": 1}),
    ],
    ids=["marked", "only a mark", "long"],
)
def test_rows_at_the_start_of_a_piece(tmp_path, monkeypatch, line, row):
    """Each but the first is where a piece of the file begins that Arrow could read."""
    monkeypatch.setattr("headrace.jobs.opening._PIECE_BYTES", len(line.encode()))
    (tmp_path / "in.csv").write_text("text,a\n" + line * 5)
    assert assert_same_rows(tmp_path / "in.csv", {"a": "float"}) == [row] * 5


def test_rows_before_the_place_where_a_file_breaks_off(tmp_path, monkeypatch):
    """Though pieces behind them are looked at while they are parsed."""
    monkeypatch.setattr("headrace.jobs.opening._PIECE_BYTES", 300)
    monkeypatch.setattr("headrace.jobs.opening._FIRST_BYTES", 300)
    text = "a\n" + "".join(f"{n}\n" for n in range(5000))
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(text.encode())[:-9])
    rows = []
    with pytest.raises(EOFError):
        rows.extend(read_rows(Source(str(tmp_path / "in.csv.gz"), "csv"), {"a": "int"}))
    assert rows[-1:] == [{"a": len(rows) - 1}]
    assert len(rows) > 4000


def test_rows_of_a_pipe_do_not_wait_for_those_behind_them():
    out, into = os.pipe()
    try:
        os.write(into, b"a\n1\n2\n")
        (source,) = match([f"/dev/fd/{out}"], "csv")
        blocks = read_blocks(source, types={"a": "int"})
        assert list(next(blocks).rows()) == [{"a": 1}, {"a": 2}]
        os.write(into, b"3\n")
        assert list(next(blocks).rows()) == [{"a": 3}]
    finally:
        os.close(into)
    assert list(blocks) == []
    os.close(out)


RUNS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 120)), max_size=5)


@settings(max_examples=30, **MANY)
@given(RUNS, st.sampled_from([7, 50, 1000]))
def test_rows_that_are_done_are_left_out(tmp_path, runs, group):
    """Of files with rows that are not fit for columns; row groups that are done are not read."""
    table = pyarrow.table({"a": [None if n % 37 == 3 else n for n in range(300)], "b": range(300)})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=group)
    (tmp_path / "in.csv").write_text("a,b\n" + "".join(f"{'' if n % 37 == 3 else n},{n}\n" for n in range(300)))
    done = RowRanges([place_at(1, start) for start, _ in runs], [place_at(1, start + count) for start, count in runs])
    missing = [n for n in range(300) if place_at(1, n) not in done]
    for source in (Source(str(tmp_path / "in.parquet"), "parquet"), Source(str(tmp_path / "in.csv"), "csv")):
        blocks = list(fitted(read_blocks(source, 1, {"a": "int", "b": "int"}, done, ("a", "b")), Fit(("a", "b"))))
        assert [block.first + n for block in blocks for n in range(len(block))] == missing
        assert all(block[n]["b"] == block.first + n for block in blocks for n in range(len(block)))


def test_answers_of_all_forms_and_models_that_always_fail(both_ways, tmp_path, answering):
    path = parquet(tmp_path / "in.parquet", a=[n / 3 for n in range(80)], b=list(range(80)))
    handler = SklearnModelHandlerNumpy(answering, min_batch_size=8, max_batch_size=8)
    both_ways(path, handler=handler, threshold=1)
    both_ways(path, handler=handler, threshold=1, explode=True)


@pytest.mark.parametrize("options", [{}, {"resume": {"job": 1}}], ids=["", "resume"])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("answering", ["unwritable"], indirect=True)
def test_rows_whose_prediction_cannot_be_written(both_ways, tmp_path, answering, output, options):
    path = parquet(tmp_path / "in.parquet", a=[n / 3 for n in range(80)], b=list(range(80)))
    handler = SklearnModelHandlerNumpy(answering, min_batch_size=40, max_batch_size=40)
    _, letters, predictions, counts = both_ways(path, handler=handler, keep=["b"], output=output, **options)
    assert predictions == 48
    assert counts == {("writing", "RuntimeError"): 16, ("writing", "ValueError"): 16}
    rows = sorted((letter["row"] for letter in letters), key=lambda row: row["b"])
    assert rows == [{"a": n / 3, "b": n} for n in range(80) if n % 5 in (1, 2)]
    assert {letter["message"].split(": ")[1] for letter in letters} == {
        "it contains itself, or values within values without end",
        "no list",
    }


@pytest.mark.large
def test_numbers_that_numpy_does_not_have(both_ways, tmp_path):
    import torch

    from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor

    class Narrow(torch.nn.Module):
        def forward(self, rows):
            return rows.sum(dim=1).bfloat16()

    torch.save({}, tmp_path / "state.pt")
    path = parquet(tmp_path / "in.parquet", a=[n / 3 for n in range(9)], b=list(range(9)))
    both_ways(path, handler=PytorchModelHandlerTensor(str(tmp_path / "state.pt"), Narrow, {}))


@pytest.mark.large
def test_in_a_host(both_ways, good, handler_of):
    model = LogisticRegression().fit([[-1, -1], [1, 1]], [0, 1])
    both_ways(good, keep=["id"], isolate=True, handler=handler_of(model))


class Halved(SklearnModelHandlerNumpy):
    """Changes what comes of rows, and says nothing of columns."""

    def run_inference(self, batch, model, inference_args=None):
        return super().run_inference([row / 2 for row in batch], model, inference_args)


def by_row(model, batch, inference_args=None):
    return [model.predict(row.reshape(1, -1))[0] for row in batch]


def test_what_columns_do_not_suit_goes_row_by_row(both_ways, tmp_path, logistic):
    numbers = parquet(tmp_path / "in.parquet", a=[1.5, 2.5], b=[1, 2])
    texts = parquet(tmp_path / "texts.parquet", a=["1.5", "2.5"], b=[1, 2])
    lines = tmp_path / "in.jsonl"
    lines.write_text(json.dumps({"a": 1, "b": 2}) + "\n")
    plain = SklearnModelHandlerNumpy(logistic)
    both_ways(texts, numbers, in_columns=False)
    lines.write_text(json.dumps({"a": "1", "b": 2}) + "\n")
    both_ways(lines, in_columns=False)
    both_ways(numbers, handler=Halved(logistic), in_columns=False)
    both_ways(numbers, handler=SklearnModelHandlerNumpy(logistic, inference_fn=by_row), in_columns=False)
    both_ways(numbers, handler=plain.with_preprocess_fn(list), in_columns=False)
    both_ways(numbers, handler=plain.with_postprocess_fn(str), in_columns=False)
    weighing = SklearnModelHandlerNumpy(logistic, max_batch_weight=9, element_size_fn=len)
    both_ways(numbers, handler=weighing, in_columns=False)
