"""Where rows of dead letters belong in an output."""

import json
import random

import numpy
import pyarrow
import pytest

from headrace.jobs.letters import OutputPlaces, completed
from headrace.jobs.output_batches import OutputLine, batch_of_lines, lines_in
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import place_at


def ranges_of(places):
    """Neighbours together, some of them cut, in any order."""
    random.shuffle(places)
    return RowRanges(places, [place + 1 for place in places])


@pytest.mark.parametrize("seed", range(20))
def test_a_row_is_behind_all_rows_before_it(seed):
    random.seed(seed)
    everything = [place_at(source, number) for source in range(3) for number in range(random.randrange(1, 9))]
    there = [place for place in everything if random.random() < 0.6]
    places = OutputPlaces(ranges_of(there))
    found = places.before(numpy.array(everything)).tolist()
    assert found == [sum(other < place for other in there) for place in everything]
    assert places.total == len(there)


def test_letters_get_their_places_and_what_they_hold_stays():
    row = {"text": 'ends, "place": 7}}'}
    texts = [json.dumps({"row": row, "position": {"file": "a", "row": 4, "place": 3}}), json.dumps({"row": row})]
    table = pyarrow.Table.from_batches([batch_of_lines([OutputLine(0, text) for text in texts])[1]])
    (done,) = completed([table], OutputPlaces(RowRanges([0, 8], [2, 9])))
    letter, other = map(json.loads, lines_in(done))
    assert letter == {"row": row, "position": {"file": "a", "row": 4, "place": 3, "before": 2, "of": 3}}
    assert other == {"row": row}
