"""What the tests of several rooms share: a handler that does as it is told, and an observer that keeps its events."""

from __future__ import annotations

import itertools
import sys

import cloudpickle

from headrace import BatchingConfig, ModelHandler
from headrace.core.result import Predictions

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
