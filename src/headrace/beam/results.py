"""What there is besides predictions: dead letters, also as rows; and of a pipeline's metrics totals and a page."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import apache_beam as beam
from apache_beam.metrics.cells import DistributionResult
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp

from headrace.core.events import FALLBACK
from headrace.core.result import DeadLetter, Stage
from headrace.metrics.report import ReportPage, refuse_unwritable, report_figures, write_report
from headrace.metrics.timeline import Timeline
from headrace.metrics.totals import Totals, usage_figures, usage_in

_ROW = RowTypeConstraint.from_fields([*get_type_hints(DeadLetter).items(), ("event_time", Timestamp)])
_OF_FALLBACK = re.compile(rf"{FALLBACK}\d*(-.+)?-_num_inferences")
_UNKNOWN = (
    "Made of the runner's metrics, which do not say how many rows came in, which of them failed and why, nor what the "
    "time went to."
)


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


class DeadLetterRows(beam.PTransform):
    """Turns a ``RunInferenceDLQ``, Headrace's or Beam's, into one PCollection of ``beam.Row``.

    Each row keeps the timestamp and the windows of its dead letter. Its fields:

    - ``stage``: ``"preprocessing"``, ``"inference"`` or ``"postprocessing"``.
    - ``index``: which function of the stage, counted from 0 in the order in which they run.
    - ``key``: of a keyed element; else None.
    - ``element``: the operation's input; for inference the element, not a batch of one (Beam's: the batch).
    - ``error_type``: the name of the error's class, with its module unless it is built in.
    - ``message``: the error's message.
    - ``traceback``: one text of several lines.
    - ``attempts``: how often the element was tried, at least 1.
    - ``model_id``: the path, URI or name of the model; None if it is not known.
    - ``event_time``: the element's timestamp, a Beam ``Timestamp``.
    """

    def expand(self, dead_letters: Any) -> beam.PCollection:
        """A Map for each operation, and a Flatten."""
        rows = [
            failed | f"{stage.value}-{index}" >> beam.Map(_row, stage, index).with_output_types(_ROW)
            for stage, index, failed in _by_operation(dead_letters)
        ]
        return rows | beam.Flatten()

    def _extract_input_pvalues(self, dead_letters: Any) -> tuple[Any, tuple[beam.PCollection, ...]]:
        """Tells Beam which PCollections the input contains: it is not a PCollection itself."""
        return dead_letters, tuple(failed for _, _, failed in _by_operation(dead_letters))


def _by_operation(dead_letters: Any) -> Iterator[tuple[Stage, int, beam.PCollection]]:
    for index, failed in enumerate(dead_letters.failed_preprocessing):
        yield Stage.PREPROCESSING, index, failed
    yield Stage.INFERENCE, 0, dead_letters.failed_inferences
    for index, failed in enumerate(dead_letters.failed_postprocessing):
        yield Stage.POSTPROCESSING, index, failed


def _row(record: Any, stage: Stage, index: int, event_time: Any = beam.DoFn.TimestampParam) -> beam.Row:
    return beam.Row(**vars(DeadLetter.of(record, stage, index)), event_time=event_time)


def report(result: Any, path: str) -> ReportPage:
    """Writes a page about a pipeline that has run, with its figures beside it as ``.json``; a notebook shows it.

    It has what the runner's metrics tell: predictions, batches, latencies, loads, tokens and money, added up over all
    transforms of Headrace in the pipeline.

    Args:
        result: what ``Pipeline.run`` returned, after ``wait_until_finish``.
        path: of the page, ``.html``; or ``.json`` for the figures only.

    Raises:
        ConfigurationError: the path has another ending, or its folder does not exist; MissingExtraError if the extra
            ``report`` is not installed.
        OSError: a file cannot be written.
    """
    refuse_unwritable(path)
    counters, distributions = _metrics_of(result)
    totals = _totals(counters, distributions)
    facts = {
        "command": "pipeline",
        "notes": [_UNKNOWN],
        "exit_code": 0,
        "exit_reason": str(getattr(result, "state", "done")).lower(),
        "predictions": totals.predictions,
        "skipped": totals.skipped,
        "from_cache": totals.cached,
        "usage": usage_figures(totals.usage),
        "figures": {
            "batches": totals.batches,
            "failed batches": totals.failed_batches,
            "rows in a batch": totals.mean_batch_size,
            "model loads": totals.loads,
            "seconds of loading": totals.load_seconds,
            "bytes of models": totals.model_bytes,
        },
    }
    figures = report_figures(facts, Timeline())
    latency = distributions.get("inference_batch_latency_micro_secs")
    if latency is not None and latency.count:
        micros = {"mean": latency.sum / latency.count, "least": latency.min, "longest": latency.max}
        figures["latency"] = {name: value / 1e6 for name, value in micros.items()}
    return write_report(figures, path)


def totals_of(result: Any) -> Totals:
    """Totals from Beam's metrics, as far as the runner provides them."""
    return _totals(*_metrics_of(result))


def _totals(counters: Mapping[str, int], figures: Mapping[str, DistributionResult]) -> Totals:
    names = ("inference_request_batch_size", "load_model_latency_milli_secs", "model_byte_size")
    batches, loads, memory = map(figures.get, names)
    return Totals(
        predictions=counters.get("num_inferences", 0),
        from_fallback=sum(count for name, count in counters.items() if _OF_FALLBACK.fullmatch(name)),
        batches=batches.count if batches else 0,
        failed_batches=counters.get("failed_batches_counter", 0),
        skipped=counters.get("skipped_elements_counter", 0),
        loads=loads.count if loads else 0,
        load_seconds=loads.sum / 1e3 if loads else 0.0,
        model_bytes=memory.sum if memory else 0,
        cached=counters.get("cache_hits", 0),
        usage=usage_in(counters),
    )


def _metrics_of(result: Any) -> tuple[dict[str, int], dict[str, DistributionResult]]:
    """Counters and distributions by name, of all transforms together."""
    counters: Counter[str] = Counter()
    distributions: dict[str, DistributionResult] = {}
    try:
        found = result.metrics().query()
    except (AttributeError, NotImplementedError):  # a runner without metrics
        return {}, {}
    for counter in found["counters"]:
        counters[counter.key.metric.name] += counter.result
    for one in found["distributions"]:
        name, data = one.key.metric.name, one.result.data
        before = distributions.get(name)
        distributions[name] = one.result if before is None else DistributionResult(before.data.combine(data))
    return counters, distributions
