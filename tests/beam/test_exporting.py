"""Each worker process of a runner exports what it does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from otlp_collector import collecting

pytestmark = pytest.mark.large

HANDLER = """
import headrace

class Twice(headrace.ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return [2 * row["a"] for row in batch]
"""
MAIN = "import sys; from headrace.cli.main import main; sys.exit(main())"

PIPELINE = """
import sys

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from headrace.beam import ModelHandler, RunInference

class Handler(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        import os, time  # older workers do not have the names of __main__

        time.sleep(0.01)
        if 13 in batch:
            raise ValueError("the text of a row")
        return [(example, os.getpid()) for example in batch]

def main():
    options = PipelineOptions(direct_num_workers=2, direct_running_mode=sys.argv[1], save_main_session=True)
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        transform = RunInference(Handler(max_batch_size=5)).with_exception_handling()
        good, dead = pipeline | beam.Create(range(400)) | beam.Reshuffle() | transform
        _ = good | beam.MapTuple(lambda _, pid: pid) | beam.Distinct() | beam.Map(str) | beam.io.WriteToText(FOLDER)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("mode", ["multi_processing", "in_memory"])
def test_each_worker_process_exports(tmp_path, mode):
    script, figures = tmp_path / "pipeline.py", tmp_path / "figures"
    script.write_text(f"FOLDER = {str(tmp_path / 'pids')!r}\n{PIPELINE}")
    figures.mkdir()
    with collecting() as collector:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "HEADRACE_PROMETHEUS": "registry",
            "PROMETHEUS_MULTIPROC_DIR": str(figures),
        }
        done = subprocess.run(
            [sys.executable, script, mode],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    processes = {line for file in tmp_path.glob("pids-*") for line in file.read_text().splitlines()}
    assert collector.total("headrace.examples") == 399
    assert collector.total("headrace.element.failures", error__type="ValueError") == 1
    assert len(collector.instances("headrace.examples")) == len(processes)
    assert collector.trees()
    assert b"the text of a row" not in collector.received
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(figures))
    assert registry.get_sample_value("headrace_batch_size_sum", {"headrace_model": ""}) == 399


def test_a_run_shows_the_figures_of_a_runners_processes(tmp_path):
    (tmp_path / "in.csv").write_text("a\n" + "1\n" * 60)
    (tmp_path / "twice_exported.py").write_text(HANDLER)
    processes = ("--runner", "FnApiRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    arguments = ("run", "in.csv", "--handler", "twice_exported:Twice", "--output", "p.jsonl", *processes)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments, "--prometheus", "run.prom"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 'headrace_examples_total{headrace_model=""} 60.0\n' in (tmp_path / "run.prom").read_text()
