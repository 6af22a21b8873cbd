"""What a handler may return for a batch: a list of predictions, with SKIP for each example that gets none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import GeneratorType
from typing import Any, Final

from headrace.core.errors import PredictionCountError, as_type_name

_RULE = (
    "it must return one prediction for each example, in their order, and headrace.SKIP for one that has none. "
    "`headrace.core.conversion.to_results(batch, outputs)` makes such a list of the model's array, or dict of arrays; "
    "a model that takes one example at a time needs max_batch_size=1."
)
_LISTS = {list, tuple, map, GeneratorType}
"""The types of most answers; answers of other types are inspected."""
_SHOWN = 5
"""How many keys of a mapping an error message lists."""


class Skip:
    """The class of ``headrace.SKIP``, its only instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "headrace.SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP: Final = Skip()
"""What a handler's ``run_inference`` puts in the place of a prediction, and what a preprocessing or postprocessing
function returns, for an element that is to have no output. It is no failure, and is counted."""

_inference = attrgetter("inference")


class SomeSkipped(list[Any]):
    """Predictions that contain at least one ``SKIP``."""


def mark_skips(predictions: list[Any]) -> list[Any]:
    """Wraps predictions as ``SomeSkipped`` if any is ``SKIP``, or a Headrace or Beam result whose inference is."""
    kinds: set[Any] = set(map(type, predictions))
    results = set(filter(_is_result, kinds))
    if Skip not in kinds and not results:
        return predictions
    if results == kinds and Skip not in set(map(type, map(_inference, predictions))):  # four times as fast as below
        return predictions
    plain = [SKIP if type(one) in results and one.inference is SKIP else one for one in predictions]
    return SomeSkipped(plain) if any(one is SKIP for one in plain) else predictions


def with_model_id(predictions: list[Any], model_id: str | None) -> list[Any]:
    """Predictions with this ``model_id``, where they are Headrace's or Beam's results without one, maybe with a key."""
    kinds: set[Any] = set(map(type, predictions))
    if tuple not in kinds and not any(map(_is_result, kinds)):
        return predictions
    return [_with_model_id(one, model_id) for one in predictions]


def _with_model_id(prediction: Any, model_id: str | None) -> Any:
    kind: Any = type(prediction)
    if kind is tuple and len(prediction) == 2:
        return prediction[0], _with_model_id(prediction[1], model_id)
    is_anonymous = _is_result(kind) and getattr(prediction, "model_id", model_id) is None
    return prediction._replace(model_id=model_id) if is_anonymous else prediction


@lru_cache(maxsize=64)
def _is_result(kind: Any) -> bool:
    """Whether it is a class of results, Headrace's or Beam's."""
    return issubclass(kind, tuple) and hasattr(kind, "inference")


def predictions_of(answer: Any, caller: object, examples: int | None = None) -> list[Any]:
    """The predictions in an answer of a handler, or of a function that a text names; consumes a lazy one.

    The type is checked before the length: a dict of one array would pass for the predictions of a batch of one.

    Raises:
        PredictionCountError: the answer is not a list with one prediction for each of the ``examples``.
        Exception: whatever a lazy answer raises.
    """
    if type(answer) not in _LISTS and (found := _no_list(answer)) is not None:
        raise PredictionCountError(f"{_described(caller, examples)} returned {found}; {_RULE}")
    predictions = list(answer)
    if examples is not None and len(predictions) != examples:
        raise wrong_count(caller, examples, len(predictions))
    return predictions


def predictions_for(handler: Any, examples: Sequence[Any], model: Any, args: dict[str, Any] | None) -> list[Any]:
    """One prediction of the handler's for each example: to pair others with keys would lose some."""
    return predictions_of(handler.run_inference(examples, model, args), handler, len(examples))


def wrong_count(caller: object, examples: int, found: int) -> PredictionCountError:
    """The error for too few or too many predictions."""
    return PredictionCountError(f"{_described(caller, examples)} returned {counted(found, 'prediction')}; {_RULE}")


def no_columns(caller: object, rows: int, answer: Any) -> PredictionCountError:
    """The error for an answer to columnar elements that has no rows, or columns of different lengths."""
    return PredictionCountError(
        f"{_described(caller, rows)} returned {answer!r:.200}; it must return an array, or a dict of arrays of one "
        "length, with one prediction for each row."
    )


def no_skips(caller: object) -> PredictionCountError:
    """The error for ``SKIP`` in an answer to columnar elements: the rows of a piece have one output together."""
    return PredictionCountError(
        f"{_described(caller, None)} returned headrace.SKIP for a row, and of columnar elements single rows cannot be "
        "skipped; leave BatchingConfig(columnar=True) out, or skip whole elements in preprocessing."
    )


def _described(caller: object, examples: int | None) -> str:
    name = caller if isinstance(caller, str) else f"{type(caller).__qualname__}.run_inference"
    return name if examples is None else f"{name} was given {counted(examples, 'example')} and"


def counted(number: int, noun: str) -> str:
    """So many of something."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def is_of_columns(answer: Any) -> bool:
    """Whether it is a data frame or table: iterating it yields columns."""
    return not callable(getattr(type(answer), "columns", len))  # a method, as in SQLAlchemy's results, does not count


def _no_list(answer: Any) -> str | None:
    """What an answer is that is no list of predictions, though it may be iterable; None: it is one."""
    cls = type(answer)
    name = f"a {as_type_name(cls)}"
    if answer is None:
        return "None"
    if isinstance(answer, Mapping):
        keys = [*map(repr, list(answer)[:_SHOWN]), *(["..."] if len(answer) > _SHOWN else [])]
        return f"{name} with the keys {', '.join(keys) or '(none)'}"
    if isinstance(answer, set | frozenset):
        return f"{name}, which has no order"
    # A named tuple (Python's or C's) or a pydantic model: iterating it yields fields.
    has_fields = any(hasattr(cls, attribute) for attribute in ("_fields", "n_fields", "model_fields"))
    if isinstance(answer, str | bytes | bytearray) or has_fields or is_of_columns(answer):
        return name
    is_iterable = hasattr(cls, "__iter__") or hasattr(cls, "__getitem__")
    return (
        None if is_iterable and getattr(answer, "ndim", None) != 0 else f"{name} without a dimension for the examples"
    )
