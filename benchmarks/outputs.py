"""Compares the predictions of two runs, in whatever order they came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class OutputsDifferError(AssertionError):
    """Two runs that should have predicted the same did not."""


class Outputs:
    """A run's predictions, in an order that depends on the examples only.

    Args:
        results: ``PredictionResult`` objects, Headrace's or Beam's, in any order.
    """

    def __init__(self, results: Sequence[Any]) -> None:
        keyed = [((_identity(one.example), one.model_id or ""), _as_array(one.inference)) for one in results]
        keyed.sort(key=lambda pair: (pair[0], pair[1].tobytes()))
        self._keys = [key for key, _ in keyed]
        self._values = [value for _, value in keyed]

    def check_same(self, other: Outputs, *, tolerance: float = 0.0) -> None:
        """Compares examples, names of models and predictions.

        Args:
            other: of the run that should have predicted the same.
            tolerance: largest absolute and relative difference between predictions; 0: none. Models that multiply
                floats round differently in batches of different sizes.

        Raises:
            OutputsDifferError: a result is missing or superfluous, has another model, or its prediction differs.
        """
        if len(self._keys) != len(other._keys):
            raise OutputsDifferError(f"{len(self._keys)} predictions against {len(other._keys)}")
        if self._keys != other._keys:
            raise OutputsDifferError("the predictions belong to other examples or to another model")
        if [value.shape for value in self._values] != [value.shape for value in other._values]:
            raise OutputsDifferError("the predictions have other shapes")
        if self._values:
            _check_close(np.stack(self._values), np.stack(other._values), tolerance)


def _check_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> None:
    close = np.isclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    wrong = int((~close).reshape(len(close), -1).any(axis=1).sum())
    if wrong:
        gap = float(np.nanmax(np.abs(ours.astype(np.float64) - theirs)))
        raise OutputsDifferError(f"{wrong} of {len(close)} predictions differ, by up to {gap:g}")


def _identity(example: Any) -> bytes:
    """Identifies an example: its text, or its shape and numbers."""
    if isinstance(example, str):
        return example.encode()
    array = _as_array(example)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def _as_array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
