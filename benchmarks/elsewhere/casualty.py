"""A pipeline with one bad element: ``python -m elsewhere.casualty`` with its side, fault, options and a file to fill.

The file gets a line of JSON for each element that comes out, as it does, and one when the pipeline has ended.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from headrace.testing import FaultyHandler, faults

COUNT = 64
BATCH = 16
_BAD = 20

FAULTS: Mapping[str, Callable[[], Any]] = {
    "hangs in C": faults.hang_in_c,
    "hangs in C with Python's lock": faults.hang_holding_gil,
    "SIGSEGV": faults.segfault,
    "SIGKILL": partial(signal.raise_signal, signal.SIGKILL),
}


def main(side: str, fault: str, options: str, path: str) -> None:
    """Runs the pipeline."""
    logging.getLogger().setLevel(logging.ERROR)
    handler = FaultyHandler(FAULTS[fault], _BAD, min_batch_size=BATCH, max_batch_size=BATCH)
    transform = _run_inference(side)(handler).with_exception_handling(**json.loads(options))
    pipeline = beam.Pipeline(runner=FnApiRunner())
    predictions, dead_letters = pipeline | beam.Create(range(COUNT)) | transform
    _ = predictions | "Predictions" >> beam.Map(lambda result: _note(path, prediction=result.example))
    _ = (
        dead_letters.failed_inferences
        | "Elements" >> beam.FlatMap(lambda record: record[0])
        | "Dead letters" >> beam.Map(lambda element: _note(path, dead_letter=element))
    )
    started = time.monotonic()
    pipeline.run().wait_until_finish()
    _note(path, seconds=time.monotonic() - started)


def _run_inference(side: str) -> Any:
    """Headrace's or Beam's; the import of the other one would only take time."""
    if side == "Headrace":
        from headrace.beam import RunInference  # noqa: PLC0415

        return RunInference
    from apache_beam.ml.inference.base import RunInference as BeamRunInference  # noqa: PLC0415

    return BeamRunInference


def _note(path: str, **what: Any) -> None:
    with Path(path).open("a") as file:
        file.write(f"{json.dumps(what)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
