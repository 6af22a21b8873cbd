"""Predictions of several values as several columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from headrace.core.errors import ConfigurationError

PREDICTION = "prediction"


def naming_outputs(handler: Any) -> Any:
    """A handler whose predictions of several values have names, if it knows some; else the one that is given."""
    if isinstance(handler, list | tuple):
        return [naming_outputs(one) for one in handler]
    named = getattr(handler, "with_named_outputs", None)
    return handler if named is None else named()


def exploded(prediction: Any) -> dict[str, Any]:
    """A prediction's values by column: of a mapping by its keys, of a list or an array by number, none of None.

    Any other value, and one without values, stays as it is.
    """
    if prediction is None:
        return {}
    names, values = _parts(prediction)
    return {f"{PREDICTION}_{name}": value for name, value in zip(names, values, strict=True)} or {
        PREDICTION: prediction
    }


def _parts(prediction: Any) -> tuple[Iterable[Any], Iterable[Any]]:
    """The names and the values of what has several."""
    if isinstance(prediction, Mapping):
        return prediction.keys(), prediction.values()
    names = getattr(getattr(prediction, "dtype", None), "names", None) or getattr(prediction, "_fields", None)
    values = prediction
    if hasattr(prediction, "shape"):
        with suppress(Exception):  # writing the prediction raises it again
            values = prediction.tolist()
    return (names or range(len(values)), values) if isinstance(values, list | tuple) else ((), ())


def exploded_all(predictions: Sequence[Any]) -> dict[str, list[Any]]:
    """The values of predictions by column; None where one has none."""
    rows = list(map(exploded, predictions))
    names = dict.fromkeys(chain.from_iterable(rows)) or {PREDICTION: None}
    return {name: [row.get(name) for row in rows] for name in names}


def exploded_array(predictions: Any) -> dict[str, Any]:
    """The values of predictions by column; an array of numpy's has a row for each prediction."""
    if predictions.dtype.names:
        return {f"{PREDICTION}_{name}": predictions[name].copy() for name in predictions.dtype.names}
    if predictions.ndim == 2 and predictions.shape[1] and predictions.dtype.kind in "biuf":
        return {f"{PREDICTION}_{number}": column.copy() for number, column in enumerate(predictions.T)}
    is_plain = predictions.ndim == 1 and predictions.dtype.kind in "biuf"
    return {PREDICTION: predictions} if is_plain else exploded_all(list(predictions))


def refuse_exploded(columns: Iterable[str]) -> None:
    """Raises ConfigurationError if a column is called as those that predictions become."""
    for name in columns:
        if name.startswith(f"{PREDICTION}_"):
            raise ConfigurationError(
                f"there is a column {name!r}, a name that values of predictions get; rename it or leave it out."
            )
