"""What bad rows, too little memory and lost connections cost the good rows: facts, with times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy
from apache_beam.ml.inference.base import ModelHandler
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from measure import BEAM, HEADRACE
from sklearn.linear_model import LogisticRegression

from headrace.beam import RunInference

TITLE = "Bad rows, too little memory and lost connections among 10,000 rows, with dead letters"

ABOUT = """\
Rows of 20 numbers through a logistic regression, with exception handling, in this process, in turn; seconds are medians
of a pipeline from its submission to its end. *Good rows lost* are rows that the model can predict and that have no
prediction when the pipeline has ended. *Calls* are those of the model."""

_COLUMNS = 20
_BATCH = 100
_FITS = 300
_LOST_EVERY = 20

_SIDES = {HEADRACE: RunInference, BEAM: BeamRunInference}


class Trouble(NamedTuple):
    """What goes wrong."""

    what: str
    bad_every: int = 0
    """Each so manieth row makes its batch fail."""
    fits: int = 0
    """There is memory for batches of so many rows."""
    lost_every: int = 0
    """Each so manieth call loses its connection."""
    size: int | None = None
    """Of batches; None: it adapts."""


TROUBLES = (
    Trouble("none", size=_BATCH),
    Trouble(f"1 % of the rows are bad, batches of {_BATCH}", bad_every=100, size=_BATCH),
    Trouble(f"memory for {_FITS} rows, adaptive batches", fits=_FITS),
    Trouble(
        f"every {_LOST_EVERY}th call loses its connection, batches of {_BATCH}", lost_every=_LOST_EVERY, size=_BATCH
    ),
)


class Troubled(ModelHandler[numpy.ndarray, int, LogisticRegression]):
    """Written for Beam; both sides run it."""

    def __init__(self, trouble: Trouble) -> None:
        sizes = {} if trouble.size is None else {"min_batch_size": trouble.size, "max_batch_size": trouble.size}
        super().__init__(**sizes)
        self._trouble = trouble

    def load_model(self) -> LogisticRegression:
        """One that knows the sign of the first number."""
        rows = _rows(1000)
        return LogisticRegression().fit(rows, rows[:, 0] > 0)

    def run_inference(
        self, batch: Sequence[numpy.ndarray], model: LogisticRegression, inference_args: dict[str, Any] | None = None
    ) -> list[int]:
        """Predicts, or fails."""
        trouble = self._trouble
        _calls.append(len(batch))
        if trouble.lost_every and len(_calls) % trouble.lost_every == 0:
            raise ConnectionResetError("the connection is lost")
        if trouble.fits and len(batch) > trouble.fits:
            raise MemoryError(f"{len(batch)} rows do not fit")
        return model.predict(numpy.stack(batch)).tolist()  # type: ignore[no-any-return] - refuses what is no number


_calls: list[int] = []
_predictions: list[int] = []
_letters: list[int] = []


def facts(_: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, str]]:
    """One row for each trouble and side."""
    for trouble in TROUBLES:
        figures: dict[str, list[tuple[float, dict[str, str]]]] = {side: [] for side in _SIDES}
        for _turn in range(repeats):
            for side in _SIDES:
                figures[side].append(run(side, trouble, 1000 if quick else 10_000))
        for side, runs in figures.items():
            seconds = statistics.median(second for second, _ in runs)
            yield {"trouble": trouble.what, "transform": side, "pipeline s": f"{seconds:.2f}", **runs[-1][1]}


def run(side: str, trouble: Trouble, count: int) -> tuple[float, dict[str, str]]:
    """Runs a pipeline; returns its seconds, and what came out."""
    for noted in (_calls, _predictions, _letters):
        noted.clear()
    rows = _rows(count)
    if trouble.bad_every:
        rows[7 :: trouble.bad_every, 3] = numpy.nan
    pipeline = beam.Pipeline(runner=FnApiRunner())
    transform = _SIDES[side](Troubled(trouble)).with_exception_handling()
    good, dead = pipeline | beam.Create([0]) | beam.FlatMap(_each, rows) | transform
    _ = good | "Predictions" >> beam.Map(_note_prediction)
    _ = dead.failed_inferences | "Letters" >> beam.Map(_note_letter)
    started = time.monotonic()
    pipeline.run().wait_until_finish()
    seconds = time.monotonic() - started
    lost = int(numpy.isfinite(rows).all(axis=1).sum()) - len(_predictions)
    return seconds, {
        "calls": str(len(_calls)),
        "predictions": str(len(_predictions)),
        "rows in dead letters": str(sum(_letters)),
        "good rows lost": str(lost),
    }


def _rows(count: int) -> numpy.ndarray:
    return numpy.random.default_rng(5).normal(size=(count, _COLUMNS))


def _each(_: int, rows: numpy.ndarray) -> Iterator[numpy.ndarray]:
    yield from rows


def _note_prediction(prediction: int) -> None:
    _predictions.append(prediction)


def _note_letter(letter: tuple[Sequence[Any], Any]) -> None:
    _letters.append(len(letter[0]))
