"""Adds predictions to an Arrow table, as columns of the types that ``headrace run`` writes to Parquet."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow

from headrace.jobs.column_types import as_array, kind_of, type_of
from headrace.jobs.json_lines import JsonEncodeError
from headrace.jobs.letters import unwritten
from headrace.jobs.output_batches import Json, column_of_predictions, encoded
from headrace.rows.exploded import PREDICTION


def with_columns(table: Any, added: dict[str, Any], *, raises: bool) -> Any:
    """The table or record batch with more columns.

    Args:
        table: of Arrow's.
        added: the columns of ``predict_table``: values of all rows, an array, or one value that all rows have. A
            prediction that cannot be written fails.
        raises: whether that raises, or only makes the row's outcome a failure.

    Raises:
        JsonEncodeError: a prediction cannot be written, and ``raises``.
    """
    if not isinstance(added["outcome"], list):
        return _appended(table, {name: _column(value, table.num_rows) for name, value in added.items()})
    predictions = {name: _written(added, name, raises=raises) for name in added if name.startswith(PREDICTION)}
    added = {**added, **predictions}
    types = dict.fromkeys(added, pyarrow.string()) | {
        name: type_of(kind_of(values)) for name, values in predictions.items()
    }
    return _appended(table, {name: as_array(values, types[name]) for name, values in added.items()})


def _column(value: Any, rows: int) -> Any:
    """A column of an array, a list, or one text or None for all rows."""
    if value is None or isinstance(value, str):
        return pyarrow.repeat(pyarrow.scalar(value, pyarrow.string()), rows)
    return column_of_predictions(value)


def _appended(table: Any, arrays: dict[str, Any]) -> Any:
    schema = table.schema
    for name, array in arrays.items():
        schema = schema.append(pyarrow.field(name, array.type))
    return type(table).from_arrays([*table.columns, *arrays.values()], schema=schema)


def _written(added: dict[str, list[Any]], name: str, *, raises: bool) -> list[Any]:
    """A column of predictions as JSON's values; the others of one that cannot be written are changed in place."""
    written = []
    for row, prediction in enumerate(added[name]):
        try:
            value = encoded(prediction)
        except JsonEncodeError as error:
            if raises:
                raise
            letter = unwritten(error, added["model_id"][row])
            added["outcome"][row], added["error"][row] = "failed", f"{letter.error_type}: {letter.message}"
            value = None
        written.append(_plain(value))
    return written


def _plain(value: Any) -> Any:
    if type(value) is Json:
        return json.loads(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
