"""The ParDo's outputs: predictions, and for each operation its dead letters and its skipped elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.pvalue import AsSideInput, TaggedOutput
from apache_beam.transforms.core import Windowing
from apache_beam.utils.windowed_value import WindowedValue

from headrace.beam.batch_consumers import LastInBundle
from headrace.beam.encodable import encodable_element, encodable_record
from headrace.core.result import Outcome, Predictions, Skipped, Stage
from headrace.runtime.plan import Plan

Output: TypeAlias = WindowedValue | TaggedOutput

_MAIN = "predictions"
COUNTS = "counts"
"""The output for ``beam.threshold``: how many elements met which outcome."""


@dataclass(frozen=True)
class Operation:
    """A preprocessing or postprocessing function, or inference."""

    stage: Stage
    index: int
    """Which operation of its stage, counted from 0 in the order in which they run."""

    @property
    def failed_tag(self) -> str:
        """The output with its dead letters."""
        return f"failed_{self.stage.value}_{self.index}"

    @property
    def skipped_tag(self) -> str:
        """The output with its input for each element that it skipped; need not be consumed."""
        return f"skipped_{self.stage.value}_{self.index}"


class Outputs(NamedTuple):
    """The PCollections that come out of the ParDo; by operation, in the order in which they run."""

    values: beam.PCollection
    failed: Mapping[Operation, beam.PCollection]
    """The dead letters."""
    skipped: Mapping[Operation, beam.PCollection]
    """The operation's input for each element that it skipped."""
    counts: beam.PCollection
    """For ``beam.threshold``; empty unless the DoFn counts."""

    def failed_in(self, stage: Stage) -> list[beam.PCollection]:
        """The dead letters of each operation of a stage."""
        return [pcoll for operation, pcoll in self.failed.items() if operation.stage is stage]


def operations_of(plan: Plan) -> list[Operation]:
    """A plan's operations, in the order in which they run."""
    return [
        *(Operation(Stage.PREPROCESSING, index) for index in range(len(plan.preprocess))),
        Operation(Stage.INFERENCE, 0),
        *(Operation(Stage.POSTPROCESSING, index) for index in range(len(plan.postprocess))),
    ]


def apply_inference(pcoll: beam.PCollection, pardo: beam.ParDo, plan: Plan) -> Outputs:
    """Applies the ParDo of an ``InferenceDoFn`` that runs ``plan``."""
    operations = operations_of(plan)
    tags = [*(one.failed_tag for one in operations), *(one.skipped_tag for one in operations)]
    found = pcoll | "BeamML_RunInference" >> pardo.with_outputs(*tags, COUNTS, main=_MAIN)
    return Outputs(
        found[_MAIN],
        {one: found[one.failed_tag] for one in operations},
        {one: found[one.skipped_tag] for one in operations},
        found[COUNTS],
    )


def outputs_of(outcome: Outcome) -> Iterable[Output]:
    """An outcome as values for Beam; each takes timestamp, windows and pane from the ``WindowedValue`` in its tag."""
    if isinstance(outcome, Predictions):
        return map(WindowedValue.with_value, outcome.tags, outcome.values)
    operation = Operation(outcome.stage, outcome.index)
    if isinstance(outcome, Skipped):
        values = map(WindowedValue.with_value, outcome.tags, map(encodable_element, outcome.elements))
        return (TaggedOutput(operation.skipped_tag, value) for value in values)
    return (TaggedOutput(operation.failed_tag, outcome.tag.with_value(encodable_record(outcome.record))),)


class UnmultipliedWindows(tuple):  # type: ignore[type-arg]
    """Windows that stay as they are when multiplied.

    Beam takes whatever ``process`` emits for an output of the current input, and multiplies its windows by the number
    of the input's. Ours belong to other elements and have their windows already.
    """

    __slots__ = ()

    def __mul__(self, _: Any) -> UnmultipliedWindows:
        return self


def keep_windows(outputs: Iterable[Output], current: WindowedValue) -> Iterable[Output]:
    """The outputs, in their own windows although ``process`` emits them for ``current``."""
    return outputs if len(current.windows) == 1 else map(_unmultiplied, outputs)


def _unmultiplied(output: Output) -> Output:
    windowed = output.value if isinstance(output, TaggedOutput) else output
    windowed.windows = UnmultipliedWindows(windowed.windows)
    return output


class ParDoInto(LastInBundle):
    """A ParDo whose DoFn puts its outputs into windows itself.

    Args:
        dofn: emits ``WindowedValue``.
        windowing: of the outputs.
        side: side inputs; None in place of one that is not given.
    """

    def __init__(self, dofn: beam.DoFn, windowing: Windowing, *side: AsSideInput | None) -> None:
        super().__init__(dofn, *side)
        self._windowing = windowing

    def get_windowing(self, inputs: Any) -> Windowing:
        """As given, whatever the inputs'."""
        return self._windowing
