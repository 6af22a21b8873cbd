"""What was paid for is yielded before a spent budget, or an interrupt, is raised."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from headrace import Budget, BudgetError, KeyedModelHandler, Price, predict
from headrace.core.remote import ElementRetry
from headrace.local import predict as predict_module
from metered import ASKED, Metered
from toys import fixed
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("module_travels")


class AsksAgain(Metered):
    """Has 103 requested again and again."""

    def request(self, batch, model, inference_args=None):
        answers = super().request(batch, model)
        return [ElementRetry(ValueError("no")) if n == 103 else one for n, one in zip(batch, answers, strict=True)]


@pytest.mark.parametrize(
    "options",
    [{}, {"ordered": False}, {"on_failure": "yield"}, {"batching": fixed(4)}, {"fallback": Metered("other")}],
    ids=lambda options: "".join(options) or "plain",
)
def test_spent_budget_loses_no_answer_behind_an_element_that_was_left_out(options, requests_end):
    ASKED.clear()
    found = []
    with pytest.raises(BudgetError, match=r"is spent.* of the .* elements that were read have no outcome") as caught:
        found.extend(
            predict(AsksAgain(num_retries=100), count(100), budget=Budget(20, {"*": Price(request=1)}), **options)
        )
    error = caught.value
    assert 3 in error.left_out
    if "ordered" in options:
        found.sort()
    assert found == [2 * (100 + place) for place in range(error.read) if place not in error.left_out]
    assert {2 * n for n in ASKED if n != 103} == set(found)


def test_keys_come_with_what_was_paid_for(requests_end):
    ASKED.clear()
    found, handler = [], KeyedModelHandler(AsksAgain(num_retries=100))
    with pytest.raises(BudgetError):
        found.extend(predict(handler, zip("abcdefghijklm", range(100, 200)), budget=Budget(6, {"*": Price(request=1)})))
    assert found == [("abcdefghijklm"[n - 100], 2 * n) for n in sorted(set(ASKED) - {103})]


class Held(Metered):
    """Answers 120 and more once the process was interrupted; 130 never."""

    interrupted, forever = threading.Event(), threading.Event()
    max_concurrent = 8

    def request(self, batch, model, inference_args=None):
        answers = super().request(batch, model)
        if max(batch) >= 120:
            assert (self.forever if 130 in batch else self.interrupted).wait(60)
        return answers


@pytest.fixture
def interrupts(requests_end):
    """Has SIGINT noted, and raised as it is by default, wherever the suite was started."""

    def interrupt(*_):
        Held.interrupted.set()
        raise KeyboardInterrupt

    Held.interrupted.clear()
    Held.forever.clear()
    before = signal.signal(signal.SIGINT, interrupt)
    yield
    Held.forever.set()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("options", "last", "seconds"),
    [({}, 130, 3), ({"fallback": Metered("other")}, 130, 3), ({"ordered": False}, 129, 60)],
    ids=["plain", "fallback", "unordered"],
)
def test_interrupt_loses_no_answer_to_a_request_in_flight(interrupts, options, last, seconds, monkeypatch):
    monkeypatch.setattr(predict_module, "_DRAIN_SECS", seconds)
    ASKED.clear()
    found = []

    def interrupt():
        wait_until(lambda: len(ASKED) == 28 and len(found) == 20)  # the iterator waits for the rest
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            found.extend(predict(Held(), [*range(100, 123), last, *range(140, 200)], **options))
    assert sorted(found) == [2 * n for n in sorted(ASKED) if n != 130]
    assert len(found) == 28 - (last == 130)
    if "ordered" not in options:
        assert sorted(found) == found
