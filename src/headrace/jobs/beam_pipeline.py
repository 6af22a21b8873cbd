"""Runs a job as a Beam pipeline, with Beam's workers in this process or on any runner.

Reading, inference and writing are one ParDo: nothing is shuffled, and memory holds one batch however many rows there
are. Each bundle writes its own parts; the last step marks in their folder that all bundles are done.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from headrace.beam.dofn import SessionDoFn, bound_to
from headrace.beam.results import totals_of
from headrace.core.errors import ConfigurationError
from headrace.core.spelling import nearest
from headrace.jobs import storage
from headrace.jobs.files import Part, Source
from headrace.jobs.job import Job
from headrace.jobs.parts import leave_mark
from headrace.jobs.splits import Splits
from headrace.jobs.steps import RunSteps, SourceBundle
from headrace.metrics.totals import Totals
from headrace.runtime.spec import SessionSpec

_UNKNOWN_WORKERS = 16
"""For how many workers files are cut: engines do not say how many they will have."""
_EMBEDDED = (None, "FnApiRunner")
"""The runners in this process."""


class BeamPipeline:
    """A job as a pipeline: one worker reads its files in order, several read parts of them.

    Raises:
        ConfigurationError: the handler or one of its options is wrong.
        Exception: the runner refuses the pipeline.
    """

    def __init__(self, job: Job, steps: RunSteps) -> None:
        has_many = _has_many_workers(job)
        found = Splits(job.sources, _UNKNOWN_WORKERS) if has_many else enumerate(job.sources)
        sources = [(index, *source[:-1], source.part and tuple(source.part)) for index, source in found]
        runner = FnApiRunner() if job.runner in _EMBEDDED else job.runner
        self._pipeline = beam.Pipeline(runner, _options_of(job))
        self._result: Any = None
        self._folder, self._mark = steps.folder, storage.join(steps.folder, f"{uuid.uuid4().hex}.done")
        spec = bound_to(self._pipeline, steps.spec)
        _ = (
            self._pipeline
            | "Files" >> beam.Create(sources, reshuffle=has_many)
            | "Run" >> beam.ParDo(_RunSources(steps, spec)).with_resource_hints(**spec.resource_hints)
            | "Cut" >> beam.CombineGlobally(any)
            | "Done" >> beam.Map(_end, self._folder, self._mark)
        )

    def execute(self) -> Totals:
        """Runs the pipeline to the end; returns its totals from Beam's metrics.

        Raises:
            Exception: the pipeline failed, or the runner has not run it.
        """
        self._result = self._pipeline.run()
        state = self._result.wait_until_finish()
        if state in (PipelineState.FAILED, PipelineState.CANCELLED):
            raise RuntimeError(f"the runner ended the pipeline as {state}")
        if not storage.exists(self._mark):
            raise RuntimeError(
                f"the runner ended the pipeline, but its last step has left no mark in {self._folder}: it did not run, "
                "or --output is in no place that the runner's workers share with this process."
            )
        return totals_of(self._result)

    def cancel(self) -> None:
        """Asks the runner to end the pipeline soon."""
        if self._result is not None and hasattr(self._result, "cancel"):
            self._result.cancel()


class _RunSources(SessionDoFn):
    """Runs (index, source) tuples; what a bundle has written that the runner repeats counts once.

    A bundle emits whether it left out rows, since the first all failed; the runner drops what one that failed emitted.
    """

    def __init__(self, steps: RunSteps, spec: SessionSpec) -> None:
        super().__init__(spec)
        self._steps = steps

    def start_bundle(self) -> None:
        """Starts the bundle's parts."""
        self._sources = SourceBundle(self._steps, self._new_bundle())

    def process(self, source: tuple[Any, ...]) -> None:
        """Runs the rows of one source, or of a part of it."""
        index, *fields, part = source
        for _ in self._sources.batches([(index, Source(*fields)._replace(part=Part(*part) if part else None))]):
            pass

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Runs what still waits, and closes the parts."""
        # Emitted from finish_bundle, a value needs an explicit window and timestamp.
        yield WindowedValue(self._sources.finish(), MIN_TIMESTAMP, [GlobalWindow()])

    def teardown(self) -> None:
        """Keeps the durable rows of a bundle that failed, and releases the model."""
        self._steps.writer.abandon()
        super().teardown()


def runs_elsewhere(job: Job) -> bool:
    """Whether processes other than this one, or several threads, read the sources."""
    return _has_many_workers(job) or _options_of(job).view_as(DirectOptions).direct_running_mode == "multi_processing"


def _has_many_workers(job: Job) -> bool:
    return job.runner not in _EMBEDDED or _options_of(job).view_as(DirectOptions).direct_num_workers != 1


def _options_of(job: Job) -> PipelineOptions:
    quiet = ["--default_sdk_harness_log_level=WARNING"] if job.runner in _EMBEDDED else []
    return PipelineOptions(["--pickle_library=cloudpickle", *quiet, *job.options])  # as Beam since 2.65


def take_options(arguments: Sequence[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """Passes options to Beam's filesystems; returns the remaining arguments, which are file names.

    Args:
        arguments: file names and options.
        known: options that are not Beam's, one of which an unknown one may be meant to be.

    Raises:
        ConfigurationError: Beam does not know an option, or refuses its value.
    """
    parsers: list[Any] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    parser = parsers[0]
    parser.error = _raise_configuration_error
    rest = parser.parse_known_args(list(arguments))[1]
    for argument in rest:
        if argument.startswith("-") and argument != "-":
            name = argument.partition("=")[0]
            others = {one.lstrip("-"): one for one in (*known, *parser._option_string_actions)}
            meant = nearest(name.lstrip("-"), others)
            end = f"; did you mean {others[meant]!r}?" if meant else "."
            raise ConfigurationError(f"neither headrace nor Beam has an option {name}{end}")
    FileSystems.set_options(PipelineOptions(list(arguments)))
    return tuple(rest)


def _raise_configuration_error(message: str) -> NoReturn:
    raise ConfigurationError(f"{message}.")


def _end(is_cut: bool, folder: str, mark: str) -> None:
    if is_cut:
        leave_mark(folder)
    storage.create(mark).close()
