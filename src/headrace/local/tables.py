"""Runs a handler over the rows of tables, one table after the other, with one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headrace.core.result import Outcome, PredictionResult, Predictions
from headrace.local.elements import elements_of
from headrace.local.predict import drained, opened, prepared
from headrace.rows.examples import answer_of
from headrace.rows.frames import examples_of
from headrace.runtime.prepare import InferenceRequest


@contextmanager
def predicting(
    handler: Any, table: Any, request: InferenceRequest, columns: tuple[Any, Any], on_failure: str
) -> Iterator[Callable[[Any], Iterator[Outcome]]]:
    """A context with a function that yields the outcomes of a table, whose columns are those of ``table``.

    Their tags are the numbers of rows, or None for outcomes of blocks. ``columns`` are ``predict``'s, and its ``key``.
    """
    from headrace.rows.table_blocks import blocks_for  # noqa: PLC0415 - needs pyarrow

    blocks = blocks_for(handler, table, request, examples_of(table, *columns))
    if blocks is None:
        over, _, types = elements_of(handler, table, *columns, request.batching)
        request = replace(request, column_types=types)
    else:
        over, request = blocks.handler, blocks.request

    def tagged(some: Any) -> Iterable[tuple[Any, Any]]:
        if blocks is not None:
            return ((block, None) for block in blocks.of(some))
        rows: Iterable[Any] = elements_of(handler, some, *columns, request.batching)[1]
        return ((row, place) for place, row in enumerate(rows))

    spec = prepared(over, request, on_failure)
    with opened(spec) as bundle:

        def outcomes(some: Any) -> Iterator[Outcome]:
            try:
                for element, tag in tagged(some):
                    yield from map(_named, bundle.add(element, tag))
                yield from map(_named, bundle.finish())
            except KeyboardInterrupt:
                list(drained(spec, bundle))  # a cache keeps it
                raise

        yield outcomes


def _named(outcome: Outcome) -> Outcome:
    """The outcome; a fallback's predictions say who answered, whatever they are."""
    if not isinstance(outcome, Predictions) or outcome.fallback is None:
        return outcome
    answers = map(answer_of, outcome.values)
    named = [PredictionResult(None, value, model_id or outcome.fallback) for value, model_id in answers]
    return outcome._replace(values=named)
