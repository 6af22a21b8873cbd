"""A host's request handler, called in this process: the same steps as in process, one batch at a time."""

from __future__ import annotations

import pickle
import threading

import pytest

from headrace import KeyedModelHandler
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, ModelLoaded
from headrace.core.result import Stage
from headrace.failures.search import InjectedFailure
from headrace.ipc.codec import decode, encode
from headrace.ipc.progress import Activity, Progress
from headrace.ipc.serialization import pickle_or_explain
from headrace.runtime.messages import Unreadable, Work
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.request_handler import BatchRequestHandler
from headrace.testing import DoublingHandler, PoisonHandler

MEMORY = memoryview(bytearray(Progress.SIZE))
INFER = Work(ONLY, infer=True)
LATE = TimeoutError("late")


class Values(DoublingHandler):
    """Predicts bare values."""

    def run_inference(self, batch, model, inference_args=None):
        return [model(example) for example in batch]


class Watching(Values):
    """Predicts what its host's progress page shows."""

    def load_model(self):
        self.loading = activity()
        return super().load_model()

    def run_inference(self, batch, model, inference_args=None):
        return [(self.loading, activity())] * len(batch)


class Unpicklable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class Locking(Values):
    """Predicts locks, and raises if "alone" is not alone in its batch."""

    def run_inference(self, batch, model, inference_args=None):
        if "alone" in batch and len(batch) > 1:
            raise Unpicklable("together")
        return [threading.Lock() if example == "lock" else example for example in batch]


class Mute:
    """Does not pickle or compare, and has no repr."""

    def __init__(self, _):
        self.lock = threading.Lock()

    def __eq__(self, other):
        raise TypeError("Mute has no equals")

    __hash__ = object.__hash__

    def __repr__(self):
        raise RuntimeError("mute")


def mute(pair):
    return pair[0], Mute(pair[1])


def activity():
    snapshot = Progress(MEMORY).read()
    return snapshot.call, snapshot.activity, snapshot.position, snapshot.index


def also(seen):
    return seen, activity()


class Asked:
    """A request handler as it arrives in a host, and its progress page."""

    def __init__(self, handler, exceptions=(), **request):
        spec = catching(prepare(handler, InferenceRequest(isolate=True, **request)), exceptions)
        self.request_handler = pickle.loads(pickle_or_explain(BatchRequestHandler(spec), "handler"))
        self.progress = Progress(MEMORY)

    def __call__(self, work, rows=()):
        self.progress.begin(7)
        return self.request_handler.answer(work, list(rows), self.progress)


@pytest.fixture
def ask():
    """Makes request handlers, and closes them at the end."""
    made = []

    def make(*args, **kwargs):
        made.append(Asked(*args, **kwargs))
        return made[-1]

    yield make
    for asked in made:
        asked.request_handler.close()


def sent(answer):
    """The head of a response, as the owner receives it."""
    message = encode(answer.head, answer.rows, positions=answer.positions, reducers=answer.reducers)
    memory = bytearray(message.nbytes)
    message.write(memoryview(memory))
    return decode(memoryview(memory), own=True).head


def errors(done):
    return [
        (failure.tag, failure.stage, failure.index, failure.element, repr(failure.error)) for failure in done.failures
    ]


def test_batch_request(ask):
    answer = ask(Values())(INFER, [1, "a"])
    assert (list(answer.rows), answer.positions, answer.head.failures) == ([2, "aa"], [0, 1], [])
    loaded, completed = answer.head.events
    assert isinstance(loaded, ModelLoaded)
    assert (completed.model, completed.examples) == ("", 2)


def test_request_for_preprocessing_only(ask):
    answer = ask(Values().with_preprocess_fn(int), Exception)(Work(ONLY, preprocess=True), ["3", "x", "5"])
    assert (list(answer.rows), answer.head.tags) == ([3, 5], [0, 2])
    assert [(failure.tag, failure.stage) for failure in answer.head.failures] == [(1, Stage.PREPROCESSING)]
    assert [event.stage for event in answer.head.events if isinstance(event, ElementFailed)] == [Stage.PREPROCESSING]


def test_request_for_all_operations(ask):
    handler = PoisonHandler(4).with_preprocess_fn(int).with_postprocess_fn(lambda result: 12 // result.inference)
    answer = ask(handler, Exception)(INFER._replace(preprocess=True), ["1", "x", "4", "0", "3"])
    assert (list(answer.rows), answer.positions) == ([6, 2], [0, 4])
    assert [(tag, stage) for tag, stage, *_ in errors(answer.head)] == [
        (1, Stage.PREPROCESSING),
        (2, Stage.INFERENCE),
        (3, Stage.POSTPROCESSING),
    ]


def test_progress_page_shows_each_operation(ask):
    handler = Watching().with_preprocess_fn(also).with_preprocess_fn(also).with_postprocess_fn(also)
    answer = ask(handler)(INFER._replace(preprocess=True), [0, 1])
    at_inference = ((7, Activity.LOADING, -1, 0), (7, Activity.INFERENCE, -1, 0))
    assert list(answer.rows) == [(at_inference, (7, Activity.POSTPROCESSING, place, 0)) for place in (0, 1)]
    answer = ask(handler)(Work(ONLY, preprocess=True), [0, 1])
    assert list(answer.rows) == [
        ((place, (7, Activity.PREPROCESSING, place, 0)), (7, Activity.PREPROCESSING, place, 1)) for place in (0, 1)
    ]


@pytest.mark.parametrize(
    ("injected_failure", "element"),
    [
        (InjectedFailure(Stage.PREPROCESSING, 0, LATE), "2"),
        (InjectedFailure(Stage.PREPROCESSING, 1, LATE), 2),
        (InjectedFailure(Stage.INFERENCE, 0, LATE), 4),
        (InjectedFailure(Stage.POSTPROCESSING, 0, LATE), 8),
        (InjectedFailure(Stage.POSTPROCESSING, 1, LATE), "8"),
    ],
)
def test_a_fatal_element_fails_with_what_its_operation_would_have_been_given(ask, injected_failure, element):
    handler = Values().with_preprocess_fn(lambda n: n * 2).with_preprocess_fn(int)
    asked = ask(handler.with_postprocess_fn(str).with_postprocess_fn(len), Exception)
    work = INFER._replace(preprocess=True, injected_failures={1: injected_failure})
    answer = asked(work, ["1", "2", "30"])
    assert (list(answer.rows), answer.positions) == ([1, 3], [0, 2])
    assert errors(answer.head) == [(1, injected_failure.stage, injected_failure.index, element, repr(LATE))]


def test_request_that_cannot_be_decoded_fails(ask):
    error = Unpicklable("a")
    head = sent(ask(Values()).request_handler.unreadable(error))
    assert isinstance(head, Unreadable)
    assert (type(head.caught.error), str(head.caught.error)) == (Unpicklable, "a")


def test_prediction_that_cannot_be_encoded_becomes_a_failure(ask):
    asked = ask(Locking(), Exception)
    answer = asked(INFER, ["a", "lock", "b"])
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        sent(answer)
    less = asked.request_handler.unsendable(answer, caught.value)
    head = sent(less)
    assert (list(less.rows), less.positions, head.tags) == (["a", "b"], [0, 2], [0, 2])
    [(tag, stage, index, element, error)] = errors(head)
    assert (tag, stage, index, element[:10]) == (1, Stage.INFERENCE, 0, "<unlocked ")
    assert "a lock cannot leave the model's process: TypeError: cannot pickle '_thread.lock' object" in error
    assert [type(event) for event in head.events] == [ModelLoaded, BatchCompleted, ElementFailed]
    assert repr(head.events[-1].error) == error


def test_prediction_and_error_that_cannot_be_encoded(ask):
    """The batch of three fails with the error; its parts do not."""
    asked = ask(Locking(), Exception)
    answer = asked(INFER, ["a", "alone", "lock"])
    head = sent(asked.request_handler.unsendable(answer, TypeError("...")))
    assert [failure.tag for failure in head.failures] == [2]
    [failed] = [event for event in head.events if isinstance(event, BatchFailed)]
    assert (type(failed.error), str(failed.error)) == (Unpicklable, "together")


def test_failed_element_that_cannot_be_encoded_becomes_a_text(ask):
    asked = ask(PoisonHandler("x").with_preprocess_fn(Mute), Exception)
    answer = asked(INFER._replace(preprocess=True), [1])
    assert isinstance(answer.head.failures[0].element, Mute)
    [(tag, stage, _, element, error)] = errors(sent(asked.request_handler.unsendable(answer, TypeError("..."))))
    assert (tag, stage, element, error) == (0, Stage.INFERENCE, "<Mute>", "TypeError('Mute has no equals')")


def test_keyed_element_that_cannot_be_encoded_keeps_its_key(ask):
    asked = ask(KeyedModelHandler(PoisonHandler("x")).with_preprocess_fn(mute), Exception)
    answer = asked(INFER._replace(preprocess=True), [("k", 1)])
    [(tag, _, _, element, _)] = errors(sent(asked.request_handler.unsendable(answer, TypeError("..."))))
    assert (tag, element) == (0, ("k", "<Mute>"))


def test_elements_that_are_batches_fail_whole(ask):
    asked = ask(Locking().with_no_batching(), Exception)
    head = sent(asked.request_handler.unsendable(asked(INFER, [["lock"]]), TypeError("...")))
    assert [failure.whole_batch for failure in head.failures] == [True]
