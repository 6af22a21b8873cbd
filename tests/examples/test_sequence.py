"""The second model of the sequence example sees what the first one does not clear, and nothing else."""

import pickle
from pathlib import Path

import numpy as np
from apache_beam.testing.util import assert_that, equal_to


def test_the_second_model_diagnoses_what_the_first_does_not_clear(example, new_pipeline, tmp_path):
    sequence = example("sequence")
    screening, diagnosis, samples = sequence.train(tmp_path)
    first, second = (pickle.loads(Path(model).read_bytes()) for model in (screening, diagnosis))
    risky = np.flatnonzero(first.predict_proba(np.stack(samples))[:, sequence.MALIGNANT] >= sequence.CLEARED_BELOW)
    labels = second.predict(np.stack(samples)[risky])
    assert 0 < len(risky) < len(samples)

    by_hand = list(zip(risky.tolist(), labels.tolist(), strict=True))
    with new_pipeline() as pipeline:
        assert_that(sequence.build(pipeline, screening, diagnosis, samples), equal_to(by_hand))


def test_example_prints_how_many_samples_each_model_decided(example, capsys):
    example("sequence").main([])

    out = capsys.readouterr().out
    assert "143 samples went to the first model" in out
    assert " malignant\n" in out
    assert " benign\n" in out
