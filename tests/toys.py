"""What the tests of several rooms share: a handler that does as it is told, and an observer that keeps its events."""

from __future__ import annotations

import collections
import io
import itertools
import pickle
import sys

import cloudpickle
import numpy

from headrace import BatchingConfig, ModelHandler
from headrace.core.result import Predictions
from headrace.testing import DeviceLosingHandler

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # hosts cannot import it


class Acting(ModelHandler):
    """Loads and predicts with given functions.

    Args:
        act: what becomes of a batch.
        load: makes the model.
    """

    def __init__(self, act=list, load=lambda: None, **options):
        super().__init__(**options)
        self.act = act
        self.load = load

    def load_model(self):
        return self.load()

    def run_inference(self, batch, model, inference_args=None):
        return self.act(batch)


class Poisoned(ModelHandler):
    """Adds the model to each example; raises for batches with a negative one. Records its batches."""

    def __init__(self, model=100, **options):
        super().__init__(**options)
        self.model = model
        self.batches = []

    def load_model(self):
        return self.model

    def run_inference(self, batch, model, inference_args=None):
        self.batches.append(list(batch))
        if any(example < 0 for example in batch):
            raise ValueError("poison")
        return (example + model for example in batch)


class DeviceLosingColumns(DeviceLosingHandler):
    """Loses its device over a row of 21."""

    def run_columns(self, columns, model, inference_args=None):
        self._device.use()
        if 21 in columns:
            self._device.lose()
        return columns * 2


class Always:
    """A policy that has every batch run on the background thread."""

    def next_in_background(self):
        return True

    def record_inline(self, size, call, whole):
        raise AssertionError

    def record_background(self, size, seconds):
        pass


def each(function):
    """What a batch becomes when each example becomes something of its own."""
    return lambda batch: [function(example) for example in batch]


def infer(handler, batch, inference_args=None):
    """What a handler returns, over a model that it loads for that."""
    return list(handler.run_inference(batch, handler.load_model(), inference_args))


def inferences(results):
    return [result.inference for result in results]


class Events(list):
    """An observer that keeps its events."""

    on_event = list.append

    def of(self, kind):
        return [event for event in self if isinstance(event, kind)]


def run(worker, elements, events=None):
    """The outcomes of a bundle: values and failures."""
    bundle = worker.bundle(Events() if events is None else events)
    outcomes = [*itertools.chain.from_iterable(map(bundle.add, elements, itertools.count())), *bundle.finish()]
    parts = [outcome.values if isinstance(outcome, Predictions) else [outcome] for outcome in outcomes]
    return list(itertools.chain.from_iterable(parts))


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file, reducers):
        self.dispatch_table = collections.ChainMap(reducers, cloudpickle.Pickler.dispatch_table)
        super().__init__(file, 5)


def through_pickle(value, reducers):
    """A value that was pickled with reducers of its own, as messages are."""
    file = io.BytesIO()
    _Pickler(file, reducers).dump(value)
    return pickle.loads(file.getvalue())


def with_attributes(thing, **attributes):
    for name, value in attributes.items():
        setattr(thing, name, value)
    return thing


class Unloadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return int, ("no number",)


def fixed(size, **options):
    """Batches of that size."""
    return BatchingConfig(min_batch_size=size, max_batch_size=size, **options)


def refuse(value):
    """An operation that fails for one value, and changes no other."""

    def operation(given):
        if given == value:
            raise KeyError(given)
        return given

    return operation


ODD_ARRAYS = [
    *(numpy.array([1, 0, 2], dtype) for dtype in ("int64", "int8", "bool", "float64", "float16", "object")),
    numpy.array([1, None, 2.5], dtype=object),
    numpy.array(["1", "0", "2"]),
    numpy.array([0.0, numpy.nan, 0.0], numpy.float32),
    numpy.array([0.0, 1e39, 0.0]),
    numpy.array([[0.0, 1.0, 0.0]], numpy.float32),
    numpy.array([], numpy.float32),
    [1, 0, 2],
    [1.5, 0.0, 2.0],
]
"""Examples of three numbers, and others, for models that take three floats."""
