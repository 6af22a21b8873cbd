"""Predicts for Arrow's batches one by one, as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import pyarrow

Opened = Callable[[Any], AbstractContextManager[Callable[[Any], Any]]]
"""Opens a worker for tables with the columns of one; its context gives each back with its predictions."""


def predicted_stream(given: Any, opened: Opened) -> Any:
    """A reader of the batches with their predictions."""
    reader = pyarrow.RecordBatchReader.from_stream(given)

    def batches() -> Iterator[Any]:
        empty = pyarrow.RecordBatch.from_pylist([], schema=reader.schema)
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
        ValueError: it has others.
    """
    names = batch.schema.names
    if unknown := [one for one in batch.schema if one.name not in schema.names and str(one.type) != "null"]:
        raise ValueError(f"the first batches have no column {unknown[0].name!r}; leave explode out.")
    fields = zip(schema.names, schema.types, strict=True)
    columns = [batch.column(name).cast(kind) if name in names else [None] * len(batch) for name, kind in fields]
    return type(batch).from_arrays(columns, schema=schema)
