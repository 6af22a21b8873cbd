"""What a handler is given of what ``predict`` is given: elements, of a table its rows, or blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from headrace.core.answer import is_of_columns
from headrace.core.errors import ConfigurationError
from headrace.core.result import Failure, Outcome, PredictionResult, Predictions
from headrace.rows.examples import ExampleOfRow, answer_of, over_rows, takes_frames, without_keys
from headrace.rows.frames import examples_of, frames_of, rows_of_table
from headrace.runtime.plan import make_plan
from headrace.runtime.prepare import InferenceRequest


class Elements(NamedTuple):
    """A handler of elements, how it runs, and what makes elements of what ``predict`` is given."""

    handler: Any
    request: InferenceRequest
    of: Callable[[Any], Iterable[Any]]
    """Of a table, or of another one with the same columns."""
    example_of: Callable[[Any], Any] | None = None
    """Of a row, if the elements are blocks."""


def elements_of(
    handler: Any, given: Any, request: InferenceRequest, columns: tuple[Any, Any], *, always_blocks: bool = False
) -> Elements:
    """How to run a handler over what is given.

    Args:
        handler: of the user's.
        given: an iterable of elements, or a table.
        request: the other arguments.
        columns: the arguments ``columns`` and ``key``.
        always_blocks: whether a table goes in blocks wherever its rows are predicted the same; else only if rows of
            frames are the handler's examples.

    Raises:
        ConfigurationError: that cannot be.
    """
    if not is_of_columns(given):
        _refuse_what_is_no_iterable_of_elements(given)
        if columns != (None, None):
            raise ConfigurationError(
                "columns and key choose from the columns of a data frame or an Arrow table; choose from other rows in "
                "with_preprocess_fn."
            )
        return Elements(handler, request, lambda some: some)
    if request.batching is not None and request.batching.columnar:
        raise ConfigurationError(
            f"with BatchingConfig(columnar=True) an element is many rows: give a list of a {type(given).__name__}, or "
            "leave columnar out, and each row is an element."
        )
    examples = examples_of(given, *columns)
    are_frames = takes_frames(handler)
    if always_blocks or are_frames:
        from headrace.rows.columns import blocks_for  # noqa: PLC0415 - needs pyarrow

        if (found := blocks_for(handler, given, request, examples)) is not None:
            return Elements(*found, ExampleOfRow(examples, make_plan(handler).handler))
    request = replace(request, column_types=examples.types)
    if hasattr(given, "iloc") and are_frames:
        return Elements(without_keys(handler, examples.key), request, lambda some: frames_of(some, examples))
    return Elements(over_rows(handler, examples), request, rows_of_table)


def _refuse_what_is_no_iterable_of_elements(given: Any) -> None:
    """Refuses strings and mappings: iterating them yields characters or keys, not elements."""
    if isinstance(given, str | bytes | bytearray):
        problem = f"a {type(given).__name__}, which would be taken for its letters: put a single element into a list"
    elif isinstance(given, Mapping):
        problem = "a mapping, which would be taken for its keys: put a single element into a list"
    elif not hasattr(type(given), "__iter__") and not hasattr(type(given), "__getitem__"):
        problem = f"{given!r:.80}"
    else:
        return
    raise ConfigurationError(f"predict needs an iterable of elements, not {problem}.")


def results_of_rows(example_of: Callable[[Any], Any], outcomes: Iterable[Outcome]) -> Iterator[tuple[int, Any]]:
    """Pairs of a row's number and its result, of outcomes of blocks."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            for place, row in enumerate(outcome.element.rows(), outcome.element.first):
                yield place, replace(outcome, tag=place, element=row)
        elif isinstance(outcome, Predictions):
            for block, predictions, model_id in outcome.values:
                rows = zip(count(block.first), map(example_of, block.rows()), predictions)
                for place, example, prediction in rows:
                    value, own_id = answer_of(prediction)
                    yield place, PredictionResult(example, value, own_id or model_id)
