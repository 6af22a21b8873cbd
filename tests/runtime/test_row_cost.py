"""A row whose requests have cost more than it may gets no other one, and its dead letter says so; others go on."""

from __future__ import annotations

import pytest

from headrace import Budget, BudgetError, ConfigurationError, ElementRetry, Price, RowCostError, predict
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from http_endpoint import failures_among
from metered import ASKED, EACH_COSTS_ONE, LocalMetered, Metered
from toys import run

pytestmark = pytest.mark.usefixtures("requests_end", "module_travels")

CAPPED = Budget(prices=EACH_COSTS_ONE, max_cost_per_row=2)
SAID = "its requests have cost 3, and max_cost_per_row is 2, so none is sent after ValueError: not yet"


class Again(Metered):
    """Of odd numbers it is billed for answers that are of no use, and says so itself, or raises."""

    def __init__(self, raises=False, **options):
        super().__init__(num_retries=1000, **options)
        self.raises = raises

    def request(self, batch, model, inference_args=None):
        found = super().request(batch, model)
        error = ValueError("not yet")
        if self.raises and batch[0] % 2:
            raise error
        return [ElementRetry(error) if n % 2 else value for n, value in zip(batch, found, strict=True)]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr("headrace.runtime.dispatcher.pause_before_retry", lambda *_, **__: 0.001)
    ASKED.clear()


@pytest.mark.parametrize("raises", [False, True])
def test_row_that_has_cost_too_much_is_not_requested_again(raises):
    first, failed, last = predict(Again(raises), [2, 21, 4], budget=CAPPED, on_failure="yield")
    assert (first, last, ASKED.count(21)) == (4, 8, 3)
    assert isinstance(failed.error, RowCostError)
    assert str(failed.error) == SAID
    assert (failed.element, failed.attempts) == (21, 3)
    assert "not yet" in "".join(failed.caught.lines)


def test_rows_of_one_request_have_equal_parts_of_its_cost():
    """Of four rows the last one pays a quarter of the first request, and all of those for it alone."""
    handler = Again(size=4)
    *found, failed = predict(handler, [2, 4, 6, 21], budget=CAPPED, on_failure="yield")
    assert found == [4, 8, 12]
    assert "its requests have cost 2.25, and max_cost_per_row is 2" in str(failed.error)
    assert ASKED.count(21) == 3
    assert [ASKED.count(n) for n in (2, 4, 6)] == [1, 1, 1]


def test_fallback_answers_with_a_cap_of_its_own():
    assert list(predict(Again(), [21], budget=CAPPED, fallback=Metered())) == [42]
    assert ASKED == [21] * 4


@pytest.mark.parametrize(("caught", "fallback"), [(RowCostError, None), (ValueError, None), (ValueError, Again())])
def test_row_is_a_dead_letter_if_its_error_is_caught_or_that_before(opened, caught, fallback):
    """Whether its class is to be caught, or that of the error for which the row would be requested again."""
    spec = catching(prepare(Again(), InferenceRequest(budget=CAPPED, fallback=fallback)), caught)
    found = run(opened(spec), [2, 21, 4])
    (failed,) = failures_among(found)
    assert (failed.element, SAID in str(failed.error)) == (21, True)
    assert sorted(one for one in found if one is not failed) == [4, 8]


def test_cap_that_cannot_be_kept_is_an_error():
    with pytest.raises(ConfigurationError, match="a budget with a limit needs prices"):
        Budget(max_cost_per_row=1)
    with pytest.raises(ConfigurationError, match=r"max_cost_per_row is for handlers that send requests .*LocalMetered"):
        predict(LocalMetered(), [{"n": 1}], budget=CAPPED)
    with pytest.raises(BudgetError, match="no price for 'm'"):
        list(predict(Metered(), range(100), budget=Budget(prices={"n": Price()}, max_cost_per_row=1)))
    with pytest.raises(BudgetError, match="does not report"):
        list(predict(Metered(""), range(100), budget=CAPPED))
