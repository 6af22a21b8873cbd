"""Wraps a handler so that it runs over rows: each row travels with its example and comes out with its prediction.

This module also runs in model hosts: it must not import Beam.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.answer import SKIP
from headrace.core.config import BatchingConfig
from headrace.core.errors import ConfigurationError
from headrace.core.keyed import KeyedModelHandler, mappings_of
from headrace.jobs.blocks import BlockRow
from headrace.jobs.json_lines import Endless, is_endless
from headrace.jobs.records import BrokenLine, Row
from headrace.runtime.plan import make_plan

RESERVED = ("prediction", "model_id")
"""The columns that ``fields_of`` adds to a row in the output."""
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


def over_rows(
    handler: Any, examples: Examples, reserved: Collection[str] = ()
) -> KeyedModelHandler[Any, Any, Any, Any]:
    """Wraps a handler so that its elements are rows and its predictions (row, prediction).

    The first preprocessing function makes the example, those of ``handler`` follow. They receive what its
    ``example_from_row`` would: a dict of the columns, or the bare value if exactly one column was chosen.

    Args:
        handler: for examples.
        examples: how to make them.
        reserved: columns that no row may have; a row that does fails.

    Raises:
        ConfigurationError: it is not a handler, or not one that can run over rows.
    """
    _refuse_unfit(handler)
    plan = make_plan(handler)
    keyed = isinstance(plan.handler, KeyedModelHandler)
    _refuse_wrong_key(plan.handler, examples.key, keyed=keyed, plainly=plan.keyed)
    first_model = next(iter(plan.models.values()))
    from_row = None if plan.preprocess else getattr(first_model, "example_from_row", None)
    before = [ExampleOfRow(examples, from_row, reserved), *map(_OnValue, plan.preprocess)]
    after: list[Callable[[Any], Any]] = [_OnValue(function) for function in plan.postprocess]
    if keyed:
        before.append(_key_to_row)
        after = [_key_to_value, *after, _without_key] if after else after
    after.append(_with_an_end)
    rows: Any = _by_column(plan.handler) if keyed else _OverRows(plan.handler)
    for function in reversed(before):
        rows = rows.with_preprocess_fn(function)
    for function in after:
        rows = rows.with_postprocess_fn(function)
    return rows  # type: ignore[no-any-return]


def batching_over_rows(handler: Any, sizes: Mapping[str, int]) -> BatchingConfig:
    """The handler's batching options with ``sizes`` in place of its own; size functions still see examples only."""
    plan = make_plan(handler)
    functions = {name: getattr(plan.batching, name) for name in ("element_size_fn", "length_fn")}
    shift = _OfKeyedExample if isinstance(plan.handler, KeyedModelHandler) else _OnExample
    changes: dict[str, Any] = {name: shift(function) for name, function in functions.items() if function is not None}
    changes.update(sizes)
    return replace(plan.batching, **changes)


def takes_columns(handler: Any) -> bool:
    """Whether the handler predicts the same from columns as from rows, and nothing else needs rows."""
    plan = make_plan(handler)
    rows_are_needed = plan.keyed or plan.prebatched or plan.preprocess or plan.postprocess
    if rows_are_needed or plan.batching.element_size_fn or plan.batching.length_fn:
        return False
    answers_alike = getattr(plan.handler, "columns_equal_rows", None)
    return answers_alike is not None and _columns_match_rows(type(plan.handler)) and bool(answers_alike())


def fields_of(prediction: Any) -> dict[str, Any]:
    """The columns that a prediction adds to its row."""
    if type(prediction) in _PLAIN:
        return {"prediction": prediction}
    if not (hasattr(prediction, "inference") and hasattr(prediction, "example")):  # Headrace's or Beam's result
        return {"prediction": prediction}
    model_id = getattr(prediction, "model_id", None)
    answer = {"prediction": prediction.inference}
    return answer if model_id is None else {**answer, "model_id": model_id}


def block_row_of(element: Any) -> BlockRow:
    """The row in a dead letter's element, which is a row, or a pair or batch that begins with one."""
    while type(element) is not BlockRow:
        if isinstance(element, str | bytes) or not hasattr(element, "__getitem__"):
            raise TypeError(f"a function of the handler has put {element!r:.100} in the place of its row.")
        element = element[0]
    return element


def _columns_match_rows(cls: type) -> bool:
    """Whether no subclass overrides how rows are predicted or made into examples without doing so for columns."""
    of_columns, *of_rows = (_depth(cls, method) for method in ("run_columns", "run_inference", "example_from_row"))
    return of_columns <= min(of_rows)


def _depth(cls: type, method: str) -> int:
    return next((depth for depth, base in enumerate(cls.__mro__) if method in vars(base)), len(cls.__mro__))


class ExampleOfRow:
    """Row -> (row, example), or (row, (key, example)) for a keyed handler."""

    def __init__(
        self, examples: Examples, from_row: Callable[[Mapping[str, Any]], Any] | None, reserved: Collection[str] = ()
    ) -> None:
        self._reserved = tuple(reserved)
        self._columns = examples.columns
        if self._columns is None and from_row:
            self._columns = examples.all_columns
        self._bare = from_row is None and len(examples.columns or ()) == 1
        self._from_row = from_row
        self._key = examples.key

    def __call__(self, element: BlockRow) -> tuple[Any, Any]:
        """The row with its example.

        Raises:
            Exception: the example cannot be made.
        """
        row = element.row
        if isinstance(row, BrokenLine):
            raise row.error
        if not row.keys().isdisjoint(self._reserved):
            self.refuse_reserved(row)
        try:
            example = self._chosen(row)
            key = None if self._key is None else row[self._key]
        except KeyError as error:
            raise LookupError(f"the row has no column {error}") from None
        if self._from_row:
            example = self._from_row(example)
        return (element, example) if self._key is None else (element, (key, example))

    def refuse_reserved(self, columns: Collection[str]) -> None:
        """Raises ValueError if one of the columns is reserved."""
        for name in self._reserved:
            if name in columns:
                raise ValueError(
                    f"the row has a column {name!r} of its own, which the prediction's would replace in the output; "
                    "name the columns to keep with --keep."
                )

    def _chosen(self, row: Row) -> Any:
        if self._columns is None:
            return dict(row)  # the handler may change it, and the output is to have it as it was read
        return row[self._columns[0]] if self._bare else {name: row[name] for name in self._columns}


class _OnValue:
    """Applies a function of a value to (row, value)."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, pair: tuple[Any, Any]) -> Any:
        value = self._function(pair[1])
        return SKIP if value is SKIP else (pair[0], value)


class _OnExample:
    """Applies a function of an example to (row, example)."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, pair: tuple[Any, Any]) -> Any:
        return self._function(pair[1])


class _OfKeyedExample(_OnExample):
    """Applies a function of (key, example) to ((row, key), example)."""

    def __call__(self, pair: tuple[Any, Any]) -> Any:
        return self._function((pair[0][1], pair[1]))


class _OverRows(KeyedModelHandler[Any, Any, Any, Any]):
    """A KeyedModelHandler whose keys are rows, which the model does not see."""

    def get_num_bytes(self, batch: Sequence[tuple[Any, Any]]) -> int:
        model: Any = next(iter(self.cohorts.values()), self.unkeyed)
        return int(model.get_num_bytes([example for _, example in batch]))


class _ByColumn(_OverRows):
    """A KeyedModelHandler whose keys are (row, key)."""

    def cohort(self, key: Any) -> Any:
        return super().cohort(key[1])


def _by_column(handler: KeyedModelHandler[Any, Any, Any, Any]) -> KeyedModelHandler[Any, Any, Any, Any]:
    if handler.unkeyed is not None:
        return _OverRows(handler.unkeyed)
    return _ByColumn(mappings_of(handler.cohort_of, handler.cohorts), handler.max_models)


def _key_to_row(pair: tuple[Any, tuple[Any, Any]]) -> tuple[tuple[Any, Any], Any]:
    row, (key, example) = pair
    return (row, key), example


def _key_to_value(pair: tuple[tuple[Any, Any], Any]) -> tuple[Any, tuple[Any, Any]]:
    (row, key), prediction = pair
    return row, (key, prediction)


def _without_key(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """Drops the key that postprocessing left in a (key, prediction) pair: it is in the row already."""
    row, value = pair
    return (row, value[1]) if type(value) is tuple and len(value) == 2 else pair


def _with_an_end(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    value = pair[1]
    return (pair[0], Endless()) if type(value) in (dict, list, tuple) and is_endless(value) else pair


def _refuse_unfit(handler: Any) -> None:
    methods: Sequence[str] = ("load_model", "run_inference", "get_preprocess_fns", "batch_elements_kwargs")
    if isinstance(handler, type) or not all(hasattr(handler, method) for method in methods):
        raise ConfigurationError(
            f"the factory made {handler!r}, which is no model handler; derive it from headrace.ModelHandler."
        )
    if handler.should_skip_batching():
        raise ConfigurationError(
            f"{type(handler).__qualname__} takes batches for its elements (with_no_batching), but rows come one by "
            "one; leave with_no_batching out, and set --max-batch-size 1 if the model takes one example at a time."
        )


def _refuse_wrong_key(handler: Any, key: str | None, *, keyed: bool, plainly: bool) -> None:
    name = type(handler).__qualname__
    if keyed and key is None:
        raise ConfigurationError(f"{name} takes keys; name their column with --key.")
    if not keyed and key is not None:
        raise ConfigurationError(f"{name} takes no keys; leave --key out.")
    if keyed and not plainly:
        raise ConfigurationError(f"{name} changes KeyedModelHandler, which rows cannot be given to; run it in Python.")
