"""How many workers ``auto`` adds to the first one."""

import pytest

from headrace.jobs.workers import more_workers


@pytest.mark.parametrize(
    ("busy_cores", "most", "copies", "more"),
    [
        (1.0, 2, 9, 1),
        (1.2, 2, 9, 1),  # a thread of the model's, and some reading
        (1.9, 2, 9, 0),
        (1.0, 8, 99, 7),
        (2.1, 8, 99, 3),
        (8.0, 8, 99, 0),
        (0.1, 4, 99, 3),
        (1.0, 1, 99, 0),
        (1.0, 0, 99, 0),  # a device that nobody can count
        (1.0, 8, 2.6, 2),
    ],
)
def test_a_model_gets_the_cores_that_it_leaves_idle(busy_cores, most, copies, more):
    assert more_workers(busy_cores, most, copies) == more
