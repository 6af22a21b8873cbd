"""Rows of columnar elements that a model cannot do go to its fallback: no other rows do, and none is lost."""

from __future__ import annotations

import itertools
from functools import partial

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Failure, FallbackError, ModelHandler, RetryConfig, Stage, predict
from headrace.core.events import BatchCompleted, ElementFailed
from http_endpoint import events_and_outcomes, failures_among
from toys import fixed

pytestmark = pytest.mark.usefixtures("module_travels")


class Refusing(ModelHandler):
    """Adds a number to each row; raises for some rows.

    Args:
        added: the number.
        refused: the rows.
    """

    def __init__(self, added, refused, **options):
        super().__init__(**options)
        self.added = added
        self.refused = refused
        self.asked = []

    def load_model(self):
        return self.added

    def run_columns(self, columns, model, inference_args=None):
        self.asked += columns.tolist()
        bad = numpy.isin(columns, list(self.refused))
        if bad.any():
            raise KeyError(f"refuses {columns[bad].min()}")
        return columns + model


in_rows = partial(fixed, columnar=True)


def rows_of(outcomes):
    """(row, what came out, who answered) of each row, in order; a failed one has its error, and nobody."""
    rows = []
    for one in outcomes:
        if isinstance(one, Failure):
            assert one.stage is Stage.INFERENCE
            rows += [(row, one.error, None) for row in one.element.tolist()]
        else:
            rows += [(*pair, one.model_id) for pair in zip(one.example.tolist(), one.inference.tolist(), strict=True)]
    return sorted(rows, key=lambda row: row[0])


def test_dead_letter_has_the_rows_that_both_failed():
    handler, fallback = Refusing(1000, range(4, 12)), Refusing(2000, {6, 7})
    options = {"batching": in_rows(32), "fallback": fallback, "retry": RetryConfig(attempts=1)}
    events, outcomes = events_and_outcomes(handler, [numpy.arange(20)], **options)
    failures = failures_among(outcomes)
    assert sorted(row for one in failures for row in one.element.tolist()) == [6, 7]
    assert {(one.tag, one.stage, one.whole_batch, one.record[0] is one.element) for one in failures} == {
        (0, Stage.INFERENCE, True, True)
    }
    assert all("refuses" in str(one.error.first) and "refuses" in str(one.error.fallback) for one in failures)
    assert all(one.attempts > 2 for one in failures)
    assert len(events.of(ElementFailed)) == len(failures)
    assert sum(one.examples for one in events.of(BatchCompleted) if one.model == "fallback") == 6


class TooFew(Refusing):
    """Predicts too little, so that whole batches fail."""

    def run_columns(self, columns, model, inference_args=None):
        return columns[1:]


@pytest.mark.parametrize("place", [{}, {"isolate": True}], ids=["here", "isolated"])
def test_rows_that_failed_together_do_not_share_the_fate_of_one(place):
    fallbacks = [Refusing(2000, {6, 7, 8}), Refusing(3000, {7})]
    options = {"batching": in_rows(10), "on_failure": "yield", **place}
    found = rows_of(predict(TooFew(0, ()), [numpy.arange(20)], fallback=fallbacks, **options))
    assert [row for row, _, _ in found] == [*range(20)]
    whose = {row: who for row, _, who in found if who != "fallback"}
    assert whose == {6: "fallback2", 7: None, 8: "fallback2"}


@given(
    refused=st.lists(st.sets(st.integers(0, 29)), min_size=2, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    size=st.integers(1, 9),
    other=st.integers(1, 9),
)
def test_no_row_is_lost_whatever_fails(refused, cuts, size, other):
    sizes = {"min_batch_size": other, "max_batch_size": other}
    handlers = [Refusing(1000 * place, one, **sizes) for place, one in enumerate(refused)]
    elements = [numpy.arange(*bounds) for bounds in itertools.pairwise([0, *sorted(cuts), 30])]
    options = {"batching": in_rows(size), "on_failure": "yield", "retry": RetryConfig(attempts=1)}
    found = rows_of(predict(handlers[0], elements, fallback=handlers[1:], **options))
    assert [row for row, _, _ in found] == [*range(30)]
    for row, value, who in found:
        able = [place for place, one in enumerate(refused) if row not in one]
        if who is None:
            assert type(value) is FallbackError
        # While a breaker is open a model is passed over, so a later one may answer, or none.
        assert not able or who is None or (value - row) // 1000 in able
