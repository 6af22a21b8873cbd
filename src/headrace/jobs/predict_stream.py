"""Predicts for Arrow's batches one by one, as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import chain
from typing import Any

import pyarrow

Opened = Callable[[Any], AbstractContextManager[Callable[[Any], Any]]]
"""Opens a worker for tables with the columns of one; its context gives each back with its predictions."""


def predicted_stream(given: Any, opened: Opened) -> Any:
    """A reader of the batches with their predictions."""
    reader = pyarrow.RecordBatchReader.from_stream(given)

    def batches() -> Iterator[Any]:
        columns = [pyarrow.nulls(0, kind) for kind in reader.schema.types]
        empty = pyarrow.RecordBatch.from_arrays(columns, schema=reader.schema)
        with opened(empty) as predicted:
            yield from map(predicted, reader)
            yield predicted(empty)  # there may be no other

    coming, first = batches(), []
    for batch in coming:
        first.append(batch)
        if not pyarrow.types.is_null(batch.schema.field(len(reader.schema)).type):
            break
    schema = first[-1].schema
    return pyarrow.RecordBatchReader.from_batches(schema, (_cast(one, schema) for one in chain(first, coming)))


def _cast(batch: Any, schema: Any) -> Any:
    """A record batch with the columns of a schema.

    Raises:
        ValueError: it has others, or values that the schema's types cannot hold.
    """
    given = batch.schema
    if unknown := [one for one in given if one.name not in schema.names and not pyarrow.types.is_null(one.type)]:
        raise ValueError(f"the first batches have no column {unknown[0].name!r}; leave explode out.")
    columns = [
        _held(batch.column(field.name), field) if field.name in given.names else pyarrow.nulls(len(batch), field.type)
        for field in schema
    ]
    return type(batch).from_arrays(columns, schema=schema)


def _held(column: Any, field: Any) -> Any:
    """A column cast to the type of a field, if that holds all of its values."""
    if column.type == field.type:
        return column
    with suppress(pyarrow.ArrowException):
        both = [pyarrow.schema([field]), pyarrow.schema([(field.name, column.type)])]
        if pyarrow.unify_schemas(both, promote_options="permissive").types == [field.type]:
            return column.cast(field.type)
    raise ValueError(
        f"column {field.name!r} is {field.type} in the first batches and {column.type} in a later one, and a reader's "
        "types cannot change; have the handler return values of one type, or read all into one table before."
    )
