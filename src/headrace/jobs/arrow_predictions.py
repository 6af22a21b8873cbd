"""Adds predictions to Arrow tables, and to readers of batches, as columns of the types that Parquet outputs have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import chain
from typing import Any

import pyarrow

from headrace.jobs.json_lines import JsonEncodeError
from headrace.jobs.letters import unwritten
from headrace.jobs.output_batches import column_of_predictions, json_value
from headrace.jobs.parquet_tables import as_array, type_of_values
from headrace.rows.examples import PREDICTION


def predicted_stream(given: Any, opened: Callable[[Any], AbstractContextManager[Callable[[Any], Any]]]) -> Any:
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
    """A record batch with the columns of a schema, which hold all of its values."""
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


def in_arrow(table: Any, added: dict[str, Any], *, raises: bool) -> Any:
    """A table or record batch of Arrow's with more columns: values of all rows, an array, or one value for all rows.

    A prediction that cannot be written ``raises`` JsonEncodeError, or only makes the row's outcome a failure.
    """
    if isinstance(added["outcome"], list):
        names = [name for name in added if name.startswith(PREDICTION)]
        added = {**added, **{name: _written(added, name, raises=raises) for name in names}}
    columns, schema = list(table.columns), table.schema
    for name, value in added.items():
        columns.append(_column(name, value, table.num_rows))
        schema = schema.append(pyarrow.field(name, columns[-1].type))
    return type(table).from_arrays(columns, schema=schema)


def _column(name: str, value: Any, rows: int) -> Any:
    if value is None or isinstance(value, str):
        return pyarrow.repeat(pyarrow.scalar(value, pyarrow.string()), rows)
    if not name.startswith(PREDICTION):
        return as_array(value, pyarrow.string())
    if (column := column_of_predictions(value)) is not None:
        return column
    values = list(map(json_value, value))
    return as_array(values, type_of_values(values))


def _written(added: dict[str, list[Any]], name: str, *, raises: bool) -> list[Any]:
    """A column of predictions as JSON's values; the others of one that cannot be written are changed in place."""
    written = []
    for row, prediction in enumerate(added[name]):
        try:
            value = json_value(prediction)
        except JsonEncodeError as error:
            if raises:
                raise
            letter = unwritten(error, added["model_id"][row])
            added["outcome"][row], added["error"][row] = "failed", f"{letter.error_type}: {letter.message}"
            value = None
        written.append(value)
    return written
