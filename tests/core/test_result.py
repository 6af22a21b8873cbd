"""Results as users and as Beam's dead letters see them."""

from __future__ import annotations

import pickle

import apache_beam.ml.inference.base as incumbent

from headrace import Failure, ModelMetadata, PredictionResult, Stage


def failure(error, **more):
    return Failure("tag", Stage.INFERENCE, 0, "element", error, **more)


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_prediction_results_equal_the_incumbents():
    assert PredictionResult(1, 2) == incumbent.PredictionResult(1, 2) == (1, 2, None)
    assert PredictionResult(1, 2, "m").model_id == "m"
    assert ModelMetadata("path", "name") == incumbent.ModelMetadata("path", "name")


def test_a_failed_inference_is_a_batch_of_one_element():
    record = failure(raised(ValueError("no"))).record
    assert record[0] == ["element"]
    cls, text, lines = record[1]
    assert (cls, text) == (ValueError, "ValueError('no')")
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "ValueError: no\n"


def test_other_failures_hold_the_element_itself():
    assert Failure("tag", Stage.PREPROCESSING, 1, "element", ValueError()).record[0] == "element"
    assert failure(ValueError(), whole_batch=True).record[0] == "element"


def test_an_error_of_a_class_that_cannot_be_imported_still_makes_a_dead_letter():
    class Local(KeyError):
        pass

    cls, text, _ = failure(Local("x")).triple
    assert cls is KeyError
    assert text == "Local('x')"
    assert pickle.loads(pickle.dumps(failure(Local("x")).record)) == failure(Local("x")).record
