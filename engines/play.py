"""Runs a stream on an engine and directs it: what happens next waits for what has come out, never for a time."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import stream
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState
from factor import RELEASED, Factor, save
from fetch import EngineError
from gated import END
from members import wait_until
from recording import RECORDS, read, table

from headrace.beam import RunInference

BATCH = 8
WAITS_SECS = 2
"""So long an element waits for others."""
_FACTORS = {"first.npy": 2, "slow.npy": 3}
_PATIENCE_SECS = 300.0
_SOME = 10
_MORE = 20


@dataclass(frozen=True)
class Engine:
    """Where a stream runs."""

    title: str
    options: Callable[..., list[str]]
    """``options(**environment)``: the arguments of a streaming pipeline."""
    cancel: Callable[[Any], None]
    """``cancel(result)``: ends a pipeline that has no end."""
    placement: str = "process"
    news: Callable[..., beam.PCollection] = stream.news
    """Makes the side input that tells of a newer model."""


@dataclass
class Report:
    """What became of a stream."""

    title: str
    engine: str
    problems: list[str]
    facts: list[str]
    processes: str
    """A table."""
    seconds: float

    def __str__(self) -> str:
        said = "; ".join(self.problems) or "all results right"
        facts = "".join(f" {fact}." for fact in self.facts)
        return f"## {self.title}, {self.engine}\n\n{self.processes}\n\n{self.seconds:.1f} s; {said}.{facts}"


class Play:
    """A stream that runs.

    Args:
        folder: of its files.
        result: of its pipeline.
    """

    def __init__(self, folder: Path, result: Any) -> None:
        self.folder = folder
        self.records = stream.Records(folder / "records")
        self.facts: list[str] = []
        self._result = result

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """Until the condition comes true; returns what it has said then, as it may be over soon.

        Raises:
            EngineError: the pipeline has failed, or it takes too long.
        """

        said = None

        def is_over() -> bool:
            nonlocal said
            said = condition()
            return bool(said) or PipelineState.is_terminal(self._result.state)

        wait_until(is_over, _PATIENCE_SECS)
        if not said:
            counts = {kind: len(self.records.of(kind)) for kind in ("sent", "said", "letter", "pane")}
            raise EngineError(f"this has not come: {what}; the job is {self._result.state}, with {counts}")
        return said

    def allow(self, name: str) -> None:
        """What waits for that file goes on."""
        (self.folder / name).touch()

    def count(self, model: str = "") -> int:
        """How many predictions there are, or those of one model."""
        return sum(line["model"].startswith(model) for line in self.records.of("said"))


def run(kind: str, engine: Engine, act: Callable[[Play], None]) -> Report:
    """Runs a stream.

    Args:
        kind: in ``refresh`` and ``watched``, a side input or a file announces a newer model; in ``late`` and
            ``arguments`` windows allow no lateness; in ``arguments`` each has its own arguments of the model's call.
        engine: where.
        act: directs it, once it has begun; afterwards the source ends.
    """
    with tempfile.TemporaryDirectory(prefix="stream-") as name:
        folder = Path(name)
        (folder / "records").mkdir()
        options = PipelineOptions(engine.options(**{RECORDS: str(folder / "records")}))
        pipeline = beam.Pipeline(options=options)
        lateness_secs = 0 if kind in {"late", "arguments"} else stream.LATENESS_SECS
        stream.build(pipeline, _infer(kind, pipeline, folder, engine), folder, lateness_secs)
        began = time.monotonic()
        result = pipeline.run()
        play = Play(folder, result)
        with _cancelled(engine, result):
            play.wait("the first predictions", lambda: play.count() >= _SOME)
            act(play)
            play.allow(END)
            wait_until(lambda: stream.all_grouped(play.records), _PATIENCE_SECS)  # if not, it is reported as a problem
        problems = stream.problems(play.records, _FACTORS, with_offsets=kind == "arguments")
        processes = table(read(folder / "records"))
        return Report(kind, engine.title, problems, play.facts, processes, time.monotonic() - began)


def _infer(kind: str, pipeline: beam.Pipeline, folder: Path, engine: Engine) -> Any:
    sizes = {"min_batch_size": BATCH, "max_batch_size": BATCH, "max_batch_duration_secs": WAITS_SECS}
    handler = Factor(save(folder / "first.npy", _FACTORS["first.npy"]), **sizes)
    more: dict[str, Any] = {}
    if kind == "refresh":
        path = save(folder / "slow.npy", _FACTORS["slow.npy"])
        more["model_metadata_pcoll"] = engine.news(pipeline, path, folder)
    if kind == "watched":
        more.update(watch_model_pattern=str(folder / "*.npy"), interval=1)
    if kind == "arguments":
        more["inference_args"] = stream.offsets(pipeline)
    return RunInference(handler, placement=engine.placement, **more).with_exception_handling()


@contextlib.contextmanager
def _cancelled(engine: Engine, result: Any) -> Iterator[None]:
    """Whatever has happened, it does not go on when we are done with it; some never end, as all on Flink."""
    try:
        yield
    finally:
        if not PipelineState.is_terminal(result.state):
            engine.cancel(result)


def windows(play: Play) -> None:
    """Elements come late: while the first window still takes them, and when it does no more."""
    play.wait("the first window", lambda: play.records.on_time(0))
    play.allow("late")
    play.wait("the late one", lambda: any(stream.LATE in pane["numbers"] for pane in play.records.of("pane")))
    play.allow(stream.ONWARD)
    last = stream.LATENESS_SECS + stream.WINDOW_SECS
    play.wait("the end of its lateness", lambda: play.records.on_time(last))
    play.allow("too late")
    play.wait("the one that is too late", lambda: stream.TOO_LATE in play.records.numbers("said"))


def late(play: Play) -> None:
    """An element comes when its window is over."""
    play.wait("the first window", lambda: play.records.on_time(0))
    play.allow("too late")
    play.wait("the one that is too late", lambda: stream.TOO_LATE in play.records.numbers("said"))


def refresh(play: Play, tell: Callable[[Play], None]) -> None:
    """A newer model comes; while it loads, which ends when we say so, the older one goes on.

    Args:
        play: the stream.
        tell: tells of the newer model.
    """
    play.allow(stream.ONWARD)
    tell(play)
    play.wait("the newer model's load", lambda: any(line["model"] == "slow.npy" for line in play.records.of("loading")))
    before = play.count()
    play.wait("predictions while it loads", lambda: play.count() >= before + _MORE)
    play.facts.append(f"{play.count() - before} predictions by the older model while the newer one loaded")
    play.allow(RELEASED)
    play.wait("the newer model's predictions", lambda: play.count("slow") >= _SOME)


def tell(play: Play) -> None:
    """By the side input."""
    play.allow(stream.NEWS)


def put(play: Play) -> None:
    """By a file."""
    save(play.folder / "slow.npy", _FACTORS["slow.npy"])


ACTS: dict[str, Callable[[Play], None]] = {
    "windows": windows,
    "late": late,
    "arguments": late,
    "refresh": lambda play: refresh(play, tell),
    "watched": lambda play: refresh(play, put),
}
"""What there is to show on every engine."""
