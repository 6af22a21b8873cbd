"""Where rows of dead letters belong in an output."""

import json
import random

import numpy
import pyarrow
import pytest

from headrace.jobs.output_batches import OutputLine, batch_of_lines, lines_in
from headrace.jobs.positions import OutputPlaces, completed
from headrace.rows.blocks import place_at


def runs_of(places):
    """Neighbours together, some of them cut."""
    runs = []
    for place in places:
        if runs and sum(runs[-1]) == place and random.random() < 0.8:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs


@pytest.mark.parametrize("seed", range(20))
def test_a_row_is_behind_all_rows_before_it(seed):
    random.seed(seed)
    everything = [place_at(source, number) for source in range(3) for number in range(random.randrange(1, 9))]
    there = [place for place in everything if random.random() < 0.6]
    places = OutputPlaces(runs_of(there))
    found = places.before(numpy.array(everything)).tolist()
    assert found == [sum(other < place for other in there) for place in everything]
    assert places.total == len(there)


def test_a_row_is_among_those_of_its_file_in_whatever_order_the_files_are():
    second, first = [place_at(1, number) for number in (0, 1, 3)], [place_at(0, number) for number in (0, 2)]
    places = OutputPlaces(runs_of([*second, *first]))
    assert places.before(numpy.array([place_at(1, 2), place_at(1, 9), place_at(0, 1), place_at(0, 9)])).tolist() == [
        2,
        3,
        4,
        5,
    ]


def test_letters_get_their_places_and_what_they_hold_stays():
    row = {"text": 'ends, "place": 7}}'}
    texts = [json.dumps({"row": row, "position": {"file": "a", "row": 4, "place": 3}}), json.dumps({"row": row})]
    table = pyarrow.Table.from_batches([batch_of_lines([OutputLine(0, text) for text in texts])[1]])
    (done,) = completed([table], OutputPlaces([(0, 2), (8, 1)]))
    letter, other = map(json.loads, lines_in(done))
    assert letter == {"row": row, "position": {"file": "a", "row": 4, "place": 3, "before": 2, "of": 3}}
    assert other == {"row": row}
