"""The element types of what RunInference gives out: what Beam infers, else what the handler declares."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, get_origin

import apache_beam as beam
from apache_beam import typehints
from apache_beam.options.pipeline_options import TypeOptions
from apache_beam.typehints import TypeCheckError, native_type_compatibility
from apache_beam.typehints.typehints import (
    TupleConstraint,
    TypeConstraint,
    UnionConstraint,
    bind_type_variables,
    match_type_variables,
    normalize,
)

from headrace.beam.outputs import Operation, Outputs, operations_of
from headrace.core.answer import Skip
from headrace.core.declared_type import declared_prediction_type
from headrace.core.keyed import MaybeKeyedModelHandler
from headrace.core.result import ErrorRecord, PredictionResult, Stage
from headrace.runtime.plan import Plan

_ERROR = typehints.Tuple[type, str, typehints.List[str]]
_BEAMS_MODULE = "apache_beam.ml.inference.base"


_INFERENCE = Operation(Stage.INFERENCE, 0)


class ElementTypes(NamedTuple):
    """Beam's type hints for the elements of a RunInference."""

    inputs: Mapping[Operation, Any]
    """What each operation takes; inference an example, or a batch if elements are batches."""
    predictions: Any
    """With keys, if elements have keys."""
    values: Any
    """The predictions, postprocessed."""


class AnyEncoding(UnionConstraint):
    """One type, encoded as elements of unknown type are.

    An element may be a dead letter because it is not what its type says, and text stands in for what cannot be
    encoded: the type's own coder would fail. Where functions are checked against types it is the type itself.
    """

    def __init__(self, only: Any) -> None:
        super().__init__((only,))
        self._only = only

    def __repr__(self) -> str:
        return repr(self._only)

    def bind_type_variables(self, _: Any) -> AnyEncoding:
        """Itself; a union of one type would become that type."""
        return self


class ErrorEncoding(TupleConstraint):
    """The type of an ErrorRecord: Beam's triple, but its coder, unlike that of tuples, keeps what else is in it."""

    def __init__(self) -> None:
        super().__init__(_ERROR.tuple_types)


getattr(typehints.typehints, "_KNOWN_PRIMITIVE_TYPES", {})[ErrorRecord] = ErrorEncoding()
"""So that functions that are annotated with an ErrorRecord take one: Beam does not see that the class is a tuple's."""


def infer_element_types(plan: Plan, given: beam.PCollection, fallbacks: Sequence[Plan] = ()) -> ElementTypes:
    """The element types of a plan's inputs and outputs; pre- and postprocessing functions count as ``beam.Map`` does.

    Raises:
        TypeCheckError: a function is annotated for other elements than those that come to it. What the handler declares
            is not held against the first postprocessing function, since Beam does not know it.
    """
    inputs = dict.fromkeys(operations_of(plan), typehints.Any)
    if not given.pipeline.options.view_as(TypeOptions).pipeline_type_check:
        return ElementTypes(inputs, typehints.Any, typehints.Any)
    current = given.element_type or typehints.Any
    for index, function in enumerate(plan.preprocess):
        _refuse_mismatch(function, "preprocessing", current, given)
        inputs[Operation(Stage.PREPROCESSING, index)] = current
        current = _through(current, function)
    inputs[_INFERENCE] = current
    predictions = current = _prediction_type(plan, current)
    if fallbacks:
        others = (_type_from_fallback(one, inputs[_INFERENCE]) for one in fallbacks)
        predictions = current = typehints.Union[(predictions, *others)]
    inferred: Any = typehints.Any
    for index, function in enumerate(plan.postprocess):
        _refuse_mismatch(function, "postprocessing", inferred, given)
        inputs[Operation(Stage.POSTPROCESSING, index)] = current
        current, inferred = _through(current, function), _through(inferred, function)
    return ElementTypes(inputs, predictions, current)


def claim_element_types(outputs: Outputs, types: ElementTypes, plan: Plan) -> None:
    """Gives the outputs of a plan their element types.

    They are not the ParDo's type hints: with ``--runtime_type_check`` Beam compares the elements of every output with
    the hint of the first one.
    """
    outputs.values.element_type = types.values
    for operation, pcoll in outputs.failed.items():
        element = types.inputs[operation]
        if operation.stage is Stage.INFERENCE and not plan.has_rows_in_elements:
            element = typehints.List[element]
        pcoll.element_type = typehints.Tuple[AnyEncoding(element), ErrorEncoding()]


def skipped_type(types: ElementTypes) -> Any:
    """The type of elements skipped by any operation."""
    return AnyEncoding(typehints.Union[tuple(types.inputs.values())])


def _through(given: Any, function: Callable[[Any], Any]) -> Any:
    """What ``beam.Map(function)`` makes of elements of a type, as ``Pipeline.apply`` works it out; without ``SKIP``."""
    try:
        step = beam.Map(function)
        hints = step.get_type_hints()
        result = hints.simple_output_type(step.label)
        if not result:
            result = step.infer_output_type(given)
        elif hints.input_types and hints.input_types[0]:
            result = bind_type_variables(result, match_type_variables(hints.input_types[0][0], given))
    except Exception:  # a callable that Beam cannot analyse
        return typehints.Any
    return _without_skip(bind_type_variables(result, {"*": typehints.Any}))


def _refuse_mismatch(function: Callable[[Any], Any], kind: str, given: Any, pcoll: beam.PCollection) -> None:
    stand_in = beam.PCollection(pcoll.pipeline, element_type=given)
    stand_in.producer = pcoll.producer
    try:
        beam.Map(function).type_check_inputs(stand_in)
    except TypeCheckError as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise TypeCheckError(
            f"the {kind} function {name} of RunInference does not take elements of type {given}: change its "
            f"annotation, or say with .with_output_types(...) what the step before gives. {error}"
        ) from error
    except Exception:  # a callable that Beam cannot analyse
        return


def _without_skip(result: Any) -> Any:
    if isinstance(result, UnionConstraint) and result.contains_type(Skip):
        return typehints.Union[tuple(one for one in result.union_types if one is not Skip)]
    return typehints.Any if result is Skip else result


def _prediction_type(plan: Plan, example: Any) -> Any:
    """The type of predictions for elements of a type, paired with a key where they are; Any where only some may be."""
    if isinstance(plan.handler, MaybeKeyedModelHandler):
        return typehints.Any
    columnar = plan.batching.columnar
    each = [PredictionResult] if columnar else [declared_prediction_type(model) for model in plan.models.values()]
    prediction = typehints.Union[tuple(_without_skip(_as_hint(one)) for one in each)]
    if not plan.keyed:
        return prediction
    is_pair = isinstance(example, TupleConstraint) and len(example.tuple_types) == 2
    return typehints.Tuple[example.tuple_types[0] if is_pair else typehints.Any, prediction]


def _type_from_fallback(plan: Plan, example: Any) -> Any:
    """The type of a fallback's predictions, which its own functions may change."""
    prediction = _prediction_type(plan, reduce(_through, plan.preprocess, example))
    return reduce(_through, plan.postprocess, prediction)


def _as_hint(declared: Any) -> Any:
    """A type as Beam writes it; ``Any`` for what Beam does not know."""
    try:
        hint = normalize(native_type_compatibility.convert_to_beam_type(declared))
    except Exception:  # Beam refuses some types that it does not know, each in its own way
        return typehints.Any
    hint = get_origin(hint) or hint
    if not isinstance(hint, type | TypeConstraint):
        return typehints.Any
    hint = bind_type_variables(hint, {"*": typehints.Any})
    if _BEAMS_MODULE not in sys.modules:
        return hint
    from headrace.beam.beam_handlers import EitherResult  # noqa: PLC0415 - it imports Beam's module, which costs time

    # functions annotated with Headrace's PredictionResult take it, and those with Beam's, too
    return EitherResult if hint in EitherResult.__bases__ else hint
