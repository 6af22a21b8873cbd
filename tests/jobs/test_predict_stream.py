"""Of a reader of Arrow's batches a reader comes back, which predicts when it is read."""

import itertools

import numpy
import pyarrow
import pytest
from sklearn.linear_model import LinearRegression

from headrace import ConfigurationError, predict_table
from toys import Acting, each, refuse


@pytest.fixture
def doubling(handler_of):
    return handler_of(LinearRegression().fit([[0], [1]], [0, 2]))


class Stream:
    """Has batches of Arrow's, and counts those that were read."""

    def __init__(self, sizes, make=float):
        self.sizes, self.read, self.make = sizes, 0, make

    def __arrow_c_stream__(self, requested_schema=None):
        schema = pyarrow.schema([("n", pyarrow.float64()), ("t", pyarrow.string())])
        return pyarrow.RecordBatchReader.from_batches(schema, self._batches(schema)).__arrow_c_stream__()

    def _batches(self, schema):
        for size in self.sizes:
            self.read += 1
            values = list(map(self.make, range(size)))
            yield pyarrow.record_batch([pyarrow.array(values), pyarrow.repeat("t", size)], schema=schema)


def test_batches_of_a_reader_come_back_one_by_one(doubling):
    stream = Stream([3, 0, 2] + [5] * 20)
    found = predict_table(doubling, stream, columns="n")
    assert isinstance(found, pyarrow.RecordBatchReader)
    assert found.schema.names == ["n", "t", "prediction", "model_id", "outcome", "error"]
    assert stream.read == 1
    first = found.read_next_batch()
    assert stream.read <= 2
    assert first["prediction"].to_pylist() == pytest.approx([0, 2, 4])
    rest = found.read_all()
    assert rest.num_rows == 102
    assert rest["prediction"].to_pylist() == pytest.approx([2 * n for n in rest["n"].to_pylist()])


def test_readers_of_rows_and_of_no_rows(doubling):
    refusing = Acting(each(refuse(2)))
    found = predict_table(refusing, Stream([2, 3]), columns="n", on_failure="mark").read_all()
    assert found["outcome"].to_pylist() == ["predicted"] * 4 + ["failed"]
    assert found["prediction"].to_pylist() == [0, 1, 0, 1, None]
    assert predict_table(doubling, Stream([]), columns="n").read_all().to_pylist() == []
    with pytest.raises(ConfigurationError, match="no column 'm'"):
        predict_table(doubling, Stream([1]), columns="m")


def test_types_of_a_reader_are_those_of_the_first_row_that_is_predicted(doubling):
    found = predict_table(doubling, Stream([2, 2], lambda _: None), columns="n", on_failure="mark").read_all()
    assert found["outcome"].to_pylist() == ["failed"] * 4
    handler = Acting(lambda batch: [{"a": n} if n else None for n in batch])
    found = predict_table(handler, Stream([1, 3]), columns="n", explode=True).read_all()
    assert found.schema.names[2:4] == ["prediction_a", "model_id"]
    assert found["prediction_a"].to_pylist() == [None, None, 1.0, 2.0]


def one_after_the_other(*predictions):
    numbers = itertools.count()
    stream = Stream([1] * len(predictions), lambda _: float(next(numbers)))
    return predict_table(Acting(lambda batch: [predictions[int(n)] for n in batch]), stream, columns="n")


UNLIKE = [(1, 2.5), (True, 5), (False, "x"), ("x", 1), (1, "5"), ({"a": 1}, {"b": 1}), ([1], [0.5]), ([], [1])]


@pytest.mark.parametrize(("first", "later"), [*UNLIKE, (0.5, 2**53 + 1)])
def test_values_that_the_first_type_cannot_hold_are_an_error_and_not_other_values(first, later):
    found = one_after_the_other(first, later)
    assert found.read_next_batch()["prediction"].to_pylist() == [first]
    with pytest.raises(ValueError, match=r"'prediction' is .* in the first batches and .* in a later one"):
        found.read_all()


@pytest.mark.parametrize(
    ("first", "later"), [(0.5, 2), (1, None), ([1], []), ({"a": 1, "b": 2}, {"a": 1, "b": None}), ("x", "y")]
)
def test_values_that_the_first_type_holds_get_it(first, later):
    found = one_after_the_other(first, later)
    assert found.read_all()["prediction"].to_pylist() == [first, later]


def test_columns_that_python_cannot_make_come_back():
    tensors = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(numpy.ones((2, 3)))
    union = pyarrow.UnionArray.from_sparse(
        pyarrow.array([0, 1], "int8"), [pyarrow.array([1, 2]), pyarrow.array(["a", "b"])]
    )
    table = pyarrow.table({"n": [1, 2], "tensors": tensors, "union": union})
    found = predict_table(Acting(), table.to_reader(), columns="n").read_all()
    assert found.select(table.schema.names).equals(table)
    assert found["prediction"].to_pylist() == [1, 2]
