"""Arguments of the model's call that only the running pipeline knows: ``inference_args`` as a side input."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import apache_beam as beam
import cloudpickle
from apache_beam.typehints.decorators import IOTypeHints
from apache_beam.utils.windowed_value import WindowedValue

from headrace.beam.dofn import WINDOWED, InferenceDoFn, Output, in_their_windows
from headrace.beam.refresh import ModelUpdates
from headrace.runtime.spec import SessionSpec


class ArgumentsDoFn(beam.DoFn):
    """Has another DoFn run what it is given, one for each value of the arguments, one after the other.

    The arguments are part of a session's spec: with others it is another session, and batches never mix them. In one
    process their models are the same.

    Args:
        spec: of the session, but for the arguments.
        make: makes the DoFn for a spec.
    """

    def __init__(self, spec: SessionSpec, make: Callable[[SessionSpec], InferenceDoFn]) -> None:
        self._spec = spec
        self._make = make
        self._arguments: Any = None
        self._branch = ""
        self._dofn: InferenceDoFn | None = None

    def start_bundle(self) -> None:
        """Begins anew."""
        self._is_open = False

    def process(
        self, element: Any, arguments: Any, windowed: WindowedValue = WINDOWED, told: ModelUpdates | None = None
    ) -> Iterable[Output]:
        """Takes one element, the arguments that its window has, and what is told of newer models, if they are told of.

        Emits what it completes.
        """
        before = [] if self._dofn is not None and arguments is self._arguments else self._see(arguments)
        dofn = self._dofn
        assert dofn is not None
        if not self._is_open:
            dofn.start_bundle()
            self._is_open = True
        given: tuple[Any, ...] = (element, windowed) if told is None else (element, windowed, told)
        outputs = dofn.process(*given)
        return chain(in_their_windows(before, windowed), outputs) if before else outputs

    def finish_bundle(self) -> Iterable[Output]:
        """Emits the rest."""
        return () if self._dofn is None or not self._is_open else self._dofn.finish_bundle()

    def default_type_hints(self) -> IOTypeHints:
        """None: the annotations here speak of windowed values, not of elements."""
        return IOTypeHints.empty()

    def teardown(self) -> None:
        """Lets go of the model."""
        self._leave()

    def _see(self, arguments: Any) -> list[Output]:
        """Where the arguments are other ones, what was taken with the last ones comes out first."""
        spec = _with(self._spec, arguments)  # whether they are is told by its name for them: arrays have no equality
        if self._dofn is None or spec.branch != self._branch:
            self._spec.plan.handler.validate_inference_args(arguments)
            outputs = list(self.finish_bundle())
            self._is_open = False
            if spec.isolated:  # one host at a time; elsewhere the model stays, since the next one asks for it first
                self._leave()
            dofn = self._make(spec)
            dofn.setup()
            self._leave()
            self._dofn, self._branch = dofn, spec.branch
        else:
            outputs = []
        self._arguments = arguments
        return outputs

    def _leave(self) -> None:
        dofn, self._dofn = self._dofn, None
        if dofn is not None:
            dofn.teardown()


def _with(spec: SessionSpec, arguments: Any) -> SessionSpec:
    """The spec of a session of its own for the arguments, over the same models."""
    digest = hashlib.sha256(cloudpickle.dumps(arguments)).hexdigest()[:16]
    return replace(spec, inference_args=arguments, branch=digest)
