"""Outcomes of rows that come back in any order are written in that of the rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.result import Caught, Failure, Predictions, Skipped, Stage
from headrace.jobs.input_order import InputOrder
from headrace.rows.blocks import Block, BlockRow

BLOCK = Block(0, 0)


def outcome_of(place):
    row = BlockRow(BLOCK, place)
    if place % 5 == 3:
        return Failure(row, Stage.INFERENCE, 0, place, Caught(ValueError(), []))
    if place % 5 == 4:
        return Skipped(Stage.INFERENCE, 0, [row], [place])
    return Predictions([row], [10 * place])


def places_of(outcome):
    return [row.place for row in ([outcome.tag] if isinstance(outcome, Failure) else outcome.tags)]


@given(st.permutations(range(12)), st.integers(1, 12))
def test_outcomes_leave_in_order_and_as_soon_as_they_are_due(places, at_once):
    written, seen = [], set()
    order = InputOrder(written.extend)
    for place in range(12):
        order.expect(BlockRow(BLOCK, place))
    for start in range(0, 12, at_once):
        some = places[start : start + at_once]
        seen |= set(some)
        order.write(map(outcome_of, some))
        due = next((place for place in range(12) if place not in seen), 12)
        assert [place for outcome in written for place in places_of(outcome)] == list(range(due))
    predicted = [value for one in written if isinstance(one, Predictions) for value in one.values]
    assert predicted == [10 * place for place in range(12) if place % 5 < 3]


def test_neighbouring_predictions_are_written_together():
    written = []
    order = InputOrder(written.extend)
    rows = [BlockRow(BLOCK, place) for place in range(3)]
    for row in rows:
        order.expect(row)
    order.write([Predictions([rows[2], rows[0]], [20, 0]), Predictions([rows[1]], [10])])
    assert written == [Predictions(rows, [0, 10, 20])]
