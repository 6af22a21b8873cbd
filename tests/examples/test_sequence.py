"""The second model of the sequence example sees what the first one does not clear, and nothing else."""

import pickle
from pathlib import Path

import numpy as np


def test_the_second_model_diagnoses_what_the_first_does_not_clear(example, tmp_path, capsys):
    sequence = example("sequence")
    screening, diagnosis, samples = sequence.train(tmp_path)
    first, second = (pickle.loads(Path(model).read_bytes()) for model in (screening, diagnosis))
    risky = np.flatnonzero(first.predict_proba(np.stack(samples))[:, sequence.MALIGNANT] >= sequence.CLEARED_BELOW)
    malignant = int((second.predict(np.stack(samples)[risky]) == sequence.MALIGNANT).sum())
    assert 0 < malignant < len(risky) < len(samples)

    sequence.main([])

    out = capsys.readouterr().out
    assert f"{len(samples)} samples went to the first model" in out
    assert f"second model: {malignant} malignant\n" in out
    assert f"second model: {len(risky) - malignant} benign\n" in out
