"""Runs a pipeline with a RunInference on an engine, looks at what came out, and at who did what."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import stopwatch
from apache_beam.options.pipeline_options import PipelineOptions
from flink import Cluster, lose
from job_server import Engine, worker_processes
from members import members, wait_until
from recording import RECORDS, Process, read, table

PARTS = 24
"""In how many parts the rows are spread over the cluster: each is a bundle or more."""
_PATIENCE_SECS = 600.0
_DO_FNS = {
    "headrace": "headrace.beam.dofn:InferenceDoFn",
    "beam": "apache_beam.ml.inference.base:_RunInferenceDoFn",
}


@dataclass(frozen=True)
class Job:
    """A pipeline, and what must come out of it."""

    title: str
    side: str
    """``headrace`` or ``beam``."""
    rows: Callable[..., Iterable[Any]]
    """``rows(part, parts=n)`` makes the elements of one part of n; called by the workers. An element is an array whose
    first number says which it is, or a key and such an array."""
    infer: Callable[[], Any]
    """Makes the RunInference; applied to elements, it gives results, and dead letters if it handles exceptions."""
    label: Callable[[Any], int]
    """Of what the model says."""
    expected: Mapping[int, int]
    """The label of each number."""
    letters: frozenset[int] = frozenset()
    """The numbers of those that must become dead letters."""


@dataclass
class Report:
    """What became of a job."""

    job: Job
    seconds: float
    predictions: list[tuple[int, int]]
    """Of the first inference."""
    again: list[tuple[int, int]]
    """Of the second."""
    letters: list[int]
    processes: list[Process]
    killed: str = ""
    failed: str = ""
    """Why the engine gave it up, if it did."""
    left: dict[float, int] = field(default_factory=dict)
    """Seconds after the end of the job, and how many processes beside the cluster's own there were."""

    @property
    def problems(self) -> list[str]:
        """What is not as it must be; empty: all is."""
        got = dict(self.predictions)
        wrong = [number for number, value in self.job.expected.items() if number in got and got[number] != value]
        facts = {
            "predictions are missing": len(self.job.expected.keys() - got.keys()),
            "predictions are wrong": len(wrong),
            "predictions differ the second time": len(set(self.predictions) ^ set(self.again)),
            "predictions came out more than once": len(self.predictions) - len(got),
            "predictions nobody asked for": len(got.keys() - self.job.expected.keys()),
            "dead letters are missing": len(self.job.letters - set(self.letters)),
            "dead letters too many": len(self.letters) - len(self.job.letters & set(self.letters)),
        }
        found = [f"{count} {what}" for what, count in facts.items() if count]
        return [f"the job has failed ({self.failed})", *found] if self.failed else found

    @property
    def loads(self) -> int:
        """How often the model was loaded, in all processes together."""
        return sum(process.loads for process in self.processes)

    def __str__(self) -> str:
        workers = sum(bool(process.setups) for process in self.processes)
        result = "; ".join(self.problems) or "all results right"
        lines = [
            f"## {self.job.title}, {self.job.side}",
            table(self.processes),
            f"{self.seconds:.1f} s, {workers} worker processes with a model, {self.loads} loads; {result}"
            f" ({len(self.predictions)} predictions, {len(self.letters)} dead letters){self.killed}.",
        ]
        if self.left:
            lines.append(", ".join(f"{count} left after {secs:.0f} s" for secs, count in self.left.items()))
        return "\n\n".join(lines)


def run(engine: Engine, job: Job, *, kill: str | None = None, workers: int = 2) -> Report:
    """Submits a job and waits for it.

    Args:
        engine: up and running.
        job: what to run.
        kill: on a Flink cluster, the task manager to kill once a third of the elements is through; a new one takes
            its place.
        workers: worker processes that each process of the engine has at once; each takes seconds to start.
    """
    with tempfile.TemporaryDirectory(prefix="job-") as name:
        folder = Path(name)
        records = folder / "records"
        records.mkdir()
        variables = {RECORDS: str(records), stopwatch.VARIABLE: _DO_FNS[job.side]}
        options = [*engine.pipeline_options(**variables), worker_processes(workers), "--beam_plugins=stopwatch"]
        pipeline = beam.Pipeline(options=PipelineOptions(options))
        _build(pipeline, job, folder)
        began = time.monotonic()
        result = pipeline.run()
        failed = ""
        with ThreadPoolExecutor(1) as killer:
            killed = killer.submit(_kill, engine, kill, records, len(job.expected) // 3) if kill else None
            try:
                result.wait_until_finish()
            except RuntimeError as error:  # how Beam says that it has failed
                failed = str(error).splitlines()[0]
            except BaseException:
                with contextlib.suppress(Exception):  # it may be over
                    result.cancel()
                raise
            seconds = time.monotonic() - began
        if killed is not None:
            killed.result()
        return Report(
            job,
            seconds,
            *([(number, label) for number, label in _read(folder, title)] for title in ("first", "second")),
            _read(folder, "letters"),
            read(records),
            f"; {kill} was killed on the way" if kill else "",
            failed,
        )


def look_after(cluster: Cluster, report: Report, secs: float) -> None:
    """Waits until nothing is left but the cluster itself, at most so long; the report says how long that took."""
    began = time.monotonic()

    def others() -> int:
        now = Cluster.read(cluster.name)  # a task manager may be another one's successor
        return len(set(members(cluster.mark)) - set(now.pids.values() if now else ()))

    report.left[0.0] = others()
    wait_until(lambda: others() == 0, secs)
    report.left[time.monotonic() - began] = others()


def _build(pipeline: beam.Pipeline, job: Job, folder: Path) -> None:
    """Two inferences with a GroupByKey between them: worker processes come and go."""
    elements = (
        pipeline
        | "Parts" >> beam.Create(range(PARTS))
        | "Spread" >> beam.Reshuffle()
        | "Rows" >> beam.FlatMap(partial(job.rows, parts=PARTS))
    )
    first, letters = _both(elements | "Predict" >> job.infer())
    grouped = first | "By label" >> beam.Map(_with_label, job.label) | "Group" >> beam.GroupByKey()
    second, _ = _both(grouped | "Apart" >> beam.FlatMap(_elements) | "Predict again" >> job.infer())
    outcomes = [
        first | "First" >> beam.Map(_outcome, "first", job.label),
        second | "Second" >> beam.Map(_outcome, "second", job.label),
    ]
    if letters is not None:
        outcomes.append(letters.failed_inferences | "Letters" >> beam.FlatMap(_numbers))
    _ = (
        outcomes
        | beam.Flatten()
        | "Together" >> beam.GroupByKey()
        | "Save" >> beam.Map(partial(_save, folder=str(folder)))
    )


def _read(folder: Path, title: str) -> list[Any]:
    path = folder / f"{title}.json"
    return json.loads(path.read_text()) if path.exists() else []


def _both(applied: Any) -> Any:
    return applied if isinstance(applied, tuple) else (applied, None)


def _with_label(result: Any, label: Callable[[Any], int]) -> tuple[int, Any]:
    key, value = result if isinstance(result, tuple) and len(result) == 2 else (None, result)
    return label(value.inference), value.example if key is None else (key, value.example)


def _elements(group: tuple[int, Iterable[Any]]) -> Iterable[Any]:
    return group[1]


def _outcome(result: Any, title: str, label: Callable[[Any], int]) -> tuple[str, tuple[int, int]]:
    said, element = _with_label(result, label)
    return title, (_number(element), said)


def _number(element: Any) -> int:
    return int((element[1] if isinstance(element, tuple) else element)[0])


def _numbers(letter: tuple[Any, Any]) -> Iterator[tuple[str, int]]:
    return (("letters", _number(element)) for element in letter[0])


def _save(group: tuple[str, Iterable[Any]], *, folder: str) -> None:
    """Writes the file atomically: a process that is killed meanwhile leaves nothing by that name."""
    title, values = group
    scratch = Path(folder, f"{title}.{os.getpid()}")
    scratch.write_text(json.dumps(list(values)))
    scratch.rename(Path(folder, f"{title}.json"))


def _kill(cluster: Cluster, task_manager: str, records: Path, third: int) -> None:
    """SIGKILL to the task manager as the kernel does it: once so many elements are through, some of them there."""

    def is_time() -> bool:
        processes = read(records)
        its_own = sum(process.elements for process in processes if process.task_manager == task_manager)
        return its_own > 0 and sum(process.elements for process in processes) >= third

    wait_until(is_time, _PATIENCE_SECS)
    lose(cluster, task_manager)
