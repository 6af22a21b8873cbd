"""Whether a batch runs on the bundle's thread or beside it makes no difference to what comes out."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import SKIP, BatchingConfig, Failure, KeyedModelHandler, KeyModelMapping, ModelHandler, Stage
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, ElementsSkipped
from headrace.core.result import Skipped
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.worker import Worker
from toys import fixed


class Sometimes:
    """A policy that has every so manieth batch run here."""

    def __init__(self, beside):
        self._beside = cycle(beside)

    def next_in_background(self):
        return next(self._beside)

    def record_inline(self, size, call, whole):
        pass

    def record_background(self, size, seconds):
        pass


class Adding(ModelHandler):
    """Adds; has memory for some rows only, fails for a negative one, and for a huge one in another way."""

    def __init__(self, addend=100, room=1000):
        super().__init__()
        self.addend = addend
        self.room = room

    def load_model(self):
        return self.addend

    def run_inference(self, batch, model, inference_args=None):
        if len(batch) > self.room:
            raise MemoryError(f"{len(batch)} rows")
        for example in batch:
            if example < 0:
                raise ValueError(f"negative: {example}")
            if example > 25:
                raise KeyError(f"huge: {example}")
            yield SKIP if example % 9 == 3 else example + model


class Refusing:
    """Part of a pipeline's own code, which need not be thread-safe."""

    def __init__(self, value, threads):
        self._value = value
        self._threads = threads

    def __call__(self, given):
        self._threads.add(threading.get_ident())
        if given == self._value:
            raise ValueError(f"refused: {given}")
        return SKIP if given == self._value + 1 else given


def run(handler, elements, batching, caught, beside, bundles=2):
    """Outcomes and events in order, what was raised, and the outcomes and events of preprocessing.

    An element that fails in preprocessing comes out at once, while batches before it may still be running.
    """
    spec = prepare(handler, InferenceRequest(batching=batching))
    worker = Worker(catching(spec, caught) if caught else spec)
    worker._background.policy = Sometimes(beside or [False])
    outcomes, seen, raised = [], RecordedEvents(), None
    try:
        for _ in range(bundles):
            bundle = worker.bundle(seen)
            for place, element in enumerate(elements):
                outcomes += bundle.add(element, place)
            outcomes += bundle.finish()
    except Exception as error:
        raised = type(error), str(error)
    finally:
        worker.close()
    unbatched = [getattr(one, "stage", None) is Stage.PREPROCESSING for one in outcomes]
    before, later = ([described(one) for one, is_ in zip(outcomes, unbatched) if is_ == part] for part in (True, False))
    return later, raised, (before, Counter(seen.before)), seen.later


class RecordedEvents:
    def __init__(self):
        self.before, self.later = [], []

    def on_event(self, event):
        match event:
            case ElementFailed(stage, error):
                (self.before if stage is Stage.PREPROCESSING else self.later).append((stage, repr(error)))
            case ElementsSkipped(model, stage, elements):
                (self.before if stage is Stage.PREPROCESSING else self.later).append((model, stage, elements))
            case BatchCompleted():
                self.later.append((event.model, event.examples, event.bytes, event.useful, event.padded))
            case BatchFailed():
                self.later.append((event.model, event.examples, repr(event.error)))


def described(outcome):
    if isinstance(outcome, Failure):
        return outcome.tag, outcome.stage, outcome.index, outcome.element, repr(outcome.error), outcome.attempts
    if isinstance(outcome, Skipped):
        return outcome.stage, outcome.index, outcome.tags, outcome.elements
    return outcome.tags, outcome.values


def keyed():
    return KeyedModelHandler([KeyModelMapping(["a"], Adding()), KeyModelMapping(["b"], Adding(200))])


elements = st.lists(st.integers(-2, 28), max_size=50)
ways = st.lists(st.booleans(), min_size=1, max_size=5).map(lambda ways: [*ways, True])
sizes = st.integers(1, 9)
classes = st.sampled_from([Exception, ValueError, ()])
options = st.sampled_from(
    [{}, {"length_fn": abs, "lookahead": 12}, *({"element_size_fn": abs, "max_batch_weight": w} for w in (None, 40))]
)


@given(elements, ways, sizes, classes, options)
def test_outcomes_events_and_errors_are_the_same_and_in_order(elements, beside, size, caught, options):
    threads = set()
    handler = Adding().with_preprocess_fn(Refusing(7, threads)).with_postprocess_fn(Refusing(108, threads))
    batching = fixed(size, **options)
    here = run(handler, elements, batching, caught, None)
    there = run(handler, elements, batching, caught, beside)
    if here[1] is None:
        assert there == here
    else:
        assert there[1] is not None
        assert all(one == other for one, other in zip(there[0], here[0], strict=False))  # as far as each has come
    assert threads <= {threading.get_ident()}


@pytest.mark.large
@given(elements, ways, sizes)
def test_the_same_holds_for_models_by_key(elements, beside, size):
    pairs = [("ab"[n % 3 == 0], n) for n in elements]
    assert run(keyed(), pairs, fixed(size), Exception, beside) == run(keyed(), pairs, fixed(size), Exception, None)


@pytest.mark.large
@settings(max_examples=30)
@given(st.lists(st.integers(0, 28), max_size=60), ways, st.integers(1, 20), st.integers(1, 12))
def test_no_row_fails_for_want_of_memory_and_order_stays(elements, beside, size, room):
    good, bad = [], []
    for way in (None, beside):
        outcomes, raised, _, _ = run(Adding(room=room), elements, fixed(size), Exception, way, bundles=1)
        assert raised is None
        good.append([pair for one in outcomes if len(one) == 2 for pair in zip(*one, strict=True)])
        bad.append([one[:-1] for one in outcomes if len(one) == 6])
    assert good[0] == good[1] == [(n, one + 100) for n, one in enumerate(elements) if one <= 25 and one % 9 != 3]
    assert bad[0] == bad[1]


@pytest.mark.parametrize("caught", [Exception, ()])
def test_columnar_batches_and_batches_as_elements(caught):
    elements = [[1, 2, 3], [4], [], [5, 6, 7, 8]]
    here, there = (
        run(Adding().with_no_batching(), elements, BatchingConfig(), caught, beside) for beside in (None, [True])
    )
    assert there == here
