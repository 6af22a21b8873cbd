"""What RunInference returns besides its predictions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints.decorators import TypeCheckError


class RunInferenceDLQ(NamedTuple):
    """The dead letters of a RunInference, by the operation that failed.

    A record is ``(element, (error type, its repr, lines of the traceback))``. In ``failed_inferences`` the element is a
    batch of one, ``[element]``, unless elements are batches themselves.
    """

    failed_inferences: beam.PCollection
    failed_preprocessing: Sequence[beam.PCollection]
    """One for each preprocessing function, in the order in which they run."""
    failed_postprocessing: Sequence[beam.PCollection]
    """One for each postprocessing function, in the order in which they run."""


def dead_letters_of(
    inference: beam.PCollection, before: Sequence[beam.PCollection], after: Sequence[beam.PCollection]
) -> RunInferenceDLQ:
    """The dead letters of the stages; an instance of Beam's class, too, if Beam's module is loaded.

    ``MLTransform``, for one, takes no other.
    """
    theirs = sys.modules.get("apache_beam.ml.inference.base")
    cls = RunInferenceDLQ if theirs is None else _of_both(theirs.RunInferenceDLQ)
    return cls(inference, before, after)


@cache
def _of_both(theirs: type) -> type[RunInferenceDLQ]:
    attributes = {"__slots__": (), "__doc__": RunInferenceDLQ.__doc__, "__module__": __name__}
    return type(RunInferenceDLQ.__name__, (RunInferenceDLQ, theirs), attributes)


_OF_ITS_MEMBERS = frozenset(
    ("element_type", "is_bounded", "pipeline", "producer", "tag", "windowing", *RunInferenceDLQ._fields)
)


class SeveralResults(tuple[Any, ...]):
    """The results of a RunInference that has more than one; says so where it is used as a single PCollection."""

    __slots__ = ()

    def __or__(self, transform: Any) -> Any:
        """Applies a transform, which has to take them all."""
        try:
            return transform.__ror__(self)
        except TypeCheckError as error:
            if not str(error).startswith(f"Input type hint violation at {transform.label}"):
                raise
            raise TypeCheckError(self._cure) from error

    def __getattr__(self, name: str) -> Any:
        if name in _OF_ITS_MEMBERS:
            raise AttributeError(self._cure)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def _cure(self) -> str:
        return (
            f"RunInference has {len(self)} results here, since with_exception_handling or with_skipped_elements was "
            "called; take them apart: predictions, dead_letters = elements | "
            "RunInference(...).with_exception_handling()"
        )
