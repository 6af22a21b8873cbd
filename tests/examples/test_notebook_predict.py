"""The notebook example gives a number for every good wine and a Failure for the bad one, in their order."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

import headrace


def test_failures_take_the_position_of_their_elements(example, tmp_path):
    notebook = example("notebook_predict")
    wines = load_wine().data[:5, 1:].copy()
    wines[3, 0] = np.nan

    guesses = list(notebook.guess_alcohol(notebook.train(tmp_path), wines))

    assert [isinstance(guess, headrace.Failure) for guess in guesses] == [False, False, False, True, False]
    assert isinstance(guesses[3].error, ValueError)
    assert guesses[0] == pytest.approx(load_wine().data[0, 0], abs=1.0)


def test_example_prints_guesses_and_the_failure(example, capsys):
    example("notebook_predict").main()

    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith(" % alcohol") for line in lines) == 5
    assert lines[2].startswith("inference failed: ValueError(")
