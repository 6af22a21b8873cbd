"""A handler over rows does to each row's example what the handler does; its predictions become columns."""

from collections import namedtuple

import numpy
import pytest
from apache_beam.ml.inference import base

from headrace.core.config import BatchingConfig
from headrace.core.errors import ConfigurationError
from headrace.core.keyed import KeyedModelHandler, KeyModelMapping, MaybeKeyedModelHandler
from headrace.core.result import Stage
from headrace.local.predict import predict
from headrace.rows.blocks import BrokenLine
from headrace.rows.examples import (
    Examples,
    batching_over_rows,
    exploded,
    exploded_all,
    naming_outputs,
    over_rows,
    refuse_exploded,
)
from large import tensorflow, torch
from toys import Acting, each


class Array(Acting):
    def example_from_row(self, row):
        return [float(value) for value in row.values()]


def echo(name="echo", kind=Acting, **options):
    """Predicts a pair of its name and the example."""
    return kind(each(lambda example: (name, example)), **options)


class BeamsEcho(base.ModelHandler):
    def load_model(self):
        return "beam"

    def run_inference(self, batch, model, inference_args=None):
        return [(model, example) for example in batch]


ROW = {"a": 1, "b": 2, "k": "x"}


def outcome(handler, row=ROW, **examples):
    """A prediction or a failure."""
    (found,) = predict(over_rows(handler, Examples(**examples)), [row], on_failure="yield")
    return found


@pytest.mark.parametrize(
    ("kind", "columns", "example"),
    [
        (Acting, None, ROW),
        (Acting, ("b", "a"), {"b": 2, "a": 1}),
        (Acting, ("b",), 2),
        (Array, ("b", "a"), [2.0, 1.0]),
        (Array, ("b",), [2.0]),
        (Array, None, [1.0, 2.0]),
    ],
)
def test_examples_are_made_of_columns_in_their_order(kind, columns, example):
    assert repr(outcome(echo(kind=kind), columns=columns, all_columns=("a", "b"))) == repr(("echo", example))


def test_columns_that_a_prediction_has_are_refused():
    over = over_rows(echo(), Examples(("a",)), ("prediction", "model_id"))
    first, *others = predict(over, [{"a": 1}, {"a": 2, "prediction": 7}, {"a": 3, "model_id": "m"}], on_failure="yield")
    assert first == ("echo", 1)
    assert "the row has a column 'prediction' of its own" in str(others[0].error)
    assert "with --keep" in str(others[1].error)


@pytest.mark.parametrize("handler", [echo(kind=Array), BeamsEcho()], ids=["headrace", "beam"])
def test_functions_of_the_handler_see_examples_only(handler):
    handler = handler.with_preprocess_fn(lambda x: x + 1).with_preprocess_fn(lambda x: x * 10)
    handler = handler.with_postprocess_fn(lambda pair: pair[1]).with_postprocess_fn(lambda x: -x)
    assert outcome(handler, columns=("b",)) == -21


@pytest.mark.parametrize(
    ("handler", "row", "stage", "index"),
    [
        (echo(kind=Array), {"a": "text"}, Stage.PREPROCESSING, 0),
        (echo(kind=Array), {"b": 1}, Stage.PREPROCESSING, 0),
        (echo().with_preprocess_fn(lambda _: 1 / 0), {"a": 1}, Stage.PREPROCESSING, 1),
        (echo().with_postprocess_fn(lambda _: 1 / 0), {"a": 1}, Stage.POSTPROCESSING, 0),
        (KeyedModelHandler([KeyModelMapping(["x"], echo())]), {"a": 1, "k": "y"}, Stage.INFERENCE, 0),
        (KeyedModelHandler(echo()), {"a": 1}, Stage.PREPROCESSING, 0),
        (KeyedModelHandler(echo()).with_postprocess_fn(lambda _: 1 / 0), ROW, Stage.POSTPROCESSING, 0),
    ],
)
def test_failures_name_their_operation(handler, row, stage, index):
    key = "k" if isinstance(handler, KeyedModelHandler) else None
    failure = outcome(handler, row, columns=("a",), key=key)
    assert (failure.stage, failure.index) == (stage, index)


def test_a_missing_column_is_named():
    assert str(outcome(echo(), {"a": 1}, columns=("a", "b")).error) == "the row has no column 'b'"
    assert str(outcome(KeyedModelHandler(echo()), {"a": 1}, key="k").error) == "the row has no column 'k'"


def test_a_broken_line_fails_as_it_was_broken():
    line = BrokenLine("{", "a.jsonl", 3, ValueError("half an object"))
    failure = outcome(echo(), line)
    assert failure.error is line.error


def test_one_model_for_all_keys_or_for_what_may_have_some():
    assert outcome(KeyedModelHandler(echo()), columns=("a",), key="k") == ("echo", 1)
    assert outcome(MaybeKeyedModelHandler(echo()), columns=("a",)) == ("echo", 1)
    beams = base.KeyedModelHandler([base.KeyModelMapping(["x"], BeamsEcho())])
    assert outcome(beams, columns=("a",), key="k") == ("beam", 1)


def test_a_model_for_each_key():
    handler = KeyedModelHandler([KeyModelMapping(["x", "y"], echo("one")), KeyModelMapping(["z"], echo("two"))], 1)
    rows = [{"a": n, "k": key} for n, key in enumerate("xzyz")]
    over = over_rows(handler, Examples(("a",), key="k"))
    assert over.max_models == 1
    assert list(predict(over, rows)) == [("one", 0), ("two", 1), ("one", 2), ("two", 3)]


def test_functions_of_a_keyed_handler_see_the_key():
    handler = KeyedModelHandler(echo()).with_preprocess_fn(lambda pair: (pair[0] * 2, pair[1] + 10))
    handler = handler.with_postprocess_fn(lambda pair: (pair[0], f"{pair[0]}: {pair[1][1]}"))
    assert outcome(handler, columns=("a",), key="k") == "xx: 11"


class Other(KeyedModelHandler):
    def run_inference(self, batch, model, inference_args=None):
        return batch


@pytest.mark.parametrize(
    ("handler", "key", "message"),
    [
        (KeyedModelHandler(echo()), None, "name their column with --key"),
        (echo(), "k", "Acting takes no keys; leave --key out"),
        (Other(echo()), "k", "Other changes KeyedModelHandler"),
        (echo().with_no_batching(), None, "rows come one by one"),
        (Acting, None, "no model handler"),
        (None, None, "None is no model handler"),
    ],
)
def test_handlers_that_rows_cannot_be_given_to(handler, key, message):
    with pytest.raises(ConfigurationError, match=message):
        over_rows(handler, Examples(key=key))


def test_sizes_replace_those_of_the_handler():
    handler = echo(min_batch_size=5, max_batch_size=50)
    assert batching_over_rows(handler, {}) == BatchingConfig(min_batch_size=5, max_batch_size=50)
    assert batching_over_rows(handler, {"max_batch_size": 9}) == BatchingConfig(min_batch_size=5, max_batch_size=9)
    assert batching_over_rows(handler, {"max_batch_size": 4}) == BatchingConfig(min_batch_size=4, max_batch_size=4)
    with pytest.raises(ConfigurationError, match=r"Minimum \(5\)"):
        batching_over_rows(handler, {"min_batch_size": 5, "max_batch_size": 4})


@pytest.mark.parametrize("keyed", [False, True])
def test_weights_are_of_the_example_not_of_the_row(keyed):
    seen = []
    weigh = (lambda pair: pair[1]) if keyed else (lambda example: example)
    handler = Acting(
        lambda batch: seen.append(list(batch)) or batch, max_batch_weight=10, element_size_fn=weigh, min_batch_size=100
    )
    handler = KeyedModelHandler(handler) if keyed else handler
    rows = [{"a": weight, "k": "x"} for weight in (4, 4, 4, 9)]
    over = over_rows(handler, Examples(("a",), key="k" if keyed else None))
    list(predict(over, rows, batching=batching_over_rows(handler, {})))
    assert seen == [[9], [4, 4], [4]]


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


@pytest.mark.large
def test_values_of_tensors_have_columns():
    for tensor in (tensorflow.constant([0.5, 1]), torch.tensor([0.5, 1], requires_grad=True)):
        assert exploded(tensor) == {"prediction_0": 0.5, "prediction_1": 1.0}


def test_columns_of_all_rows_and_of_arrays_are_the_same():
    assert exploded_all([[1, 2], None, 3]) == {
        "prediction_0": [1, None, None],
        "prediction_1": [2, None, None],
        "prediction": [None, None, 3],
    }
    assert exploded_all([None, None]) == {"prediction": [None, None]}
    for array in (NAMED, numpy.eye(3), numpy.arange(3), numpy.zeros((2, 2, 2))):
        of_array = {name: numpy.asarray(values).tolist() for name, values in exploded_all(array).items()}
        assert of_array == exploded_all(list(array))


def test_columns_that_are_called_so_are_refused():
    refuse_exploded(["a", "prediction"])
    with pytest.raises(ConfigurationError, match="there is a column 'prediction_a'"):
        refuse_exploded(["a", "prediction_a"])


def test_each_of_several_handlers_names_its_outputs_if_it_can():
    plain, named = echo(), echo()
    named.with_named_outputs = lambda: "named"
    assert naming_outputs([plain, named, None]) == [plain, "named", None]
