"""Whether elements become late by waiting, on a runner that holds the watermark for timers: Prism, Beam's Go runner."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import ModelHandler, PredictionResult
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.options.pipeline_options import PipelineOptions, PrismRunnerOptions, StandardOptions
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms import window

from headrace.beam import RunInference

TITLE = "Elements that wait for others, then are grouped in windows of 10 s in which nothing may be late (Prism)"

ABOUT = (
    "A stream of one-element bundles. Every 20 s elements come at 12, 3, 7 and 1 s, earlier ones after later ones; "
    "then the watermark goes to 18 s, beyond the first window's end, and the clock 1 s on. Elements wait until "
    "there are 7 (*count*), or for 2 s (*time*). What comes out is grouped in the windows with no lateness allowed:"
    " what is late is dropped there. Windows are set before `RunInference`, whose waiting then ends with them, or "
    "after it, where nothing but the hold on the watermark keeps elements from being late. Cells: elements in their"
    " own window, in another one, dropped."
)

PRISM = "HEADRACE_BENCHMARK_PRISM"
"""Environment variable: where the binary is; nothing is downloaded."""

_WINDOW_SECS = 10
_SPAN_SECS = 20
_WITHIN = (12, 3, 7, 1)
_WAYS = {"count": 7, "time": 1000}

_seen: list[tuple[int, float]] = []


class _Echo(ModelHandler[int, PredictionResult, None]):
    def __init__(self, batch_size: int) -> None:
        super().__init__(min_batch_size=batch_size, max_batch_size=batch_size, max_batch_duration_secs=2)

    def load_model(self) -> None:
        return None

    def run_inference(
        self, batch: Sequence[int], model: None, inference_args: dict[str, Any] | None = None
    ) -> Iterator[PredictionResult]:
        return map(PredictionResult, batch, batch)


def facts(_: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, str]]:  # noqa: ARG001 - no times
    """One row for each way to leave, and each place at which windows are set."""
    spans = 3 if quick else 25
    for way, batch_size in _WAYS.items():
        for windows in ("before", "after"):
            yield {
                "a batch leaves by": way,
                "windows are set": windows,
                "Headrace": _outcome(RunInference(_Echo(batch_size)), spans, before=windows == "before"),
                "Beam": _outcome(BeamRunInference(_Echo(batch_size)), spans, before=windows == "before"),
            }


def _outcome(transform: beam.PTransform, spans: int, *, before: bool) -> str:
    _seen.clear()
    options = PipelineOptions()
    options.view_as(StandardOptions).streaming = True
    options.view_as(PrismRunnerOptions).prism_location = os.environ[PRISM]
    windows = "Windows" >> beam.WindowInto(window.FixedWindows(_WINDOW_SECS))
    pipeline = beam.Pipeline(runner=PrismRunner(), options=options)
    elements = pipeline | _stream(spans)
    predictions = elements | windows | transform if before else elements | transform | windows
    pairs = predictions | "Key" >> beam.Map(_keyed)
    _ = pairs | beam.GroupByKey() | "Note" >> beam.Map(_note)
    result = pipeline.run()
    try:
        result.wait_until_finish()
    except RuntimeError as error:
        return f"the runner fails: {str(error).splitlines()[1]}"
    right = sum(start <= second < start + _WINDOW_SECS for second, start in _seen)
    dropped = spans * len(_WITHIN) - len({second for second, _ in _seen})
    return f"{right}, {len(_seen) - right}, {dropped}"


def _stream(spans: int) -> TestStream:
    """The coder is the one that Prism decodes rightly: integers alone become None."""
    stream = TestStream(coder=beam.coders.FastPrimitivesCoder()).advance_watermark_to(0)
    for start in range(0, spans * _SPAN_SECS, _SPAN_SECS):
        for place, second in enumerate(_WITHIN):
            stream.add_elements([window.TimestampedValue(start + second, start + second)])
            stream.advance_watermark_to(start + (place + 1) / 8)  # else Prism may put elements into one bundle
        stream.advance_watermark_to(start + 18)
        stream.advance_processing_time(1)
    return stream.advance_watermark_to_infinity()


def _keyed(result: PredictionResult) -> tuple[str, int]:
    return "", result.example


def _note(pair: tuple[str, Sequence[int]], where: Any = beam.DoFn.WindowParam) -> None:
    _seen.extend((second, float(where.start)) for second in pair[1])
