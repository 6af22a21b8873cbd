"""Scores a file of Parquet or JSON lines with Beam: ``with_beam.py INPUT MODEL OUTPUT``; prints the seconds it took."""

from __future__ import annotations

import json
import sys
import time

import apache_beam as beam
import numpy as np
import pyarrow
import pyarrow.parquet
from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def with_beam(source: str, path: str, output: str) -> None:
    """Beam's RunInference between its own reader and writer, each row an array."""
    with beam.Pipeline(FnApiRunner()) as pipeline:
        scored = (
            _rows(pipeline, source)
            | beam.Map(lambda row: (row, np.array(list(row.values()))))
            | RunInference(KeyedModelHandler(SklearnModelHandlerNumpy(path)))
            | beam.Map(lambda pair: {**pair[0], "prediction": int(pair[1].inference)})
        )
        if output.endswith(".jsonl"):
            _ = scored | beam.Map(json.dumps) | beam.io.WriteToText(output, shard_name_template="")
        else:
            schema = pyarrow.parquet.read_schema(source).append(pyarrow.field("prediction", pyarrow.int64()))
            _ = scored | beam.io.WriteToParquet(output, schema, shard_name_template="")


def _rows(pipeline, source):
    if source.endswith(".jsonl"):
        return pipeline | beam.io.ReadFromText(source) | "Parse" >> beam.Map(json.loads)
    return pipeline | beam.io.ReadFromParquet(source)


if __name__ == "__main__":
    started = time.perf_counter()
    with_beam(*sys.argv[1:])
    print("seconds", time.perf_counter() - started)
