"""The times of batches by powers of two: what is remembered of a ranking equals the ranking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.times import BatchTimes

SIZES = st.floats(1, 64)
STEPS = st.one_of(st.tuples(SIZES, st.floats(0, 1)), SIZES, st.sampled_from(["half", "quarter"]))


@given(st.lists(STEPS, max_size=60))
def test_a_ranking_asked_for_often_is_that_of_times_never_asked(steps):
    often, never = BatchTimes(), BatchTimes()
    for step in steps:
        if isinstance(step, tuple):
            often.add(*step)
            never.add(*step)
        elif isinstance(step, float):
            often.forget_above(step)
            never.forget_above(step)
        else:
            often.ranked(1 / 2 if step == "half" else 1 / 4)
    for share in (1 / 2, 1 / 4):
        assert list(often.ranked(share).items()) == list(never.ranked(share).items())
