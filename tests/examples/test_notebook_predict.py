"""The notebook example gives a number for every good wine and a Failure for the bad one, in their order."""

import numpy as np
import pytest
from sklearn.datasets import load_wine


def test_example_prints_guesses_and_the_failure(example, capsys):
    example("notebook_predict").main()

    lines = capsys.readouterr().out.splitlines()
    assert lines.pop(2).startswith("inference failed: ValueError(")
    guesses = [float(line.removesuffix(" % alcohol")) for line in lines]
    assert guesses == pytest.approx(list(np.delete(load_wine().data[::30, 0], 2)), abs=1.5)
