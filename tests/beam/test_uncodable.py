"""Elements that cannot be decoded from a stream's state fail alone."""

from __future__ import annotations

import apache_beam as beam
import pytest

from headrace.beam import RunInference
from headrace.core.config import BatchingConfig
from toys import Acting, Unloadable

SORTED = Acting(lambda batch: [sorted(batch)] * len(batch))
WAITING = BatchingConfig(min_batch_size=3, max_batch_size=3, max_batch_duration_secs=1000)


def made(place):
    """An element that nothing has encoded yet."""
    return Unloadable() if place == 1 else place


@pytest.mark.parametrize("prepared", [False, True])
def test_uncodable_element_becomes_the_only_dead_letter(run, prepared):
    handler = SORTED.with_preprocess_fn(abs) if prepared else SORTED
    places = run.create(range(6))
    places.is_bounded = False
    elements = places | beam.Map(made)
    predictions, dead = elements | RunInference(handler, batching=WAITING).with_exception_handling()
    failed = dead.failed_preprocessing[0] if prepared else dead.failed_inferences
    batches, dead_letters = run.values(out=predictions, dead=failed)
    assert sorted(batches) == [[0, 2]] * 2 + [[3, 4, 5]] * 3
    text = "<toys.Unloadable>"
    [(element, error)] = dead_letters
    assert element == (text if prepared else [text])
    assert error[0] is TypeError
    assert "Unloadable cannot be decoded" in error[1]


def test_uncodable_element_raises_an_error_that_names_type_and_cure(run):
    places = run.create(range(2))
    places.is_bounded = False
    predictions = places | beam.Map(made) | RunInference(SORTED, batching=WAITING)
    with pytest.raises(TypeError, match=r"Unloadable cannot be decoded, .*no number.*make its class one that pickles"):
        run.values(out=predictions)
