"""Conversions for handlers: batches to model calls, answers to results, rows and columns to numbers, and lengths."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from headrace.core.answer import predictions_of, wrong_count
from headrace.core.errors import PredictionCountError
from headrace.core.result import PredictionResult

DEEPEST = 200
"""How deep values of JSON may be nested: pickling or writing what is deeper may overflow the stack."""
FLOAT32_MAX = (2 - 2**-23) * 2.0**127
"""The largest finite 32-bit float."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_KIND = attrgetter("__class__", "dtype", "shape")
"""What arrays or tensors must share to be stacked unchanged."""
_FUNCTION = "the inference function"
_SHOWN = 80
"""How many characters of a wrong value an error message quotes."""
_PIECES = re.compile(r"[A-Za-z]{1,8}|[0-9]{1,3}|[^\sA-Za-z0-9]")
"""About what tokenizers of subwords make of a text: of English prose and code within 4 % of BERT's tokens."""
_SPECIAL = 2
"""Tokens at the beginning and the end."""


_as_result: Callable[[tuple[Any, Any, str | None]], PredictionResult] = partial(tuple.__new__, PredictionResult)
"""A result of its three fields, in half the time that its class takes, which is a Python function."""


def to_results(batch: Iterable[Any], predictions: Any, model_id: str | None = None) -> list[PredictionResult]:
    """Pairs each example of a batch with its prediction.

    Args:
        batch: the examples.
        predictions: an iterable with one prediction for each example, in their order; or a mapping from names to such
            iterables, from which each example gets a dict of its items.
        model_id: the model that answered.

    Returns:
        A result for each prediction. Surplus ones have the example ``None``, for a later count to detect.

    Raises:
        PredictionCountError: it is not a list of predictions, or a mapping's lists differ in length.
    """
    examples = chain(batch, repeat(None))
    return list(map(_as_result, zip(examples, _rows(predictions), repeat(model_id), strict=False)))


def predict_stacked(
    batch: Sequence[Any],
    stack: Callable[[list[Any]], Any],
    ask: Callable[[Any], Any],
    rows: Callable[[Any, int], Any] = lambda answer, _: answer,
) -> Any:
    """Predicts for arrays or tensors, or for dicts of them by name, with one call for those of one dtype and shape.

    Args:
        batch: the examples; anything else raises a TypeError.
        stack: makes one array of several.
        ask: calls the model on a stack, or on a dict of stacks.
        rows: turns an answer for a number of examples into what ``to_results`` accepts.
    """

    def call(alike: Sequence[Any]) -> Any:
        if isinstance(alike[0], Mapping):
            return ask({name: stack([example[name] for example in alike]) for name in alike[0]})
        return ask(stack(list(alike)))

    try:
        kinds = list(map(_KIND, batch))
    except AttributeError:
        kinds = list(map(_kind, batch))
    return predict_by_kind(batch, kinds, lambda alike: rows(_with_rows(call, alike), len(alike)))


def _kind(example: Any) -> tuple[Any, ...]:
    if isinstance(example, Mapping):
        return tuple([(name, *_kind(example[name])) for name in sorted(example)])
    if not hasattr(example, "dtype"):
        raise TypeError(f"an example must be made of arrays or tensors, not of {type(example).__qualname__}.")
    return _KIND(example)


def arrays_in(batch: Sequence[Any]) -> list[Any]:
    """The arrays or tensors of examples, some of which may be dicts of them."""
    return [one for example in batch for one in (example.values() if isinstance(example, Mapping) else [example])]


def predict_by_kind(batch: Sequence[Any], kinds: Iterable[Hashable], predict: Callable[[Sequence[Any]], Any]) -> Any:
    """Predicts a batch group by group, where only examples of one kind (dtype and shape, say) may share a call.

    Stacking examples of different kinds converts them to a common type: predictions would depend on their neighbours.
    ``predict`` returns what ``to_results`` accepts for examples of one kind; so does this function.

    Raises:
        PredictionCountError: there are several kinds, and ``predict`` returned a wrong number of predictions for one.
    """
    kinds = list(kinds)
    if kinds and kinds.count(kinds[0]) == len(kinds):  # the usual case; twice as fast as hashing them
        return predict(batch)
    predictions: dict[int, Any] = {}
    for places in places_by(kinds).values():
        found = _rows(predict([batch[place] for place in places]))
        if len(found) != len(places):
            raise wrong_count(_FUNCTION, len(places), len(found))
        predictions.update(zip(places, found, strict=True))
    return [predictions[place] for place in range(len(batch))]


def places_by(kinds: Iterable[Hashable]) -> dict[Any, list[int]]:
    """The indices of each kind."""
    places: dict[Any, list[int]] = {}
    for place, kind in enumerate(kinds):
        places.setdefault(kind, []).append(place)
    return places


def _with_rows(call: Callable[[Sequence[Any]], Any], examples: Sequence[Any]) -> Any:
    """The answer; with a first dimension, which a model that ends with ``squeeze()`` drops for a single example."""
    answer = call(examples)
    shape = getattr(answer, "shape", None)
    if len(examples) != 1 or shape is None or tuple(shape)[:1] == (1,):
        return answer
    twice = call([*examples, *examples])  # shows whether it was dropped
    count, *row = tuple(getattr(twice, "shape", ())) or (0,)
    is_squeezed = count == 2 and _without_ones(row) == _without_ones(shape)
    return twice[:1] if is_squeezed else answer


def _without_ones(shape: Iterable[int]) -> list[int]:
    return [length for length in shape if length != 1]


def single_output(answer: Any) -> Any:
    """A model's answer; refuses a tuple of outputs, which would pass for the predictions of a batch of as many."""
    if isinstance(answer, tuple):
        raise PredictionCountError(
            f"the model returned a tuple of {len(answer)} outputs; give the handler an inference_fn that says which of "
            "them are the predictions, or returns them in a dict."
        )
    return answer


def to_numbers(row: Mapping[str, Any], largest: float = sys.float_info.max) -> list[float]:
    """The numbers in a row's columns, in order; a column with a list contributes all of its numbers.

    Args:
        row: values by column: numbers, booleans, numeric strings (as in CSV), or flat lists (arrays) of those.
        largest: the largest magnitude that the receiver can hold.

    Raises:
        ValueError: the row is empty, or a value is not a finite number.
    """
    if not row:
        raise ValueError("a row without columns makes no example; name at least one column.")
    numbers: list[float] = []
    for column, value in row.items():
        if type(value) is float and abs(value) <= largest:  # the usual cases: ten times as fast
            numbers.append(value)
        elif type(value) is int and abs(value) <= FLOAT32_MAX:
            numbers.append(float(value))
        else:
            numbers += column_numbers(column, value, largest)
    return numbers


def to_matrix(columns: Any, numpy: Any, dtype: str) -> Any:
    """A numpy array of rows by columns, in column order, of a ``dtype``; ``numpy`` is the module.

    The columns are an array, which is returned unchanged, a mapping of names to arrays, an Arrow record batch or table,
    or a data frame. One that does not hold numbers raises a ValueError.
    """
    if isinstance(columns, numpy.ndarray):
        return columns
    if hasattr(columns, "num_columns"):  # an Arrow table or record batch
        columns = dict(enumerate(columns.columns))
    if hasattr(columns, "iloc"):  # a data frame: with several types its array would hold objects
        columns = {index: columns.iloc[:, index] for index in range(columns.shape[1])}
    if isinstance(columns, Mapping):
        columns = numpy.column_stack([numpy.asarray(column) for column in columns.values()])
    matrix = numpy.asarray(columns)
    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"the columns make a matrix of {matrix.dtype}, not one of numbers.")
    if matrix.dtype.kind in "iu":  # round as rows do: Python floats first
        matrix = matrix.astype("float64")
    return matrix.astype(dtype, copy=False)


def by_name(columns: Any) -> dict[str, Any]:
    """The columns of a mapping, an Arrow table or record batch, or a data frame, by their names."""
    names = columns.schema.names if hasattr(columns, "schema") else columns
    return {str(name): columns[name] for name in names}


def only_text(row: Mapping[str, Any]) -> str:
    """The text in a row's only column; raises ValueError if it has several columns, or no text."""
    if len(row) != 1:
        raise ValueError(
            f"choose one column with the text (--columns, in Python columns=), of {', '.join(map(str, row))}."
        )
    ((column, value),) = row.items()
    if not isinstance(value, str):
        raise ValueError(f"column {column!r} holds {repr(value)[:_SHOWN]}, which is no text.")
    return value


def column_numbers(column: str, value: Any, largest: float = sys.float_info.max) -> list[float]:
    """The number, or list of numbers, in one column; raises ValueError if one is not a finite number."""
    return [_to_number(column, item, largest) for item in _items(value)]


def column_integers(column: str, value: Any, hint: str = "") -> list[int]:
    """The whole number, or list of them, in one column: 64 bits, possibly written as floats.

    Raises ValueError if one is not; the message ends with ``hint``.
    """
    found = []
    for item in _items(value):
        readable = parsed(item)
        is_whole = isinstance(readable, int) or (isinstance(readable, float) and readable.is_integer())
        if not is_whole or not -(2**63) <= readable < 2**63:
            raise ValueError(f"column {column!r} holds {repr(item)[:_SHOWN]}, which is no whole number{hint}.")
        found.append(int(readable))
    return found


def _items(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    return value if isinstance(value, list | tuple) else [value]


def parsed(value: Any) -> Any:
    """A string that is a decimal number becomes that number (int if written as one); other values are unchanged."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return value
    number = float(value)
    if not math.isfinite(number):
        return value
    return int(value) if set(value).isdisjoint(".eE") else number


def _to_number(column: str, value: Any, largest: float) -> float:
    number, readable = math.nan, parsed(value)
    if not isinstance(readable, str | bytes):  # float() would accept "nan" and "1_000"
        with suppress(TypeError, ValueError, OverflowError):
            number = float(readable)
    if abs(number) <= largest:
        return number
    raise ValueError(f"column {column!r} holds {repr(value)[:_SHOWN]}, which is not a finite number.")


def _rows(answer: Any) -> list[Any]:
    return _transposed(answer) if isinstance(answer, Mapping) else predictions_of(answer, _FUNCTION)


def _transposed(columns: Mapping[Any, Iterable[Any]]) -> list[dict[Any, Any]]:
    lists = {name: predictions_of(column, f"output {name!r} of the model") for name, column in columns.items()}
    lengths = {name: len(column) for name, column in lists.items()}
    if len(set(lengths.values())) > 1:
        raise PredictionCountError(
            f"the model's outputs differ in length, so they cannot belong to the same examples: {lengths}"
        )
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def is_deep(value: Any) -> bool:
    """Whether lists and dicts are nested more than ``DEEPEST`` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        values = (value for one in level for value in (one.values() if isinstance(one, dict) else one))
        level = [value for value in values if isinstance(value, dict | list)]
    return bool(level)


def text_length(example: Any) -> int:
    """Roughly how many tokens a text has, in about 20 microseconds; for ``length_fn``.

    Characters say less: of the docstrings of some packages, sorted by characters and cut into batches of 32, a quarter
    of what a model computes is padding, by this function an eighth, and by its own tokenizer a fourteenth.

    Args:
        example: a text; a mapping, list or tuple of texts, such as a question with its context, has the length of all.

    Returns:
        At least 1. It never raises: what is no text has length 1, and fails in the model, if at all.
    """
    if isinstance(example, str):
        return _SPECIAL + len(_PIECES.findall(example))
    if isinstance(example, Mapping):
        example = list(example.values())
    if isinstance(example, list | tuple):
        return max(1, sum(text_length(part) for part in example if isinstance(part, str | Mapping | list | tuple)))
    return 1


def row_length(value: Any) -> float:
    """The length that a column of a row says: a number as it is, a text or a list of texts by ``text_length``.

    A row without a usable value (null, NaN, a negative number) has length 1: a hint must not make it fail.
    """
    if isinstance(value, int | float):
        return value if 1 <= value < float("inf") else 1  # false if it is NaN
    if isinstance(value, list | tuple) and not any(isinstance(item, str) for item in value):
        return max(1, len(value))
    return text_length(value)
