"""What the tests of ``HandlerContract`` call: batches, copies and comparisons of values, and ways to run a handler."""

from __future__ import annotations

import copyreg
import importlib
import io
import math
import pickle
import random
import sys
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Number
from types import FrameType
from typing import Any, NamedTuple

from headrace.core.answer import predictions_of
from headrace.core.config import BatchingConfig
from headrace.core.errors import NotYetHonouredWarning
from headrace.core.result import Failure
from headrace.core.transferable import LOCKS
from headrace.local.predict import predict

_SHUFFLES = 4


class Wrapped(tuple[Any]):
    """One value in a type that no handler knows."""

    __slots__ = ()


def wrapped(value: Any) -> Wrapped:
    """Wraps a value."""
    return Wrapped((value,))


def unwrapped(value: Any) -> Any:
    """The value in a wrapping."""
    return value[0]


def inference_of(prediction: Any) -> Any:
    """What a prediction says, without its example."""
    return getattr(prediction, "inference", prediction)


def infer(handler: Any, batch: Sequence[Any], model: Any, inference_args: Any) -> list[Any]:
    """The predictions of one call of ``run_inference``."""
    return predictions_of(handler.run_inference(batch, model, inference_args), handler, len(batch))


def run_predict(handler: Any, elements: Any, **options: Any) -> list[Any]:
    """The outcomes of ``headrace.predict``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotYetHonouredWarning)
        return list(predict(handler, elements, **options))


class LoadedHandler(NamedTuple):
    """A handler with its model, and what to ask it."""

    handler: Any
    model: Any
    examples: list[Any]
    inference_args: Any

    def infer(self, batch: Sequence[Any] | None = None) -> list[Any]:
        """The predictions of one call, for all examples or for a batch."""
        return infer(self.handler, self.examples if batch is None else batch, self.model, self.inference_args)

    def predict(self, elements: Any, handler: Any = None, **options: Any) -> list[Any]:
        """The outcomes of ``headrace.predict``, with the handler or with what was made of it."""
        return run_predict(handler or self.handler, elements, inference_args=self.inference_args, **options)

    def outcomes(self, batch: list[Any], handler: Any = None) -> list[Any]:
        """The same of elements that are one batch, with failures."""
        together = BatchingConfig(min_batch_size=len(batch), max_batch_size=len(batch))
        return self.predict(batch, handler, batching=together, on_failure="yield")


def batches_of(examples: list[Any], size: int) -> list[list[Any]]:
    """The examples in batches of a size; the last one may be smaller."""
    return [examples[start : start + size] for start in range(0, len(examples), size)]


def mixtures(count: int) -> Iterator[list[int]]:
    """Positions of ``count`` examples: each with the first and the second, and all in several orders."""
    for place in range(1, count):
        yield from ([0, place], [place, 0], [place, 1]) if place > 1 else ([0, 1],)
    everything = list(range(count))
    yield from (everything, everything[::-1])
    shuffled = random.Random(0)  # noqa: S311 - the same orders each time, and no secret
    for _ in range(_SHUFFLES):
        yield shuffled.sample(everything, count)


def shown(outcome: Any) -> str:
    """An outcome as an error message shows it."""
    return f"the failure {outcome.error!r}" if isinstance(outcome, Failure) else repr(inference_of(outcome))


def identical(a: Any, b: Any) -> bool:
    """Whether two values are equal to the last digit."""
    return nearly_equal(a, b, relative=0, absolute=0)


def pickled(value: Any) -> Any:
    """A copy, pickled as a pipeline does: lambdas, too, if cloudpickle is installed; locks as new ones."""
    content = io.BytesIO()
    _pickler()(content).dump(value)
    return pickle.loads(content.getvalue())


def _pickler() -> Any:
    try:
        base: Any = importlib.import_module("cloudpickle").Pickler
        table = base.dispatch_table
    except ImportError:
        base, table = pickle.Pickler, copyreg.dispatch_table
    return type("Pickler", (base,), {"dispatch_table": ChainMap(dict(LOCKS), table)})


@contextmanager
def objects_calling(method: str) -> Iterator[list[Any]]:
    """Collects the objects whose ``method`` this thread calls while the context is open."""
    found: list[Any] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == method and frame.f_code.co_argcount:
            found.append(frame.f_locals[frame.f_code.co_varnames[0]])

    before: Callable[..., Any] | None = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield found
    finally:
        sys.setprofile(before)


def nearly_equal(a: Any, b: Any, *, relative: float = 1e-4, absolute: float = 1e-5) -> bool:
    """Whether two values have the same structure and nearly the same numbers in it.

    Compares mappings, lists, tuples, arrays, tensors and data frames of any framework, and plain objects. NaN equals
    NaN; integers are compared exactly. Arrays of the same shape may differ in number type; an array never equals a
    list.

    Args:
        a: any value.
        b: any value.
        relative: largest difference between two numbers as a share of the larger one; the default allows for another
            order of a sum of 32-bit floats.
        absolute: largest difference between numbers near zero.
    """

    def same(x: Any, y: Any) -> bool:
        return nearly_equal(x, y, relative=relative, absolute=absolute)

    a, b = _opened(a), _opened(b)
    if isinstance(a, Number) and isinstance(b, Number):
        return _close(a, b, relative, absolute)
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    cls: Any = type(a)
    if cls.__eq__ is object.__eq__ and hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    return bool(a == b)


def _opened(value: Any) -> Any:
    """An array as its shape and nested lists, a frame as its columns and rows; anything else unchanged."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return value
    if hasattr(value, "tolist"):
        return value.tolist() if len(shape) == 0 else (tuple(shape), value.tolist())
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return tuple(shape), [str(column) for column in value.columns], value.to_numpy().tolist()
    for convert in ("numpy", "to_numpy", "toarray"):  # TensorFlow's tensors, datatable's frames, sparse matrices
        if hasattr(value, convert):
            return _opened(getattr(value, convert)())
    return value


def _close(a: Any, b: Any, relative: float, absolute: float) -> bool:
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return bool(a == b)
    if isinstance(a, complex) or isinstance(b, complex):
        return bool(abs(a - b) <= max(relative * max(abs(a), abs(b)), absolute))
    return math.isclose(a, b, rel_tol=relative, abs_tol=absolute) or (math.isnan(a) and math.isnan(b))
