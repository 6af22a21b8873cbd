"""What a handler is given of what ``predict`` is given: elements, of a table its rows, or blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from headrace.core.answer import is_of_columns
from headrace.core.config import BatchingConfig
from headrace.core.errors import ConfigurationError
from headrace.core.result import Failure, Outcome, PredictionResult, Predictions
from headrace.rows.examples import ExampleOfRow, answer_of, over_rows, takes_frames, without_keys
from headrace.rows.frames import examples_of, frames_of, rows_of_table
from headrace.runtime.plan import make_plan
from headrace.runtime.prepare import InferenceRequest


def elements_of(
    handler: Any, given: Any, columns: Any, key: str | None, batching: BatchingConfig | None
) -> tuple[Any, Iterable[Any], Mapping[str, Any]]:
    """The handler for the elements, these, and what their columns hold: of a table its rows."""
    if not is_of_columns(given):
        _refuse_what_is_no_iterable_of_elements(given)
        if columns is not None or key is not None:
            raise ConfigurationError(
                "columns and key choose from the columns of a data frame or an Arrow table; choose from other rows in "
                "with_preprocess_fn."
            )
        return handler, given, {}
    if batching is not None and batching.columnar:
        raise ConfigurationError(
            f"with BatchingConfig(columnar=True) an element is many rows: give a list of a {type(given).__name__}, or "
            "leave columnar out, and each row is an element."
        )
    examples = examples_of(given, columns, key)
    if hasattr(given, "iloc") and takes_frames(handler):
        return without_keys(handler, examples.key), frames_of(given, examples), examples.types
    return over_rows(handler, examples), rows_of_table(given), examples.types


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


def frames_in_blocks(
    handler: Any, given: Any, request: InferenceRequest, columns: tuple[Any, Any]
) -> tuple[Any, Iterable[Any], InferenceRequest, Callable[[Any], Any]] | None:
    """A handler of blocks, those of a table, how it runs, and what makes an example of a row; None: it needs rows."""
    if not is_of_columns(given) or not takes_frames(handler):
        return None
    from headrace.rows.table_blocks import blocks_for  # noqa: PLC0415 - needs pyarrow

    examples = examples_of(given, *columns)
    found = blocks_for(handler, given, request, examples)
    if found is None:
        return None
    return found.handler, found.of(given), found.request, ExampleOfRow(examples, make_plan(handler).handler)


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
