"""A handler of one's own that does nothing, on rows of text: ``echo.py INPUT OUTPUT``, JSON lines, with Beam."""

from __future__ import annotations

import json
import sys

from apache_beam.ml.inference.base import ModelHandler, PredictionResult


class Echo(ModelHandler):
    """Says what it is given."""

    def load_model(self):
        """There is none."""
        return len

    def run_inference(self, batch, model, inference_args=None):
        """The examples themselves."""
        return [PredictionResult(text, text) for text in batch]


def with_beam(source: str, output: str) -> None:
    """Beam's RunInference between its own reader and writer."""
    import apache_beam as beam  # noqa: PLC0415 - not of the handler
    from apache_beam.ml.inference.base import KeyedModelHandler, RunInference  # noqa: PLC0415 - the same
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: PLC0415 - the same

    with beam.Pipeline(FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | beam.io.ReadFromText(source)
            | "Parse" >> beam.Map(json.loads)
            | beam.Map(lambda row: (row["id"], row["text"]))
            | RunInference(KeyedModelHandler(Echo()))
            | beam.Map(lambda pair: {"id": pair[0], "text": pair[1].example, "prediction": pair[1].inference})
            | beam.Map(json.dumps)
            | beam.io.WriteToText(output, shard_name_template="")
        )


if __name__ == "__main__":
    with_beam(*sys.argv[1:])
