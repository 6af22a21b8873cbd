"""What a handler is given of a row, and the columns that its prediction adds to the row.

This module also runs in model hosts: it must not import Beam.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from headrace.core.columns import Form, Takes
from headrace.core.config import BatchingConfig
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelHandler
from headrace.core.keyed import KeyedModelHandler
from headrace.rows.blocks import BrokenLine, Record, Row, TypedRow
from headrace.runtime.plan import Plan, make_plan

PREDICTION = "prediction"
RESERVED = (PREDICTION, "model_id")
"""The columns that ``answer_of`` adds to a row in the output."""
_MOST_OF_COLUMNS = 100_000
_PLAIN = {bool, int, float, str, type(None)}


@dataclass(frozen=True)
class Examples:
    """How to make the handler's example from a row."""

    columns: tuple[str, ...] | None = None
    """The chosen columns; None: all."""
    all_columns: tuple[str, ...] = ()
    """The order of columns for a handler that makes its own examples, if none were chosen."""
    key: str | None = None
    """The key column, for a keyed handler."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """What the columns hold, as far as the source states it or it was decided: the names of ``types_of_schema``."""
    bare: bool = False
    """Whether the value of the one chosen column is the example, for handlers that make their own, too."""

    @property
    def seen(self) -> tuple[str, ...]:
        """The columns that a handler sees that makes its own examples."""
        return self.all_columns if self.columns is None else self.columns


def over_rows(handler: Any, examples: Examples, reserved: Collection[str] = ()) -> Any:
    """A copy of a handler whose elements are rows; predictions come without their keys.

    The first preprocessing function makes the example, those of ``handler`` follow. They receive what its
    ``example_from_row`` would: a dict of the columns, or the bare value if exactly one column was chosen. A row with a
    ``reserved`` column fails.

    Raises:
        ConfigurationError: it is not a handler, or not one that can run over rows.
    """
    keyless = without_keys(handler, examples.key)
    plan = make_plan(handler)
    model = None if plan.preprocess or examples.bare else next(iter(plan.models.values()))
    return ModelHandler.with_preprocess_fn(keyless, ExampleOfRow(examples, model, reserved))


def without_keys(handler: Any, key: str | None) -> Any:
    """The handler; if it is keyed, with this key column, predictions come without their keys.

    Raises:
        ConfigurationError: as ``over_rows``.
    """
    refuse_unfit(handler)
    plan = make_plan(handler)
    keyed = isinstance(plan.handler, KeyedModelHandler)
    _refuse_wrong_key(plan, key, keyed=keyed)
    return ModelHandler.with_postprocess_fn(handler, without_key) if keyed else handler


def batching_over_columns(config: BatchingConfig) -> BatchingConfig:
    """The options for batches that are cut from blocks: without a maximum of the user's they may be larger."""
    most = _MOST_OF_COLUMNS if config.max_batch_size == BatchingConfig.max_batch_size else config.max_batch_size
    return replace(config, columnar=True, max_batch_size=most)


def batching_over_rows(handler: Any, sizes: Mapping[str, int]) -> BatchingConfig:
    """The handler's batching options with ``sizes`` in place of its own; a maximum alone lowers its minimum."""
    own = make_plan(handler).batching
    fewest = max(1, min(own.min_batch_size, sizes.get("max_batch_size", own.max_batch_size)))
    changes: dict[str, Any] = {"min_batch_size": fewest, **sizes}
    return replace(own, **changes)


def taken_of_blocks(handler: Any) -> Takes | None:
    """What the handler takes of a block of rows, predicting the same; None: it, or an option, needs the rows."""
    plan = make_plan(handler)
    rows_are_needed = plan.keyed or plan.prebatched or plan.preprocess or plan.postprocess
    if rows_are_needed or plan.batching.element_size_fn or plan.batching.length_fn:
        return None
    answers_alike = getattr(plan.handler, "columns_equal_rows", None)
    if answers_alike is None or not _columns_match_rows(type(plan.handler)) or not answers_alike():
        return None
    return _declared(plan.handler)


def takes_frames(handler: Any) -> bool:
    """Whether a one-row data frame is an example of the handler, which no function of the user's makes of a row.

    Raises:
        ConfigurationError: it is not a handler.
    """
    refuse_unfit(handler)
    plan = make_plan(handler)
    return rows_are_examples(next(iter(plan.models.values()))) and not plan.preprocess


def rows_are_examples(model: Any) -> bool:
    """Whether a model's handler takes rows, and frames of rows, for its examples: no subclass makes others of them."""
    cls = type(model)
    return _declared(model).form is Form.FRAME and _depth(cls, "takes") <= _depth(cls, "example_from_row")


def _declared(model: Any) -> Takes:
    found = getattr(model, "takes", None)
    return found if isinstance(found, Takes) else Takes()


def answer_of(prediction: Any) -> tuple[Any, str | None]:
    """What a prediction adds to its row in the output: the prediction, and the model's id if it has one."""
    if type(prediction) in _PLAIN or not (hasattr(prediction, "inference") and hasattr(prediction, "example")):
        return prediction, None
    return prediction.inference, getattr(prediction, "model_id", None)  # Headrace's or Beam's result


def _columns_match_rows(cls: type) -> bool:
    """Whether no subclass overrides how rows are predicted or made into examples and says nothing of columns."""
    names = ("takes", "run_columns", "run_inference", "example_from_row")
    declared, of_columns, *of_rows = (_depth(cls, name) for name in names)
    return hasattr(cls, "run_columns") and min(declared, of_columns) <= min(of_rows)


def _depth(cls: type, method: str) -> int:
    return next((depth for depth, base in enumerate(cls.__mro__) if method in vars(base)), len(cls.__mro__))


class ExampleOfRow:
    """Row -> example, or (key, example) for a keyed handler."""

    def __init__(self, examples: Examples, handler: Any = None, reserved: Collection[str] = ()) -> None:
        """Of the ``handler``'s ``example_from_row``, if there is one."""
        is_row = rows_are_examples(handler)
        from_row: Callable[[Mapping[str, Any]], Any] | None = getattr(handler, "example_from_row", None)
        self._reserved = tuple(reserved)
        self._columns = examples.columns
        if self._columns is None and from_row:
            self._columns = examples.all_columns
        self._bare = from_row is None and len(examples.columns or ()) == 1
        self._from_row = None if is_row else from_row
        self._key = examples.key
        self._types = examples.types if _declared(handler).form is Form.FRAME else {}

    def __call__(self, row: Record) -> Any:
        """The row's example; without chosen columns the row itself.

        Raises:
            Exception: the example cannot be made.
        """
        if isinstance(row, BrokenLine):
            raise row.error
        if not row.keys().isdisjoint(self._reserved):
            self.refuse_reserved(row)
        try:
            example = row if self._columns is None else self._chosen(row, self._columns)
            key = None if self._key is None else row[self._key]
        except KeyError as error:
            raise LookupError(f"the row has no column {error}") from None
        if self._types:
            example = TypedRow(example, self._types)
        if self._from_row:
            example = self._from_row(example)
        return example if self._key is None else (key, example)

    def refuse_reserved(self, columns: Collection[str]) -> None:
        """Raises ValueError if one of the columns is reserved."""
        for name in self._reserved:
            if name in columns:
                raise ValueError(
                    f"the row has a column {name!r} of its own, which the prediction's would replace in the output; "
                    "name the columns to keep with --keep."
                )

    def _chosen(self, row: Row, columns: tuple[str, ...]) -> Any:
        if self._bare:
            return row[columns[0]]
        return row if tuple(row) == columns else {name: row[name] for name in columns}


def without_key(value: Any) -> Any:
    """Drops the key of a (key, prediction) pair, which the row has already; postprocessing may leave no pair."""
    return value[1] if type(value) is tuple and len(value) == 2 else value


def refuse_unfit(handler: Any) -> None:
    """Raises ConfigurationError if it is no handler, or one that rows cannot be given to."""
    methods: Sequence[str] = ("load_model", "run_inference", "get_preprocess_fns", "batch_elements_kwargs")
    if isinstance(handler, type) or not all(hasattr(handler, method) for method in methods):
        raise ConfigurationError(f"{handler!r} is no model handler; derive it from headrace.ModelHandler.")
    if handler.should_skip_batching():
        raise ConfigurationError(
            f"{type(handler).__qualname__} takes batches for its elements (with_no_batching), but rows come one by "
            "one; leave with_no_batching out, and set --max-batch-size 1 if the model takes one example at a time."
        )


def _refuse_wrong_key(plan: Plan, key: str | None, *, keyed: bool) -> None:
    name = type(plan.handler).__qualname__
    if keyed and key is None:
        raise ConfigurationError(f"{name} takes keys; name their column with --key (in Python, key=).")
    if not keyed and key is not None:
        raise ConfigurationError(f"{name} takes no keys; leave --key out.")
    if keyed and not plan.keyed:
        raise ConfigurationError(f"{name} changes KeyedModelHandler, which rows cannot be given to; run it in Python.")


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
            values = (prediction if hasattr(prediction, "tolist") else prediction.numpy()).tolist()
    return (names or range(len(values)), values) if isinstance(values, list | tuple) else ((), ())


def exploded_all(predictions: Any) -> dict[str, Any]:
    """The values of predictions, a list or an array of numpy's, by column; None where one has none."""
    kind = getattr(predictions, "dtype", None)
    if kind is not None and kind.names:
        return {f"{PREDICTION}_{name}": predictions[name].copy() for name in kind.names}
    if kind is not None and kind.kind in "biuf" and predictions.ndim == 1:
        return {PREDICTION: predictions}
    if kind is not None and kind.kind in "biuf" and predictions.ndim == 2 and predictions.shape[1]:
        return {f"{PREDICTION}_{number}": column.copy() for number, column in enumerate(predictions.T)}
    rows = list(map(exploded, predictions))
    names = dict.fromkeys(chain.from_iterable(rows)) or {PREDICTION: None}
    return {name: [row.get(name) for row in rows] for name in names}


def refuse_exploded(columns: Iterable[str]) -> None:
    """Raises ConfigurationError if a column is called as those that predictions become."""
    for name in columns:
        if name.startswith(f"{PREDICTION}_"):
            raise ConfigurationError(
                f"there is a column {name!r}, a name that values of predictions get; rename it or leave it out."
            )
