"""What ``predict`` and ``predict_table`` give a handler of a table: its rows, or blocks of them.

A row has the values that it would have in a file of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any, NamedTuple

from headrace.batching.columnar import rows_in, slice_rows
from headrace.core.answer import is_of_columns
from headrace.core.columns import Form
from headrace.core.config import BatchingConfig
from headrace.core.errors import ConfigurationError
from headrace.core.result import Failure, PredictionResult
from headrace.core.spelling import nearest
from headrace.rows.blocks import Block, Record, types_of_schema
from headrace.rows.examples import (
    ExampleOfRow,
    Examples,
    answer_of,
    batching_over_columns,
    over_rows,
    taken_of_blocks,
    takes_frames,
    without_keys,
)
from headrace.runtime.plan import make_plan
from headrace.runtime.prepare import InferenceRequest

_ROWS_AT_ONCE = 1024
_ROWS_OF_BLOCK = 1 << 15


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
    """How to run a handler over an iterable of elements or a table, with the arguments ``columns`` and ``key``.

    A table goes in blocks if rows of frames are the handler's examples, or ``always_blocks`` and its rows are predicted
    the same.

    Raises:
        ConfigurationError: that cannot be.
    """
    if not (is_of_columns(given) or _is_reader(given)):
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
    if (always_blocks or are_frames) and (found := _in_blocks(handler, given, request, examples)) is not None:
        return found
    request = replace(request, column_types=examples.types)
    if hasattr(given, "iloc") and are_frames:
        return Elements(without_keys(handler, examples.key), request, lambda some: _frames_of(some, examples))
    return Elements(over_rows(handler, examples), request, rows_of_table)


def table_or_elements(handler: Any, given: Any, batching: BatchingConfig | None) -> Any:
    """What is given to ``predict``; a stream of Arrow's batches, or a lazy frame of Polars, as a reader of rows.

    Such batches stay elements of a handler that takes batches, or columns, for its elements.
    """
    if type(given).__module__.partition(".")[0] == "polars" and hasattr(given, "collect"):
        given = _computed_in_batches(given)
    if is_of_columns(given) or not hasattr(given, "__arrow_c_stream__") or hasattr(given, "__len__"):
        return given  # what has a length is a series, or a chunked array
    import pyarrow  # noqa: PLC0415 - only such a stream needs it

    reader = pyarrow.RecordBatchReader.from_stream(given)
    are_elements = (batching is not None and batching.columnar) or getattr(handler, "should_skip_batching", bool)()
    return (batch for batch in reader) if are_elements else reader


def _computed_in_batches(lazy: Any) -> Any:
    """A reader of a lazy frame of Polars, which is computed as it is read; of a Polars that cannot do so, the frame."""
    if not hasattr(lazy, "collect_batches"):
        return lazy.collect()
    import pyarrow  # noqa: PLC0415 - only such a frame needs it

    frames = lazy.collect_batches(lazy=True)
    batches = (batch for frame in frames for batch in frame.to_arrow().to_batches())
    return pyarrow.RecordBatchReader.from_batches(lazy.head(0).collect().to_arrow().schema, batches)


def _refuse_what_is_no_iterable_of_elements(given: Any) -> None:
    """Refuses strings and mappings, too: iterating them yields characters or keys, not elements."""
    is_one = isinstance(given, str | bytes | bytearray | Mapping)
    if is_one or not (hasattr(type(given), "__iter__") or hasattr(type(given), "__getitem__")):
        problem = f"a {type(given).__name__}: put a single element into a list" if is_one else f"{given!r:.80}"
        raise ConfigurationError(f"predict needs an iterable of elements, not {problem}.")


def _in_blocks(handler: Any, table: Any, request: InferenceRequest, examples: Examples) -> Elements | None:
    """Blocks of a table as elements; None: rows go one by one."""
    batching = request.batching or make_plan(handler).batching
    needs_rows = batching.sorts or batching.sizes_are_weights or batching.columnar or examples.key is not None
    takes = None if needs_rows or request.fallback or request.cache or request.budget else taken_of_blocks(handler)
    if takes is None:
        return None
    from headrace.rows.columns import Fit, fitted, over_blocks  # noqa: PLC0415 - needs pyarrow

    fit = Fit(examples.seen, takes)

    def blocks_of(some: Any) -> Iterator[Block]:
        blocks = _blocks_of_table(some, fit.names)
        return blocks if takes.form is Form.FRAME else map(_of_arrays, blocks)

    seen = table if hasattr(table, "schema") else next((block.batch for block in blocks_of(table)), None)
    if seen is None or (takes.form is not Form.FRAME and not fit.has_types(types_of_schema(seen.schema))):
        return None
    request = replace(request, batching=batching_over_columns(batching), column_types=examples.types)
    return Elements(
        over_blocks(handler, examples, fit),
        request,
        lambda some: fitted(blocks_of(some), fit),
        ExampleOfRow(examples, make_plan(handler).handler),
    )


def _of_arrays(block: Block) -> Block:
    """A block of a data frame as a record batch of the columns that a model sees, or as records."""
    if not hasattr(block.batch, "iloc"):
        return block
    from headrace.rows.values import batch_of_frame  # noqa: PLC0415 - needs pyarrow

    seen = block.batch[list(block.names)]
    batch = batch_of_frame(seen)
    return replace(block, batch=batch, records=() if batch is not None else replace(block, batch=seen).rows())


def results_of_blocks(outcome: Any, example_of: Callable[[Any], Any]) -> Iterator[tuple[int, Any]]:
    """Pairs of a row's position and its result, of an outcome of blocks: a prediction, or a Failure."""
    if isinstance(outcome, Failure):
        for place, row in enumerate(outcome.element.rows(), outcome.element.first):
            yield place, replace(outcome, tag=place, element=row)
        return
    for block, predictions, model_id in outcome.values:
        for place, example, prediction in zip(count(block.first), map(example_of, block.rows()), predictions):
            value, own_id = answer_of(prediction)
            yield place, PredictionResult(example, value, own_id or model_id)


def names_of(table: Any) -> tuple[str, ...]:
    """The names of a table's columns.

    Raises:
        ConfigurationError: it has none, or two of the same name; or it is a table of no known kind.
    """
    known = _known(table)
    names = tuple(known.columns if hasattr(known, "iloc") else known.schema.names)
    if not names:
        raise ConfigurationError("the table has no columns, so its rows make no examples.")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConfigurationError(f"the table has several columns {twice[0]!r}; rename all but one.")
    return names


def types_of_table(table: Any) -> dict[str, Any]:
    """The types of the columns of an Arrow table, or the dtypes of a data frame; for objects that of the first ones."""
    if not hasattr(table, "iloc"):
        return types_of_schema(_known(table).schema)
    given = table.dtypes.items()
    first = table.iloc[:_ROWS_AT_ONCE]
    return {name: first[name].convert_dtypes().dtype if str(kind) == "object" else kind for name, kind in given}


def examples_of(table: Any, columns: Any, key: str | None) -> Examples:
    """How the examples of a table's rows are made, of the arguments ``columns`` and ``key``.

    Raises:
        ConfigurationError: there is no such column.
    """
    names = names_of(table)
    keys = chosen("key", key, names)
    return Examples(chosen("columns", columns, names), names, keys[0] if keys else None, types_of_table(table))


def rows_of_table(table: Any) -> Iterator[Record]:
    """The rows in order, each a dict; one that has a value without Python equivalent is a ``BrokenLine``."""
    return chain.from_iterable(block.rows() for block in _blocks_of_table(table, (), _ROWS_AT_ONCE))


def _blocks_of_table(table: Any, names: tuple[str, ...], rows: int = _ROWS_OF_BLOCK) -> Iterator[Block]:
    """The rows of a table of Arrow's or of pandas' in blocks of at most ``rows``, for a model that sees ``names``."""
    table, first = _known(table), 0
    for piece in table if _is_reader(table) else [table]:
        for start in range(0, rows_in(piece), rows):
            some = slice_rows(piece, start, start + rows)
            # Several batches if the text of one column is too long for one array.
            for batch in some.combine_chunks().to_batches() if hasattr(some, "to_batches") else [some]:
                yield Block(0, first, names, batch, path="the table")
                first += rows_in(batch)


def _frames_of(frame: Any, examples: Examples) -> Iterator[Any]:
    """The rows of a data frame in order, each a frame of the chosen columns, with the types that these have.

    For a keyed handler they are pairs with the row's key.
    """
    seen = frame if examples.columns is None else frame[list(examples.columns)]
    rows = (seen.iloc[place : place + 1] for place in range(len(seen)))
    return rows if examples.key is None else zip(frame[examples.key], rows, strict=True)


def chosen(option: str, asked: str | Sequence[str] | None, names: Sequence[str]) -> tuple[str, ...] | None:
    """The columns, of those with these ``names``, that an argument asks for; None if it was left out.

    Raises:
        ConfigurationError: it names a column that there is not, or none at all; the message names the ``option``.
    """
    if asked is None:
        return None
    wanted: tuple[Any, ...] = (asked,) if isinstance(asked, str) or asked in names else tuple(asked)
    for name in wanted:
        if name not in names:
            meant = nearest(str(name), map(str, names))
            hint = f"did you mean {meant!r}?" if meant else f"it has {', '.join(map(str, names))}."
            raise ConfigurationError(f"{option}: the table has no column {name!r}; {hint}")
    if not wanted:
        raise ConfigurationError(f"{option} names no column; leave it out if the handler is to be given all of them.")
    return wanted


def _is_reader(given: Any) -> bool:
    return hasattr(given, "read_next_batch")


def _known(table: Any) -> Any:
    """A data frame of pandas, or a table, record batch or reader of Arrow's, which a frame of Polars becomes."""
    if hasattr(table, "iloc") or hasattr(table, "num_columns") or _is_reader(table):
        return table
    if not hasattr(table, "__arrow_c_stream__"):
        kind = f"{type(table).__module__}.{type(table).__qualname__}"
        raise ConfigurationError(
            f"predict takes data frames of pandas and tables of Arrow, and no {kind}: give it an iterable of rows."
        )
    import pyarrow  # noqa: PLC0415 - only such a table needs it

    return pyarrow.table(table)
