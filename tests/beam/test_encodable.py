"""A dead letter never fails the pipeline: text replaces the parts that cannot be encoded, the rest is exact."""

from __future__ import annotations

import os
import sys
import threading
import urllib.error
from types import SimpleNamespace

import apache_beam as beam
import pytest

from headrace import SKIP
from headrace.beam import DeadLetterRows, KeyedModelHandler, RunInference
from headrace.beam.outputs import encodable_record
from headrace.core.result import ErrorRecord
from toys import Acting


def makers():
    """Factories of objects that cannot be encoded, by name; local, so that a host need not import this module."""

    class Local:
        def __repr__(self):
            return "Local()"

    return {
        "generator": lambda: (n for n in range(3)),
        "lock": threading.Lock,
        "TextIOWrapper": lambda: open(os.devnull),
        "lambda": lambda: lambda: 0,
        # Pickles, but does not unpickle:
        "HTTPError": lambda: urllib.error.HTTPError("address", 404, "gone", None, None),
        "Local": Local,
        "caf": lambda: "caf\udce9",
        "module": lambda: sys,
    }


def making(factories):
    """A function that makes an element with the object of that name."""
    return lambda name: {"name": name, "made": factories[name]()}


UNCODABLE = makers()
made = making(UNCODABLE)


def refuse(batch):
    raise ValueError(f"refused {batch[0] if isinstance(batch[0], str) else ''}")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
class TestAcrossAShuffle:
    """For each kind of object that cannot be encoded."""

    def check(self, pairs):
        """Takes each object's name, and the text in its place."""
        assert sorted(name for name, _ in pairs) == sorted(UNCODABLE)
        assert all(isinstance(text, str) and name in text for name, text in pairs)

    @pytest.mark.large
    def test_dead_letters_of_a_model_host_are_encodable(self, run):
        def refuse_all(batch):  # a local function is pickled by value
            raise ValueError("refused")

        handler = Acting(refuse_all, max_batch_size=3).with_preprocess_fn(making(makers()))
        _, dead = run.create(UNCODABLE) | RunInference(handler, isolate=True).with_exception_handling()
        elements = [element for [element], _ in run.values(dead=dead.failed_inferences | beam.Reshuffle())]
        assert {one if isinstance(one, str) else one["name"] for one in elements} == set(UNCODABLE)  # one stays a name

    def test_skipped_elements(self, run):
        handler = Acting(refuse).with_preprocess_fn(lambda _: SKIP).with_preprocess_fn(made)
        _, skipped = run.create(UNCODABLE) | RunInference(handler).with_skipped_elements()
        self.check([tuple(element.values()) for element in run.values(skipped=skipped | beam.Reshuffle())])

    def test_examples_keys_and_rows(self, run):
        handler = KeyedModelHandler(Acting(refuse, max_batch_size=3))
        handler = handler.with_preprocess_fn(lambda name: ((name, UNCODABLE[name]()), UNCODABLE[name]()))
        _, dead = run.create(UNCODABLE) | RunInference(handler).with_exception_handling()
        rows = dead | DeadLetterRows() | "Rows" >> beam.Reshuffle()
        records, rows = run.values(dead=dead.failed_inferences | beam.Reshuffle(), rows=rows)
        self.check([(key[0], example) for [(key, example)], _ in records])
        self.check([error.key for _, error in records])
        self.check([(row.key[0], row.element[1]) for row in rows])
        assert r"refused caf\udce9" in {row.message for row in rows}


def test_replaced_part_leaves_the_rest_of_the_record():
    source, triple = {"s": 1}, (KeyError, "KeyError('x')", ["one\n", "two\n"])
    error = ErrorRecord(triple, attempts=3, model_id="m", key="k", source=source, wrapped=True)
    (element,), copy = encodable_record(([("k", threading.Lock(), source)], error))
    assert (element[0], element[2] is source, copy == triple) == ("k", True, True)
    assert vars(copy) == vars(error)


def test_tensor_on_an_accelerator_is_copied_to_memory(monkeypatch):
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
