"""The ParDo's outputs: predictions, and for each operation its dead letters and its skipped elements.

Next steps that take batches (``process_batch``, ``to_dataframe``) would lose the end of each bundle: RunInference gives
its last outcomes as its bundle finishes, and Beam's worker has handed over what it collected for such a step before.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam import coders
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.pvalue import AsSideInput, TaggedOutput
from apache_beam.transforms.core import Windowing
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.windowed_value import WindowedValue

from headrace.core.errors import ConfigurationError
from headrace.core.result import ErrorRecord, Outcome, PredictionResult, Predictions, Skipped, Stage
from headrace.core.transferable import encodable_text, short_repr, transferable, with_parts
from headrace.runtime.plan import Plan

Output: TypeAlias = WindowedValue | TaggedOutput

_MAIN = "predictions"
COUNTS = "counts"
"""The output for ``beam.monitoring``: how many elements met which outcome."""


_CODER = coders.FastPrimitivesCoder()
"""Beam's coder for elements of unknown type, such as dead letters."""
_SURROGATE = b"\xed"
"""The first byte of a surrogate in a pickle; other characters begin with it, too."""
_IN_MEMORY = {"cpu", "meta"}
_PLAIN = {bool, int, float, str, bytes, type(None)}
_DEEPEST = 10
"""How many levels of containers are searched for arrays."""


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
    """For ``beam.monitoring``; empty unless the DoFn counts."""

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
        elements = (transferable(_in_memory(element), _is_encodable) for element in outcome.elements)
        values = map(WindowedValue.with_value, outcome.tags, elements)
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


class ParDoInto(LastInBundle):
    """A ParDo whose DoFn puts its outputs into windows itself; ``side`` inputs that are not given are None."""

    def __init__(self, dofn: beam.DoFn, windowing: Windowing, *side: AsSideInput | None) -> None:
        super().__init__(dofn, *side)
        self._windowing = windowing

    def get_windowing(self, inputs: Any) -> Windowing:
        """As given, whatever the inputs'."""
        return self._windowing


def encodable_record(record: tuple[Any, ErrorRecord]) -> tuple[Any, ErrorRecord]:
    """The dead letter itself if Beam can encode and decode it; else a copy with text for each part that it cannot.

    Arrays on an accelerator are copied to the CPU's memory: the reader may have no accelerator.
    """
    element, error = record
    parts = element, error.key, error.source, error.model_id
    in_memory = _in_memory(parts)
    if in_memory is parts and _is_encodable((record, error.key, error.model_id, *error[1:])):
        return record
    element, key, source, model_id = (transferable(part, _is_encodable) for part in in_memory)
    cls, described, lines = error
    cls = next(base for base in cls.__mro__ if _is_encodable(base))
    triple = cls, encodable_text(described), list(map(encodable_text, lines))
    return element, ErrorRecord(
        triple, attempts=error.attempts, model_id=model_id, key=key, source=source, wrapped=error.wrapped
    )


def _is_encodable(value: Any) -> bool:
    """Whether the coder can encode and decode a value. It pickles unknown types; to pickle the whole is faster."""
    try:
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        pickle.loads(content)
        if _SURROGATE in content:
            _CODER.encode(value)
    except Exception:
        return False
    return True


def _in_memory(value: Any, depth: int = _DEEPEST) -> Any:
    """The value; arrays on an accelerator, also in tuples, lists and dicts, are copied to the CPU's memory."""
    if type(value) in _PLAIN or "torch" not in sys.modules:
        return value
    if depth:
        copy = with_parts(value, lambda part: _in_memory(part, depth - 1))
        if copy is not value:
            return copy
    try:
        return value if value.device.type in _IN_MEMORY else value.cpu()
    except AttributeError:  # no tensor
        return value
    except Exception:  # the device is lost
        return short_repr(value)
