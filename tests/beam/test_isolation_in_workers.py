"""Each worker process of an engine has a model host, and leaves none behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.large


PIPELINE = """
import os
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from headrace.beam import ModelHandler, RunInference

class Handler(ModelHandler):
    def load_model(self):
        return os.getpid()

    def run_inference(self, batch, model, inference_args=None):
        if 13 in batch:
            os._exit(5)
        return [(example, model) for example in batch]

def main():
    options = PipelineOptions(direct_num_workers=2, direct_running_mode="multi_processing", save_main_session=True)
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        transform = RunInference(Handler(max_batch_size=5), isolate=True).with_exception_handling()
        good, dead = pipeline | beam.Create(range(40)) | beam.Reshuffle() | transform
        _ = good | beam.Map(lambda pair: "%s %s %s" % (*pair, os.getpid())) | beam.io.WriteToText(FOLDER + "/good")
        _ = dead.failed_inferences | beam.Map(lambda record: str(record[0])) | "Dead" >> beam.io.WriteToText(
            FOLDER + "/dead"
        )

if __name__ == "__main__":
    main()
"""


def test_worker_processes_have_one_host_each_and_leave_none(tmp_path, processes):
    script = tmp_path / "pipeline.py"
    script.write_text(f"FOLDER = {str(tmp_path)!r}\n{PIPELINE}")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [tuple(map(int, line.split())) for file in tmp_path.glob("good-*") for line in file.read_text().splitlines()]
    assert sorted(n for n, *_ in rows) == [n for n in range(40) if n != 13]
    hosts, workers = {host for _, host, _ in rows}, {worker for *_, worker in rows}
    assert hosts.isdisjoint(workers)
    assert "[13]" in "".join(file.read_text() for file in tmp_path.glob("dead-*"))
    assert processes() == []
