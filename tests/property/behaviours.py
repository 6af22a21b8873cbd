"""What handlers, and the functions around them, may do with a batch; hosts import this module by name."""

from __future__ import annotations

import enum
import io
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy

from headrace import SKIP, EngineModelHandler, KeyedModelHandler, KeyModelMapping, ModelHandler, PredictionResult
from headrace.core.answer import predictions_of
from headrace.core.conversion import to_results


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Record:
    name: Any
    value: Any


class Colour(enum.Enum):
    RED = 1


class Odd(Exception):
    """Its constructor does not take what ``args`` holds."""

    def __init__(self, element, *, code):
        super().__init__(f"odd {element}", io.StringIO(element))  # which does not pickle as it is
        self.code = code

    def __str__(self):
        return f"{self.args[0]}, {self.code}"

    __repr__ = __str__


def echoed(batch):
    return batch


def paired(batch):
    return to_results(batch, batch, "some/path")


def described(batch):
    return map(description, batch)


def one_by_one(batch):
    for place, example in enumerate(batch):
        yield place, {"the": example, "count": len(batch)}


def in_columns(batch):
    rows = numpy.arange(3.0 * len(batch), dtype="f4").reshape(-1, 3)
    return to_results(batch, {"scores": rows, "labels": [str(row) for row in rows], "best": rows.max(axis=1)})


def as_rows(batch):
    return numpy.arange(2000 * len(batch)).reshape(len(batch), 1000, 2)


def as_columns_of_one_array(batch):
    return numpy.arange(5 * len(batch)).reshape(5, len(batch)).T


def one_for_all(batch):
    shared = [len(batch), numpy.zeros(1000)]
    return [shared] * len(batch)


def in_objects(batch):
    return tuple(Record(Colour.RED, Point(example, None)) for example in batch)


def skipping(batch):
    """Skips some examples, in each of the possible ways."""
    for example in batch:
        answers = (SKIP, PredictionResult(example, SKIP), example, PredictionResult(example, 1))
        yield answers[len(description(example)) % 4]


def nothing(batch):
    return [SKIP] * len(batch)


def in_a_dict(batch):
    return {"answers": batch}


def miscounted(batch):
    return [batch]


def changed(batch):
    """Changes each example in place, as far as that is possible."""
    for example in batch:
        change(example)
    return list(batch)


def refused(batch):
    for example in batch:
        if isinstance(example, bytes | numpy.ndarray):
            raise Odd(type(example).__name__, code=7)
    return batch


def change(value):
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "iufc" and value.flags.writeable:
        value[...] = 3
    elif isinstance(value, dict):
        value["changed"] = True
    elif isinstance(value, list):
        value.append("changed")
    elif isinstance(value, PredictionResult):
        change(value.inference)  # its example comes back from a host as it was sent
    elif isinstance(value, tuple):
        for part in value:
            change(part)


class BehaviourHandler(ModelHandler):
    """Applies a function to a batch; uses the model, and what ``load_model`` left on the handler."""

    def __init__(self, what, **options):
        super().__init__(**options)
        self.what = what

    def load_model(self):
        self.loaded = "loaded"
        return {"any": "object"}

    def run_inference(self, batch, model, inference_args=None):
        assert (self.loaded, model) == ("loaded", {"any": "object"})
        return self.what(batch)


class KeepBatchHandler(BehaviourHandler):
    def __init__(self):
        super().__init__(echoed)
        self.before = ()

    def run_inference(self, batch, model, inference_args=None):
        before, self.before = self.before, batch
        return [(example, before) for example in batch]


HANDLERS = {
    what.__name__: BehaviourHandler(what)
    for what in (
        *(echoed, paired, described, one_by_one, in_columns, as_rows, as_columns_of_one_array, one_for_all, in_objects),
        *(skipping, nothing, in_a_dict, miscounted, changed, refused),
    )
}
HANDLERS["keeping"] = KeepBatchHandler()


OF_ENGINES = {name: handler for name, handler in HANDLERS.items() if name != "keeping"}
"""Those whose predictions do not depend on which elements went before."""


class EngineOfBehaviours(EngineModelHandler):
    """Applies to each example, one at a time, the behaviour that it names."""

    def load_model(self):
        self.loaded = "loaded"
        return {"any": "object"}

    async def submit(self, example, model, inference_args=None):
        assert (self.loaded, model) == ("loaded", {"any": "object"})
        name, value = example
        (prediction,) = predictions_of(OF_ENGINES[name].what([value]), "a behaviour", 1)
        return prediction


class DescribingEngine(EngineModelHandler):
    def load_model(self):
        return description

    async def submit(self, example, model, inference_args=None):
        return model(example)


def processed_engine():
    return _with_processing(DescribingEngine())


def by_behaviour():
    return KeyedModelHandler([KeyModelMapping([name], handler) for name, handler in HANDLERS.items()])


def processed():
    return _with_processing(BehaviourHandler(described))


def weighed():
    return _with_processing(BehaviourHandler(_counted))


def by_key_made_in_preprocessing():
    models = [
        KeyModelMapping(["b", "a"], BehaviourHandler(one_by_one)),
        KeyModelMapping(["c"], BehaviourHandler(refused)),
    ]
    return _with_processing(KeyedModelHandler(models, max_models_per_worker_hint=1).with_preprocess_fn(_keyed))


def batches():
    return _with_processing(BehaviourHandler(one_by_one).with_no_batching())


def _with_processing(handler):
    handler = handler.with_preprocess_fn(_never_bytes).with_preprocess_fn(_never_none)
    return handler.with_postprocess_fn(_as_record).with_postprocess_fn(_short)


def _never_none(element):
    if element is None:
        raise Odd("None", code=0)
    return SKIP if isinstance(element, bool) else {"given": element}


def _never_bytes(element):
    if isinstance(element["given"], bytes):
        raise ValueError(element)
    element["seen"] = True
    return SKIP if isinstance(element["given"], float) else element


def _as_record(prediction):
    return SKIP if isinstance(prediction, str) and len(prediction) % 3 == 1 else Record("prediction", prediction)


def _short(record):
    if len(repr(record)) > 150:
        raise OverflowError(record)
    return SKIP if len(repr(record)) % 4 == 1 else record


def _counted(batch):
    return [SKIP if isinstance(example["given"], int) else (example, len(batch)) for example in batch]


def _keyed(element):
    return "abcd"[len(repr(element)) % 4], element["given"]


def weight(element):
    if isinstance(element["given"], str):
        raise TypeError("strings have no weight")
    return len(element["given"]) if hasattr(element["given"], "__len__") else 1


def description(value):
    """All that can be seen of a value, as text."""
    kind = type(value).__name__
    if isinstance(value, numpy.ndarray):
        content = value.tolist() if value.dtype.hasobject else value.tobytes()
        return f"{kind} {value.dtype} {value.shape} {value.flags.writeable} {content!r}"
    if isinstance(value, numpy.generic):
        return f"{kind} {value.dtype} {value.tobytes()!r}"
    if kind == "DataFrame":
        return f"{kind} {value.to_dict()} {value.index} {value.dtypes}"
    if kind == "Tensor":
        return f"{kind} {value.dtype} {value.requires_grad} {value.tolist()}"
    if isinstance(value, list | tuple):
        return f"{kind} {[description(part) for part in value]}"
    if isinstance(value, dict):
        return f"{kind} {[(description(key), description(part)) for key, part in value.items()]}"
    return f"{kind} {description(vars(value))}" if isinstance(value, Record) else f"{kind} {value!r}"
