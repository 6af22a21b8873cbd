"""Whether elements keep their timestamps; a fact, not a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import ModelHandler, PredictionResult
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms import window

from headrace.beam import RunInference

TITLE = "Elements whose prediction has the element's own timestamp"

_COUNT = 100

_WINDOWS: dict[str, Callable[[], window.WindowFn]] = {
    "global windows": window.GlobalWindows,
    "fixed windows of 60 s": lambda: window.FixedWindows(60),
    "sliding windows of 60 s every 30 s": lambda: window.SlidingWindows(60, 30),
}

_seen: list[tuple[int, float]] = []


class _Echo(ModelHandler[int, PredictionResult, None]):
    def load_model(self) -> None:
        return None

    def run_inference(
        self, batch: Sequence[int], model: None, inference_args: dict[str, Any] | None = None
    ) -> Iterator[PredictionResult]:
        return map(PredictionResult, batch, batch)


def facts(_: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, str]]:  # noqa: ARG001 - always the same
    """One row for each kind of windows."""
    for name, windows in _WINDOWS.items():
        yield {
            "windowing": name,
            "Headrace": count_kept(RunInference, windows()),
            "Beam": count_kept(BeamRunInference, windows()),
        }


def count_kept(transform: Callable[[Any], beam.PTransform], windows: window.WindowFn) -> str:
    """How many of the predictions (an element in two windows has one in each) are at their element's second."""
    _seen.clear()
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | beam.Create(range(_COUNT))
            | beam.Map(lambda second: window.TimestampedValue(second, second))
            | beam.WindowInto(windows)
            | transform(_Echo())
            | beam.Map(_note)
        )
    kept = sum(second == timestamp for second, timestamp in _seen)
    return f"{kept} of {len(_seen)}"


def _note(
    result: PredictionResult,
    timestamp: Any = beam.DoFn.TimestampParam,
    _: Any = beam.DoFn.WindowParam,  # asked for, so that Beam comes once for each window
) -> None:
    _seen.append((result.example, timestamp.micros / 1e6))
