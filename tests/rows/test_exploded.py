"""Predictions of several values become columns."""

from collections import namedtuple

import numpy
import pytest

from headrace import ConfigurationError
from headrace.rows.examples import exploded, exploded_all, exploded_array, naming_outputs, refuse_exploded

NAMED = numpy.array([(1, 2), (3, 4)], [("a", int), ("b c", int)])
PAIR = namedtuple("PAIR", "label score")


@pytest.mark.parametrize(
    ("prediction", "columns"),
    [
        ([1, "x"], {"prediction_0": 1, "prediction_1": "x"}),
        (numpy.float32([0.5, 1]), {"prediction_0": 0.5, "prediction_1": 1.0}),
        (NAMED[1], {"prediction_a": 3, "prediction_b c": 4}),
        ({"label": "x", 1: [2]}, {"prediction_label": "x", "prediction_1": [2]}),
        (PAIR("x", 0.5), {"prediction_label": "x", "prediction_score": 0.5}),
        (5, {"prediction": 5}),
        (numpy.int64(5), {"prediction": 5}),
        ("text", {"prediction": "text"}),
        ([], {"prediction": []}),
        ({}, {"prediction": {}}),
        (None, {}),
    ],
    ids=repr,
)
def test_values_have_columns(prediction, columns):
    assert exploded(prediction) == columns


def test_columns_of_all_rows_and_of_arrays_are_the_same():
    assert exploded_all([[1, 2], None, 3]) == {
        "prediction_0": [1, None, None],
        "prediction_1": [2, None, None],
        "prediction": [None, None, 3],
    }
    assert exploded_all([None, None]) == {"prediction": [None, None]}
    for array in (NAMED, numpy.eye(3), numpy.arange(3), numpy.zeros((2, 2, 2))):
        of_array = {name: numpy.asarray(values).tolist() for name, values in exploded_array(array).items()}
        assert of_array == exploded_all(list(array))


def test_columns_that_are_called_so_are_refused():
    refuse_exploded(["a", "prediction"])
    with pytest.raises(ConfigurationError, match="there is a column 'prediction_a'"):
        refuse_exploded(["a", "prediction_a"])


def test_handlers_that_know_no_names_stay_as_they_are():
    assert naming_outputs(None) is None
    assert naming_outputs([None]) == [None]
