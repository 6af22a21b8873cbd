"""What comes out of the one ParDo, operation by operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import apache_beam as beam

from headrace.beam.dofn import dead_letter_tag, skipped_tag
from headrace.core.result import Stage
from headrace.runtime.plan import Plan

_MAIN = "predictions"

ByStage = Mapping[Stage, Sequence[beam.PCollection]]
"""For each stage a PCollection for each of its operations, in the order in which they run."""


class Outputs(NamedTuple):
    """PCollections."""

    values: beam.PCollection
    failed: ByStage
    """Dead letters."""
    skipped: ByStage
    """What the operations were given for the elements that they skipped."""

    def all_skipped(self) -> beam.PCollection:
        """All that was skipped."""
        return tuple(chain.from_iterable(self.skipped.values())) | "Skipped" >> beam.Flatten()


def outputs_of(pcoll: beam.PCollection, pardo: beam.ParDo, plan: Plan) -> Outputs:
    """Applies the ParDo of an ``InferenceDoFn`` over a session with that plan."""
    operations = list(_operations(plan))
    tags = [tag(*operation) for tag in (dead_letter_tag, skipped_tag) for operation in operations]
    found = pcoll | "BeamML_RunInference" >> pardo.with_outputs(*tags, main=_MAIN)
    failed, skipped = (
        {stage: [found[tag(*one)] for one in operations if one[0] is stage] for stage in Stage}
        for tag in (dead_letter_tag, skipped_tag)
    )
    return Outputs(found[_MAIN], failed, skipped)


def _operations(plan: Plan) -> Iterator[tuple[Stage, int]]:
    yield from ((Stage.PREPROCESSING, index) for index in range(len(plan.preprocess)))
    yield Stage.INFERENCE, 0
    yield from ((Stage.POSTPROCESSING, index) for index in range(len(plan.postprocess)))
