"""Results as users and as Beam's dead letters see them."""

from __future__ import annotations

import pickle
import re
import weakref

import apache_beam.ml.inference.base as beams_base

import headrace
import headrace.testing
from headrace import ErrorRecord, Failure, ModelMetadata, PredictionResult, Stage
from headrace.core.result import Caught


def failure(error, stage=Stage.INFERENCE, **more):
    return Failure("tag", stage, 0, "element", Caught.of(error), **more)


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_prediction_results_equal_beams():
    assert PredictionResult(1, 2) == beams_base.PredictionResult(1, 2) == (1, 2, None)
    assert PredictionResult(1, 2, "m").model_id == "m"
    assert ModelMetadata("path", "name") == beams_base.ModelMetadata("path", "name")


def test_a_traceback_shows_the_frames_of_others_and_one_line_for_neighbouring_ones_of_this_package():
    def refuse(batch):
        raise ValueError("no")

    handler = headrace.testing.DoublingHandler().with_preprocess_fn(refuse)
    [failed] = headrace.predict(handler, [1], on_failure="yield")
    first, ours, theirs, error = failed.caught.lines
    assert (first, error) == ("Traceback (most recent call last):\n", "ValueError: no\n")
    assert re.fullmatch(r"  \.\.\. \d+ frames? of headrace\n", ours)
    assert "in refuse" in theirs


def test_a_printed_failure_says_which_element_failed_where_and_why():
    assert str(failure(ValueError("no"))) == "inference failed for 'element': ValueError: no"
    assert repr(failure(ValueError("no"))) == "<Failure: inference failed for 'element': ValueError: no>"
    first = failure(KeyError("k"), Stage.PREPROCESSING)
    assert str(first) == "preprocessing function 0 failed for 'element': KeyError: 'k'"
    one = failure(ValueError("a\n  b"), key="k", model_id="m.pt", attempts=3)
    assert str(one) == "inference failed for 'element': ValueError: a b (key 'k', model m.pt, 3 attempts)"


def test_a_printed_failure_is_short_whatever_failed():
    class Mute:
        def __repr__(self):
            raise RuntimeError

    class Unsaid(Exception):
        def __str__(self):
            raise RuntimeError

    one = Failure("tag", Stage.INFERENCE, 0, Mute(), Caught(Unsaid(), []))
    assert str(one).endswith("Unsaid: ...")
    assert "Mute>" in str(one)
    assert len(str(Failure("tag", Stage.INFERENCE, 0, "x" * 10_000, Caught(ValueError("y" * 10_000), [])))) < 800


def test_an_error_of_a_class_that_cannot_be_imported_still_makes_a_dead_letter():
    class Local(KeyError):
        pass

    record = failure(Local("x")).record
    assert record[1][:2] == (KeyError, "Local('x')")
    assert pickle.loads(pickle.dumps(record)) == record


def test_a_failure_keeps_only_its_text_alive():
    class Model:
        pass

    def fail():
        model = Model()
        alive.append(weakref.ref(model))
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner

    alive = []
    kept = failure(raised_by(fail))
    assert alive[0]() is None
    assert "KeyError: 'inner'" in "".join(kept.record[1][2])
    assert pickle.loads(pickle.dumps(kept)).record == kept.record


def raised_by(function):
    try:
        function()
    except ValueError as caught:
        return caught


def test_a_record_says_more_than_the_triple_that_it_is():
    facts = {"attempts": 3, "model_id": "m.pkl", "key": "k", "source": ["raw"]}
    element, made = failure(raised(ValueError("no")), **facts).record
    assert element == ["element"]
    for record in (made, pickle.loads(pickle.dumps(made))):
        assert isinstance(record, ErrorRecord)
        assert record == tuple(made)
        cls, text, lines = record
        assert (cls, text) == (record[0], record[1]) == (ValueError, "ValueError('no')")
        assert lines[0].startswith("Traceback")
        assert lines[-1] == "ValueError: no\n"
        assert {name: getattr(record, name) for name in facts} == facts
        assert record.wrapped
    assert not failure(ValueError(), whole_batch=True).record[1].wrapped
