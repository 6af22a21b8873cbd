"""Next steps that take batches (``process_batch``, ``to_dataframe``): Beam would lose the end of each bundle.

Beam's worker collects elements for such a step, and hands over what it has collected before the step before it finishes
its bundle, not after. RunInference gives its last outcomes as its bundle finishes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.typehints.row_type import RowTypeConstraint

from headrace.core.errors import ConfigurationError
from headrace.core.result import PredictionResult


class Unchanged(beam.DoFn):
    """Gives each element as it came."""

    def process(self, element: Any) -> Iterable[Any]:
        """Takes an element."""
        return (element,)


class LastInBundle(beam.ParDo):
    """A ParDo that gives elements as its bundle finishes; refuses to run where Beam would lose them."""

    def default_label(self) -> str:
        """That of any ParDo: the labels of steps are public."""
        return f"ParDo({self.fn.default_label()})"

    def to_runner_api_parameter(self, context: Any, **kwargs: Any) -> Any:
        """Beam's own, called when the pipeline runs: by now everything that consumes the outputs is known."""
        for pcoll in (kwargs.get("named_inputs") or {}).values():
            pcoll.pipeline.visit(_BatchConsumers(self.fn))
        return super().to_runner_api_parameter(context, **kwargs)


class _BatchConsumers(PipelineVisitor):
    """Refuses steps that take batches of what a DoFn gives."""

    def __init__(self, dofn: beam.DoFn) -> None:
        self._dofn = dofn

    def visit_transform(self, applied: AppliedPTransform) -> None:
        """Looks at a step."""
        takes_batches = getattr(getattr(applied.transform, "fn", None), "_process_batch_defined", False)
        if takes_batches and any(_dofn_behind(pcoll) is self._dofn for pcoll in applied.main_inputs.values()):
            raise ConfigurationError(
                f"{applied.full_label} takes batches right after RunInference, and Beam would lose predictions: put a "
                "step between them, such as beam.Map(lambda value: value), or make rows in a postprocessing function."
            )


def _dofn_behind(pcoll: beam.PCollection) -> Any:
    transform = getattr(pcoll.producer, "transform", None)
    return getattr(getattr(transform, "_do_transform", transform), "fn", None)


def for_batch_consumers(values: beam.PCollection) -> beam.PCollection:
    """The values; of elements that are likely to be made a data frame, after one more step, which costs little."""
    if not _are_rows(values.element_type):
        return values
    rows = values | "Rows" >> beam.ParDo(Unchanged())
    rows.element_type = values.element_type
    return rows


def _are_rows(element_type: Any) -> bool:
    """Whether elements have a schema that is more than a PredictionResult's."""
    if isinstance(element_type, RowTypeConstraint):
        return True
    try:
        if issubclass(element_type, PredictionResult):
            return False
        return RowTypeConstraint.from_user_type(element_type) is not None
    except Exception:  # no class; or a named tuple that Beam finds no schema for, each time in another way
        return False
