"""Answers that are no list of predictions are refused, whatever their length, and the error tells the cure."""

from __future__ import annotations

import array
import collections
import copy
import pickle
import re
from typing import Any, NamedTuple

import cloudpickle
import numpy
import pandas
import pyarrow
import pydantic
import pytest
from apache_beam.ml.inference.base import PredictionResult as BeamsResult

from headrace import SKIP, PredictionCountError, PredictionResult
from headrace.core.answer import SomeSkipped, mark_skips, predictions_of, with_model_id
from large import torch


class Handler:
    pass


class Completion(pydantic.BaseModel):
    text: str


class Pair(NamedTuple):
    values: Any
    indices: Any


OF_ONE = {
    "nothing": None,
    "dict": {"logits": [1.0]},
    "large dict": dict.fromkeys("abcdefg"),
    "empty dict": {},
    "dict of another class": collections.UserDict(a=1),
    "str": "x",
    "numpy str": numpy.str_("x"),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "set": {1},
    "frozenset": frozenset([1]),
    "data frame": pandas.DataFrame({"a": [1]}),
    "table": pyarrow.table({"a": [1]}),
    "record batch": pyarrow.record_batch({"a": [1]}),
    "result": PredictionResult(1, 2),
    "named tuple": Pair(1, 2),
    "pydantic": Completion(text="x"),
    "array": numpy.array(1.0),
    "number of numpy": numpy.float32(1),
    "float": 1.0,
    "object": object(),
}
if torch:
    TENSORS = {"torch": torch.tensor(1.0), "values and indices": torch.zeros(1, 2).max(1)}
    OF_ONE |= {name: pytest.param(answer, marks=pytest.mark.large) for name, answer in TENSORS.items()}


SAID = {
    "nothing": "returned None;",
    "dict": r"a dict with the keys 'logits'; .*conversion.to_results\(batch, outputs\)",
    "large dict": r"the keys 'a', 'b', 'c', 'd', 'e', \.\.\.;",
    "str": "a str; .* max_batch_size=1",
    "set": "a set, which has no order",
    "array": "numpy.ndarray without a dimension for the examples",
}


@pytest.mark.parametrize("answer", OF_ONE.values(), ids=OF_ONE)
def test_answers_that_are_no_list_are_refused(request, answer):
    told = "^Handler.run_inference was given 1 example and returned .+; it must return one prediction for each"
    with pytest.raises(PredictionCountError, match=told) as caught:
        predictions_of(answer, Handler(), 1)
    assert re.search(SAID.get(request.node.callspec.id, "returned an? "), str(caught.value))


LISTS = {
    "list": [1, 2],
    "tuple": (1, 2),
    "generator": (n for n in (1, 2)),
    "map": map(int, "12"),
    "values of a dict": {"a": 1, "b": 2}.values(),
    "deque": collections.deque([1, 2]),
    "typed": array.array("i", [1, 2]),
    "array": numpy.array([1, 2]),
    "objects": numpy.array([1, 2], dtype=object),
    "series": pandas.Series([1, 2], index=["columns", "_fields"]),
    "arrow": pyarrow.array([1, 2]),
}
if torch:
    LISTS["torch"] = pytest.param(torch.tensor([1, 2]), marks=pytest.mark.large)


@pytest.mark.parametrize("answer", LISTS.values(), ids=LISTS)
def test_answers_that_are_a_list_are_accepted(answer):
    assert [int(getattr(one, "as_py", lambda one=one: one)()) for one in predictions_of(answer, Handler(), 2)] == [1, 2]


def test_the_list_is_a_copy_of_the_handlers():
    own = [1, 2]
    assert predictions_of(own, Handler()) is not own


def test_skip_is_a_singleton():
    assert copy.copy(SKIP) is copy.deepcopy([SKIP])[0] is SKIP
    assert pickle.loads(pickle.dumps(SKIP)) is cloudpickle.loads(cloudpickle.dumps([SKIP]))[0] is SKIP
    assert repr(SKIP) == "headrace.SKIP"


class Uncomparable:
    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = None


UNSKIPPED = {
    "values": [1.5, None, "x"],
    "none": [],
    "arrays": [numpy.zeros(2), numpy.zeros(2)],
    "not comparable": [Uncomparable()],
    "results": [PredictionResult(SKIP, 1), BeamsResult(1, [SKIP])],
    "mixed": [PredictionResult(1, 2), "x"],
}


@pytest.mark.parametrize("values", UNSKIPPED.values(), ids=UNSKIPPED)
def test_predictions_without_skips_are_unchanged(values):
    found = mark_skips(values)
    assert not isinstance(found, SomeSkipped)
    assert [*map(id, found)] == [*map(id, values)]


@pytest.mark.parametrize("skip", [SKIP, PredictionResult("x", SKIP), BeamsResult("x", SKIP, "m")], ids=str)
@pytest.mark.parametrize("beside", UNSKIPPED.values(), ids=UNSKIPPED)
def test_skips_are_found_in_every_kind_of_answer(skip, beside):
    found = mark_skips([skip, *beside, skip])
    assert isinstance(found, SomeSkipped)
    assert found[0] is found[-1] is SKIP
    assert [*map(id, found[1:-1])] == [*map(id, beside)]


@pytest.mark.parametrize("kind", [PredictionResult, BeamsResult])
def test_results_without_a_name_are_signed(kind):
    unsigned, known, mine = kind(1, 2), kind(1, 2, "known"), kind(1, 2, "me")
    assert with_model_id([unsigned, known, ("key", unsigned)], "me") == [mine, known, ("key", mine)]
    others = [3, "text", None, SKIP, (1, 2), (1, 2, 3), {"inference": 1}]
    assert with_model_id(others, "me") == others
