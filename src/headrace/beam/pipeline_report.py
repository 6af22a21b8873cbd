"""What the metrics of a pipeline's result say, as totals and as a page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from apache_beam.metrics.cells import DistributionResult

from headrace.core.events import FALLBACK
from headrace.metrics.report import ReportPage, refuse_unwritable, report_figures, write_report
from headrace.metrics.timeline import Timeline
from headrace.metrics.totals import Totals, usage_figures, usage_in

_OF_FALLBACK = re.compile(rf"{FALLBACK}\d*(-.+)?-_num_inferences")
_UNKNOWN = (
    "Made of the runner's metrics, which do not say how many rows came in, which of them failed and why, nor what the "
    "time went to."
)


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
    except (AttributeError, NotImplementedError):
        return {}, {}
    for counter in found["counters"]:
        counters[counter.key.metric.name] += counter.result
    for one in found["distributions"]:
        name, data = one.key.metric.name, one.result.data
        before = distributions.get(name)
        distributions[name] = one.result if before is None else DistributionResult(before.data.combine(data))
    return counters, distributions
