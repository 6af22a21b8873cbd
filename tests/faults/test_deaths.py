"""One element of 64 kills its host in some way: it is the only dead letter, or the element that the error names."""

from __future__ import annotations

import functools
import operator
import os
import signal
import sys

import pytest

from headrace import BatchingConfig, Failure, predict
from headrace.core.errors import HostDiedError
from headrace.core.result import Stage
from headrace.testing import FaultyFunction, FaultyHandler, segfault

KILL = functools.partial(signal.raise_signal, signal.SIGKILL)
DEATHS = {
    "SIGSEGV": (segfault, "was killed by SIGSEGV"),
    "os._exit": (functools.partial(os._exit, 3), "ended itself with exit code 3"),
    "sys.exit": (functools.partial(sys.exit, 4), "ended itself with exit code 4"),
}


def run(handler, elements=range(64), size=64, **options):
    return list(
        predict(handler, elements, isolate=True, on_failure="yield", batching=BatchingConfig(size, size), **options)
    )


class Logging(FaultyHandler):
    def __init__(self, fault, example, log):
        super().__init__(fault, example)
        self._log, self._fatal = log, example

    def run_inference(self, batch, model, inference_args=None):
        if self._fatal in batch:
            with open(self._log, "a") as file:
                file.write(f"{len(batch)}\n")
        return super().run_inference(batch, model, inference_args)


@pytest.mark.parametrize("before", [(), (int,)], ids=["alone", "preprocessed"])
def test_every_death_counts_as_an_attempt(tmp_path, before):
    handler = Logging(KILL, 13, str(tmp_path / "log"))
    for function in before:
        handler = handler.with_preprocess_fn(function)
    (failure,) = [one for one in run(handler) if isinstance(one, Failure)]
    tries = len((tmp_path / "log").read_text().splitlines())
    assert tries > 3
    assert (failure.attempts, failure.source) == (tries, 13)


def test_a_death_without_exception_handling_raises_and_names_the_element():
    with pytest.raises(HostDiedError) as caught:
        list(predict(FaultyHandler(KILL, 13), range(64), isolate=True, batching=BatchingConfig(64, 64)))
    what = "was killed by SIGKILL while it was running inference on element 13 (counted from 0) of a batch of 64"
    assert str(caught.value) == f"the host {what}."


class Grow(FaultyFunction):
    def __call__(self, value):
        return super().__call__(value) + 100


def in_every_operation(fault):
    """A handler that dies of 10 and 20 in preprocessing, of 30 in inference, of 40 and 50 in postprocessing."""
    handler = FaultyHandler(fault, 230)
    for value in (120, 10):  # the function added last runs first
        handler = handler.with_preprocess_fn(Grow(fault, value))
    handler = handler.with_postprocess_fn(operator.attrgetter("inference"))
    for value in (480, 600):
        handler = handler.with_postprocess_fn(Grow(fault, value))
    return handler


GOOD = [2 * (n + 200) + 200 for n in range(64) if n not in (10, 20, 30, 40, 50)]
BAD = [
    ("inference", 0, 230),
    ("postprocessing", 1, 480),
    ("postprocessing", 2, 600),
    ("preprocessing", 0, 10),
    ("preprocessing", 1, 120),
]


@pytest.mark.parametrize(("fault", "exit_text"), DEATHS.values(), ids=DEATHS)
def test_deaths_in_every_operation_fail_their_elements_alone(fault, exit_text):
    """Each dead letter holds the input of the operation that failed."""
    outcomes = run(in_every_operation(fault))
    failures = {place: one for place, one in enumerate(outcomes) if isinstance(one, Failure)}
    assert [one for one in outcomes if not isinstance(one, Failure)] == GOOD
    assert sorted((one.stage.value, one.index, one.element) for one in failures.values()) == BAD
    words = ["preprocessing", "preprocessing", "running inference on", "postprocessing", "postprocessing"]
    expected = [f"{word} element {place} (counted from 0)" for place, word in zip((10, 20, 30, 40, 50), words)]
    for (place, failure), what in zip(failures.items(), expected, strict=True):
        assert str(failure.error) == f"the host {exit_text} while it was {what} of a batch of 64."


def test_a_death_in_preprocessing_before_batching_fails_its_element_alone():
    """Weights are measured on preprocessed elements, so preprocessing is a request of its own."""
    handler = FaultyHandler(KILL, 101, max_batch_size=64, element_size_fn=abs, max_batch_weight=1000)
    handler = handler.with_preprocess_fn(Grow(KILL, 5))
    outcomes = list(predict(handler, range(20), isolate=True, on_failure="yield"))
    failures = {place: one for place, one in enumerate(outcomes) if isinstance(one, Failure)}
    assert [one.inference for one in outcomes if not isinstance(one, Failure)] == [
        2 * (n + 100) for n in range(20) if n not in (1, 5)
    ]
    assert {place: (one.stage, one.element) for place, one in failures.items()} == {
        1: (Stage.INFERENCE, 101),
        5: (Stage.PREPROCESSING, 5),
    }


def test_elements_that_are_all_lethal_cost_a_bounded_number_of_hosts(tmp_path):
    """Bounded: after 16 lethal elements in a row, unanswered elements fail with them, untried."""
    outcomes = run(FaultyHandler(functools.partial(die_counted, tmp_path / "deaths"), *range(64)))
    assert [one.element for one in outcomes] == list(range(64))
    assert {type(one.error) for one in outcomes} == {HostDiedError}
    assert 16 <= len((tmp_path / "deaths").read_text()) <= 60


def die_counted(path):
    with path.open("a") as file:
        file.write("x")
    os._exit(3)
