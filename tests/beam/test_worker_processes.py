"""Worker processes of an engine have a host each or share the machine's copy, export, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from otlp_collector import collecting

pytestmark = pytest.mark.large

MODULE = """
import os
from headrace import EngineModelHandler, ModelHandler

def load(name):
    open(os.path.join(FOLDER, f"load-{name}-{os.getpid()}"), "x").close()
    return bytes(100_000)

class EngineHandler(EngineModelHandler):
    def load_model(self):
        return load("engine")

    async def submit(self, example, model, inference_args=None):
        return example, len(model), os.getpid()

class Twice(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return [2 * row["a"] for row in batch]
"""
"""Beam before 2.65 cannot pickle an abstract class's heirs that are in the main module."""

PIPELINE = """
import os
import sys
import time
import apache_beam as beam
import apache_beam.ml.inference.base
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from headrace.beam import ModelHandler, RunInference
from worker_handlers import EngineHandler, load

class Handler(ModelHandler):
    def __init__(self, name, **options):
        super().__init__(max_batch_size=5, **options)
        self.name = name

    def load_model(self):
        return load(self.name)

    def run_inference(self, batch, model, inference_args=None):
        time.sleep(0.01)
        if self.name == "isolated" and 13 in batch:
            os._exit(5)
        if self.name == "isolated" and 14 in batch:
            raise ValueError("the text of a row")
        return [(example, len(model), os.getpid()) for example in batch]

class BeamHandler(beam.ml.inference.base.ModelHandler):
    name = "beam"

    def share_model_across_processes(self):
        return True

    def batch_elements_kwargs(self):
        return {"max_batch_size": 5}

    load_model = Handler.load_model
    run_inference = Handler.run_inference

TRANSFORMS = {
    "large": lambda: RunInference(Handler("large", large_model=True)),
    "copies": lambda: RunInference(Handler("copies", model_copies=2)),
    "beam": lambda: RunInference(BeamHandler()),
    "engine": lambda: RunInference(EngineHandler(large_model=True)),
    "isolated": lambda: RunInference(Handler("isolated"), isolate=True),
}

def as_text(one):
    return "%s %s %s %s" % (*one, os.getpid())

def main():
    options = PipelineOptions(
        direct_num_workers=2,
        direct_running_mode="multi_processing",
        save_main_session=True,
        pickle_library="cloudpickle",  # dill, the default before Beam 2.65, loses the main module's names
    )
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        rows = pipeline | beam.Create(range(200)) | beam.Reshuffle()
        for name in sys.argv[1:]:
            good, dead = rows | name >> TRANSFORMS[name]().with_exception_handling()
            letters = dead.failed_inferences | f"{name}: dead" >> beam.Map(lambda record: str(record[0]))
            for kind, texts in ("good", good | f"{name}: good" >> beam.Map(as_text)), ("dead", letters):
                _ = texts | f"{name}: write {kind}" >> beam.io.WriteToText(f"{FOLDER}/{kind}-{name}")

if __name__ == "__main__":
    main()
"""


def run_python(folder, *arguments, **variables):
    """Runs Python in a folder from which workers can import a module of handlers."""
    (folder / "worker_handlers.py").write_text(f"FOLDER = {str(folder)!r}\n{MODULE}")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def run_pipeline(folder, *transforms, **variables):
    """What came out of each: (element, size of the model, process that computed it, worker); and its dead letters."""
    script = folder / "pipeline.py"
    script.write_text(f"FOLDER = {str(folder)!r}\n{PIPELINE}")
    run_python(folder, script, *transforms, **variables)
    for name in transforms:
        good, dead = (
            "".join(file.read_text() for file in folder.glob(f"{kind}-{name}-*")) for kind in ("good", "dead")
        )
        yield name, [tuple(map(int, line.split())) for line in good.splitlines()], dead.split()


def test_worker_processes_share_one_load(tmp_path, runtime, processes, wait_until):
    for name, rows, dead in run_pipeline(tmp_path, "large", "copies", "beam", "engine"):
        assert sorted(row[:2] for row in rows) == [(n, 100_000) for n in range(200)]
        assert dead == []
        loads = {int(file.name.rpartition("-")[2]) for file in tmp_path.glob(f"load-{name}-*")}
        assert len(loads) == 1
        computed, workers = {row[2] for row in rows}, {row[3] for row in rows}
        if name in ("engine", "copies"):
            assert computed.isdisjoint(workers)
            assert computed == loads or (name == "copies" and 1 <= len(computed) <= 2)
        else:
            assert computed == workers >= loads
    assert wait_until(lambda: not processes()), processes()
    assert not runtime.exists()


def test_worker_processes_have_one_host_each_export_and_leave_nothing(tmp_path, processes):
    figures = tmp_path / "figures"
    figures.mkdir()
    with collecting() as collector:
        addresses = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "PROMETHEUS_MULTIPROC_DIR": str(figures)}
        ((_, rows, dead),) = run_pipeline(tmp_path, "isolated", HEADRACE_PROMETHEUS="registry", **addresses)
    workers = {row[3] for row in rows}
    assert sorted(row[0] for row in rows) == [n for n in range(200) if n not in (13, 14)]
    assert {row[2] for row in rows}.isdisjoint(workers)
    assert sorted(dead) == ["[13]", "[14]"]
    assert processes() == []
    assert collector.total("headrace.examples") == 198
    for error in ("headrace.core.errors.HostDiedError", "ValueError"):
        assert collector.total("headrace.element.failures", error__type=error) == 1
    assert len(collector.instances("headrace.examples")) == len(workers)
    assert collector.trees()
    assert b"the text of a row" not in collector.received
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(figures))
    assert registry.get_sample_value("headrace_batch_size_sum", {"headrace_model": ""}) == 198


def test_a_run_shows_the_figures_of_a_runners_processes(tmp_path):
    (tmp_path / "in.csv").write_text("a\n" + "1\n" * 60)
    code = "import sys; from headrace.cli.main import main; sys.exit(main())"
    handler = ("--handler", "worker_handlers:Twice", "--output", "p.jsonl", "--prometheus", "run.prom")
    processes = ("--runner", "FnApiRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    run_python(tmp_path, "-c", code, "run", "in.csv", *handler, *processes)
    assert 'headrace_examples_total{headrace_model=""} 60.0\n' in (tmp_path / "run.prom").read_text()
