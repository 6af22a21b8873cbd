"""A pipeline around a handler that writes down what it does: ``python -m elsewhere.sharing PLAN``."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from elsewhere.noting import NOTES, NotingHandler, note

OUTPUTS = "outputs"
"""The file in the run's folder: lines of JSON."""

_FIRST = "first"
"""A link in the run's folder that names the process that came first."""

_WAIT_SECS = 120.0

_CHUNK = 16
"""Rows that are made together."""


@dataclass(frozen=True)
class Plan:
    """One run of a pipeline; it travels as JSON."""

    side: str
    """Whose ``RunInference``."""
    handler: str
    """``module:Class``, a ``NotingHandler``."""
    folder: str
    rows: int
    batch: int
    """Rows in a batch, fixed."""
    processes: int
    settings: dict[str, Any] = field(default_factory=dict)
    """The handler's own."""
    options: dict[str, Any] = field(default_factory=dict)
    """The handler's options about sharing."""
    one_after_another: bool = False
    """Whether the second process asks for the model when the first one has begun its first batch, which then waits for
    the second one before it goes on."""

    def make_handler(self) -> NotingHandler:
        """The handler, not yet loaded."""
        module, _, name = self.handler.partition(":")
        sizes = {"min_batch_size": self.batch, "max_batch_size": self.batch}
        return getattr(import_module(module), name)(self.folder, **self.settings, **self.options, **sizes)


class _Source(beam.DoFn):
    """Makes rows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._handler = plan.make_handler()
        self._made = 0

    def process(self, start: int) -> Iterator[tuple[int, Any]]:
        rows = self._handler.make_rows(start, min(start + _CHUNK, self._plan.rows))
        if self._plan.one_after_another and self._made == 1:
            yield next(rows)  # Beam lets a full batch go when the row after it has come
            self._meet()
        self._made += 1
        yield from rows

    def _meet(self) -> None:
        """The first process waits, its first rows given away, until another one has begun to compute, too."""
        folder = Path(self._plan.folder)
        if os.readlink(folder / _FIRST) == str(os.getpid()):
            _wait_until(lambda: _have_met((folder / NOTES).read_text()))


def _have_met(notes: str) -> bool:
    """Whether two processes compute; or, if they do not do it themselves, have asked for the model."""
    pairs = {tuple(line.split()[:2]) for line in notes.splitlines()}
    asked, computing = ({process for what, process in pairs if what == word} for word in ("request", "begun"))
    return len(asked) > 1 and (len(computing) > 1 or not computing <= asked)


class _Sink(beam.DoFn):
    """Writes what comes out. Fused with the transform, and set up just before it, which is when the process asks for
    its model: the handler's modules have been imported by then, since it came with this DoFn."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._outputs: list[tuple[int, float]] = []

    def setup(self) -> None:
        if self._plan.one_after_another:
            self._enter()
        note(self._plan.folder, "request")

    def process(self, output: tuple[int, float]) -> None:
        self._outputs.append(output)

    def finish_bundle(self) -> None:
        with Path(self._plan.folder, OUTPUTS).open("a") as file:
            file.write("".join(f"{json.dumps(output)}\n" for output in self._outputs))
        self._outputs = []

    def _enter(self) -> None:
        """All processes but the first wait until that one has begun its first batch."""
        folder = Path(self._plan.folder)
        try:
            (folder / _FIRST).symlink_to(str(os.getpid()))
        except FileExistsError:
            _wait_until(lambda: "begun" in (folder / NOTES).read_text())


def _wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _WAIT_SECS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("the other worker process does not come; has it been given nothing to do?")
        time.sleep(0.002)


def main(path: str) -> None:
    """Runs the pipeline."""
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    plan = Plan(**json.loads(Path(path).read_text(encoding="utf-8")))
    starts = range(0, plan.rows, _CHUNK)
    options = PipelineOptions(direct_num_workers=plan.processes, direct_running_mode="multi_processing")
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=options)
    _ = (
        pipeline
        | beam.Create(starts, reshuffle=False)
        | beam.Reshuffle()
        | beam.ParDo(_Source(plan))
        | _run_inference(plan.side)(plan.make_handler())
        | beam.ParDo(_Sink(plan))
    )
    note(plan.folder, "submitted")
    pipeline.run().wait_until_finish()
    note(plan.folder, "finished")


def _run_inference(side: str) -> Any:
    """Headrace's or Beam's; the import of the other one would only take time and memory."""
    if side == "Headrace":
        from headrace.beam import RunInference  # noqa: PLC0415

        return RunInference
    from apache_beam.ml.inference.base import RunInference as BeamRunInference  # noqa: PLC0415

    return BeamRunInference


if __name__ == "__main__":
    import_module("elsewhere.sharing").main(sys.argv[1])  # its classes travel by name, and that is not __main__
