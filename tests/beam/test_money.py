"""Caches, budgets and reports of pipelines: metrics, predictions made before, an error that ends one, and a page."""

from __future__ import annotations

import json

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from headrace import Budget, BudgetError, Price
from headrace.beam import RunInference, report
from headrace.beam.results import totals_of
from metered import ASKED, AsyncMetered, LocalMetered, Metered

PRICES = {"m": Price(input=1.0, output=2.0, request=0.5)}


def predicted(elements, expected, handler, **options):
    """Runs a pipeline; returns its counters by name."""
    ASKED.clear()
    pipeline = beam.Pipeline(FnApiRunner())
    assert_that(pipeline | beam.Create(elements) | RunInference(handler, **options), equal_to(expected))
    result = pipeline.run()
    result.wait_until_finish()
    return result, {one.key.metric.name: one.result for one in result.metrics().query()["counters"]}


@pytest.mark.parametrize("kind", [Metered, AsyncMetered])
def test_pipeline_counts_what_it_uses(kind):
    result, counters = predicted([1, 2, 3], [2, 4, 6], kind(), budget=Budget(prices=PRICES))
    figures = {name: counters[name] for name in ("billed_requests", "input_tokens", "output_tokens", "cost_micros")}
    assert figures == {
        "billed_requests": 3,
        "input_tokens": 3_000_000,
        "output_tokens": 3000,
        "cost_micros": pytest.approx(4_506_000, abs=3),
    }
    assert counters["m-_input_tokens"] == 3_000_000
    assert totals_of(result).usage["m"].cost == pytest.approx(4.506, abs=1e-5)


def test_pipeline_asks_only_for_what_is_not_in_its_cache(tmp_path):
    cache = str(tmp_path / "cache")
    predicted([1, 2, 3], [2, 4, 6], Metered(), cache=cache)
    result, counters = predicted([1, 2, 3, 4], [2, 4, 6, 8], Metered(), cache=cache)
    assert ASKED == [4]
    assert (counters["cache_hits"], counters["cache_misses"]) == (3, 1)
    assert totals_of(result).cached == 3


def test_page_counts_all_transforms_of_a_pipeline_together_and_says_what_it_does_not_know(tmp_path):
    pytest.importorskip("matplotlib")
    pipeline = beam.Pipeline(FnApiRunner())
    rows = pipeline | beam.Create([1, 2, 3])
    _ = rows | "One" >> RunInference(Metered(), budget=Budget(prices=PRICES))
    _ = rows | "Two" >> RunInference(Metered())
    result = pipeline.run()
    result.wait_until_finish()
    assert "srcdoc=" in report(result, str(tmp_path / "run.html"))._repr_html_()
    figures = json.loads((tmp_path / "run.json").read_text())
    assert (figures["command"], figures["exit_reason"], figures["predictions"]) == ("pipeline", "done", 6)
    assert figures["figures"]["batches"] == figures["usage"]["m"]["requests"] == 6
    page = (tmp_path / "run.html").read_text()
    assert "do not say how many rows came in" in page
    assert "How many rows came in is not known." in page


READ: list = []


def read(start, stop):
    for n in range(start, stop):
        READ.append(n)
        yield n


@pytest.mark.parametrize(("kind", "fallback"), [(Metered, LocalMetered()), (AsyncMetered, None)])
def test_pipeline_whose_budget_is_spent_fails_at_once_with_one_error_whatever_is_caught(kind, fallback):
    ASKED.clear()
    READ.clear()
    pipeline = beam.Pipeline(FnApiRunner())
    budget = Budget(5.0, prices=PRICES)
    inference = RunInference(kind(), budget=budget, fallback=fallback).with_exception_handling()
    _ = pipeline | beam.Create([(100, 100_000)]) | beam.FlatMapTuple(read) | inference
    with pytest.raises(BudgetError, match="the budget of 5 is spent"):
        pipeline.run().wait_until_finish()
    assert 4 <= len(ASKED) < 900
    assert len(ASKED) <= len(READ) < 90_000
