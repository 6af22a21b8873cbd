"""A pipeline that is the whole of a Python process: ``python -m elsewhere.whole STATE ROWS where``.

Prints, as JSON, how many predictions came out, the sum of the numbers in them (of their sizes), and when the first one
did (seconds of the machine's clock).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from elsewhere.encoder import Encoder, make_rows
from headrace.beam import RunInference
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor

_CHUNK = 256
BATCH = 64


class Sink(beam.DoFn):
    """Counts and adds up predictions; the runner works in this process."""

    first = 0.0
    count = 0
    total = 0.0

    def process(self, prediction: Any) -> None:
        """Takes one."""
        Sink.first = Sink.first or time.monotonic()
        Sink.count += 1
        Sink.total += float(prediction.inference.abs().sum())


def main(state: str, rows: str, where: str) -> None:
    """Runs the pipeline and prints what came of it."""
    logging.getLogger().setLevel(logging.ERROR)
    handler = PytorchModelHandlerTensor(
        state_dict_path=state, model_class=Encoder, min_batch_size=BATCH, max_batch_size=BATCH
    )
    with beam.Pipeline(FnApiRunner()) as pipeline:
        chunks = pipeline | beam.Create(range(int(rows) // _CHUNK))
        _ = (
            chunks
            | beam.FlatMap(make_rows, _CHUNK)
            | RunInference(handler, isolate=where == "isolated")
            | beam.ParDo(Sink())
        )
    print(json.dumps({"first": Sink.first, "count": Sink.count, "total": Sink.total}))


if __name__ == "__main__":
    main(*sys.argv[1:])
