"""How much of a language model's work is padding, and what it costs, by the order in which texts come to it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from goals import INTERVALS, Goal, find, interval, ratios
from outputs import Outputs

from headrace import BatchingConfig, text_length
from headrace.beam import RunInference
from workloads.docstrings import Embedder, find_docstrings

TITLE = "Padding: docstrings of installed packages through all-MiniLM-L6-v2, in several orders"

ABOUT = f"""\
Each way is a pipeline on the FnApiRunner, in batches of 32 but where it says otherwise; rows/s counts the time within
the model's calls; the texts are twice as many as Headrace looks at together here (1,024; by default it is 2,048). All
ways gave equal predictions. The ways take turns, forwards and backwards.

- *in order of arrival*: batches as the texts come, as Beam has them.
- *looking ahead*: `length_fn=headrace.text_length`, which estimates tokens, by which handlers of texts sort by default.
- *all sorted before*: the whole corpus by its characters, as one would, the longest first, and then in that order.
- *useful tokens*: those of the texts, over those that the model computed, padding included.

{INTERVALS}"""

_ROWS = 2_100
_LOOKAHEAD = 1_024
"""Half of the default, so that the texts need not be as many."""
_FIXED = {"min_batch_size": 32, "max_batch_size": 32}
_ARRIVAL, _AHEAD, _SORTED = "in order of arrival", "looking ahead", "all sorted before"
_ADAPTIVE, _BEAM = "looking ahead, adaptive size", "Beam, in order of arrival"
_SLOW = (_ARRIVAL, _BEAM)
_MOST_ROUNDS, _MOST_ROUNDS_OF_SLOW = 5, 2

GOALS = [
    Goal(
        "Sorted and adaptive together: rows/s / of the corpus sorted beforehand",
        lambda results: ratios(*([rate for rate, _ in find(results, way)] for way in (_ADAPTIVE, _SORTED))),
        at_least=0.95,
    )
]

_log: list[tuple[float, float, int, int]] = []
"""Of each batch: when it began and ended, its tokens, and its tokens with padding."""
_predictions: list[Any] = []
_expected: list[Outputs] = []


class LoggingEmbedder(Embedder):
    """Writes down what it does."""

    def run_inference(
        self, batch: Sequence[str], model: Any, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """As its base does, and notes the time and the tokens."""
        began = time.perf_counter()
        predictions = list(super().run_inference(batch, model, inference_args))
        ended = time.perf_counter()
        lengths = [
            len(ids)
            for ids in model.tokenizer(list(batch), truncation=True, max_length=model.max_seq_length)["input_ids"]
        ]
        _log.append((began, ended, sum(lengths), len(batch) * max(lengths)))
        return predictions


def facts(_: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    texts = list(islice(find_docstrings(), 64 if quick else _ROWS))
    longest_first = sorted(texts, key=len, reverse=True)
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        _ARRIVAL: partial(_run, texts, lambda: RunInference(LoggingEmbedder(**_FIXED))),
        _AHEAD: partial(_run, texts, lambda: RunInference(LoggingEmbedder(), batching=_ahead(**_FIXED))),
        _ADAPTIVE: partial(_run, texts, lambda: RunInference(LoggingEmbedder(), batching=_ahead())),
        _SORTED: partial(_run, longest_first, lambda: RunInference(LoggingEmbedder(**_FIXED))),
        _BEAM: partial(_run, texts, lambda: BeamRunInference(LoggingEmbedder(**_FIXED))),
    }
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(min(repeats, _MOST_ROUNDS)):
        names = [name for name in ways if name not in _SLOW or turn < _MOST_ROUNDS_OF_SLOW]
        for name in names[:: 1 if turn % 2 == 0 else -1]:
            runs[name].append(ways[name]())
    for name, of_name in runs.items():
        rates, shares = zip(*of_name, strict=True)
        of_sorted = ratios(rates, [rate for rate, _ in runs[_SORTED][: len(rates)]])
        yield {
            "texts": name,
            "rounds": str(len(of_name)),
            "rows/s": str(interval(rates)),
            f"of {_SORTED}": str(interval(of_sorted)),
            "useful tokens": f"{statistics.median(shares):.3f}",
            "runs": of_name,
        }


def _ahead(**options: int) -> BatchingConfig:
    return BatchingConfig(length_fn=text_length, lookahead=_LOOKAHEAD, **options)


def _run(texts: Sequence[str], transform: Callable[[], beam.PTransform]) -> tuple[float, float]:
    """Rows a second within the model's calls, and the share of useful tokens."""
    _log.clear()
    _predictions.clear()
    with beam.Pipeline(FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([None]) | beam.FlatMap(lambda _: texts) | transform() | beam.Map(_predictions_append)
    _check(Outputs(_predictions))
    seconds = sum(ended - began for began, ended, _, _ in _log)
    return len(texts) / seconds, sum(one[2] for one in _log) / sum(one[3] for one in _log)


def _predictions_append(prediction: Any) -> None:
    _predictions.append(prediction)


def _check(outputs: Outputs) -> None:
    _expected[:] = _expected or [outputs]
    outputs.check_same(_expected[0], tolerance=1e-4)
