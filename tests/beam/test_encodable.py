"""A dead letter never fails the pipeline: what of it cannot be encoded is replaced by a text, the rest is exact."""

from __future__ import annotations

import os
import sys
import threading
import urllib.error
from types import SimpleNamespace

import apache_beam as beam
import pytest

from headrace import SKIP
from headrace.beam import DeadLetterRows, KeyedModelHandler, ModelHandler, RunInference
from headrace.beam.encodable import encodable_record
from headrace.core.result import ErrorRecord


def makers():
    """What makes what cannot be encoded, by name; of a function, so that a host needs nothing of this module."""

    class Local:
        def __repr__(self):
            return "Local()"

    return {
        "generator": lambda: (n for n in range(3)),
        "lock": threading.Lock,
        "TextIOWrapper": lambda: open(os.devnull),
        "lambda": lambda: lambda: 0,
        "HTTPError": lambda: urllib.error.HTTPError("address", 404, "gone", None, None),  # pickles, but not back
        "Local": Local,
        "caf": lambda: "caf\udce9",
        "module": lambda: sys,
    }


def made_by(nasty):
    """A function that makes one by name."""
    return lambda name: {"name": name, "made": nasty[name]()}


NASTY = makers()
made = made_by(NASTY)


class Refusing(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        raise ValueError(f"refused {batch[0] if isinstance(batch[0], str) else ''}")


class Making(Refusing):
    """Predicts what cannot be encoded."""

    def run_inference(self, batch, model, inference_args=None):
        return list(map(made, batch))


def refuse(value):
    raise urllib.error.HTTPError(value["name"], 404, "gone", None, None)


def shuffled(run, letters):
    return run.values(letters=letters | beam.Reshuffle())


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
class TestAcrossAShuffle:
    """Of each way that an element can be nasty."""

    def check(self, elements):
        assert len(elements) == len(NASTY)
        for element in elements:
            assert isinstance(element["made"], str)
            assert element["name"] in element["made"]

    def test_inference(self, run):
        handler = Refusing(max_batch_size=3).with_preprocess_fn(made)
        _, dead = run.create(NASTY) | RunInference(handler).with_exception_handling()
        self.check([element for [element], _ in shuffled(run, dead.failed_inferences)])

    def test_postprocessing_of_predictions(self, run):
        handler = Making().with_postprocess_fn(refuse)
        _, dead = run.create(NASTY) | RunInference(handler).with_exception_handling()
        records = shuffled(run, dead.failed_postprocessing[0])
        self.check([element for element, _ in records])
        assert {error[0] for _, error in records} == {urllib.error.HTTPError}

    def test_in_a_model_host(self, run):
        class Raising(ModelHandler):  # a class of a function travels to the host as it is
            def load_model(self):
                return None

            def run_inference(self, batch, model, inference_args=None):
                raise ValueError("refused")

        handler = Raising(max_batch_size=3).with_preprocess_fn(made_by(makers()))
        _, dead = run.create(NASTY) | RunInference(handler, isolate=True).with_exception_handling()
        elements = [element for [element], _ in shuffled(run, dead.failed_inferences)]
        assert {one if isinstance(one, str) else one["name"] for one in elements} == set(NASTY)  # one as it came

    def test_skipped_elements(self, run):
        handler = Refusing().with_preprocess_fn(lambda _: SKIP).with_preprocess_fn(made)
        _, skipped = run.create(NASTY) | RunInference(handler).with_skipped_elements()
        self.check(run.values(skipped=skipped | beam.Reshuffle()))

    def test_keys(self, run):
        handler = KeyedModelHandler(Refusing()).with_preprocess_fn(lambda name: (NASTY[name](), name))
        _, dead = run.create(NASTY) | RunInference(handler).with_exception_handling()
        records = shuffled(run, dead.failed_inferences)
        self.check([{"name": name, "made": key} for [(key, name)], _ in records])
        self.check([{"name": name, "made": error.key} for [(_, name)], error in records])

    def test_rows(self, run):
        handler = Refusing().with_preprocess_fn(lambda name: made(name)["made"])
        _, dead = run.create(NASTY) | RunInference(handler).with_exception_handling()
        rows = shuffled(run, dead | DeadLetterRows())
        assert len(rows) == len(NASTY)
        assert r"caf\udce9" in {row.element for row in rows}
        assert r"refused caf\udce9" in {row.message for row in rows}


def test_what_can_be_encoded_stays_the_very_record():
    record = ([{"text": "caf\u00e9", "n": 2**70}], ErrorRecord((ValueError, "ValueError()", ["lines"]), key=("k", 1)))
    assert encodable_record(record) is record


def test_what_is_replaced_leaves_the_rest_of_the_record():
    source, triple = {"s": 1}, (KeyError, "KeyError('x')", ["one\n", "two\n"])
    error = ErrorRecord(triple, attempts=3, model_id="m", key="k", source=source, wrapped=True)
    (element,), copy = encodable_record(([("k", threading.Lock(), source)], error))
    assert (element[0], element[2] is source, copy == triple) == ("k", True, True)
    assert vars(copy) == vars(error)


def test_a_tensor_on_an_accelerator_arrives_in_memory(monkeypatch):
    class Tensor:
        def __init__(self, kind):
            self.device = SimpleNamespace(type=kind)

        def cpu(self):
            if self.device.type == "lost":
                raise RuntimeError("no device")
            return ["numbers"]

    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch", SimpleNamespace()))
    error = ErrorRecord((ValueError, "", []))
    element, _ = encodable_record(({"on": (Tensor("cuda"),), "lost": Tensor("lost"), "text": "x"}, error))
    assert element["on"] == (["numbers"],)
    assert "Tensor object at" in element["lost"]
    assert element["text"] == "x"
