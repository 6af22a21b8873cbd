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

class EngineHandler(EngineModelHandler):
    def load_model(self):
        open(os.path.join(FOLDER, f"engine-load-{os.getpid()}"), "x").close()
        return bytes(100_000)

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
from worker_handlers import EngineHandler

class Handler(ModelHandler):
    name = "large"
    thirteen = None

    def load_model(self):
        open(os.path.join(FOLDER, f"{self.name}-load-{os.getpid()}"), "x").close()
        return bytes(100_000)

    def run_inference(self, batch, model, inference_args=None):
        time.sleep(0.01)
        if 13 in batch and self.thirteen == "dies":
            os._exit(5)
        if 13 in batch and self.thirteen == "fails":
            raise ValueError("the text of a row")
        return [(example, len(model), os.getpid()) for example in batch]

class Copied(Handler):
    name = "copies"

class Dying(Handler):
    thirteen = "dies"

class Failing(Handler):
    thirteen = "fails"

class BeamHandler(beam.ml.inference.base.ModelHandler):
    name = "beam"
    thirteen = None

    def share_model_across_processes(self):
        return True

    def batch_elements_kwargs(self):
        return {"max_batch_size": 5}

    load_model = Handler.load_model
    run_inference = Handler.run_inference

TRANSFORMS = {
    "large": lambda: RunInference(Handler(max_batch_size=5, large_model=True)),
    "copies": lambda: RunInference(Copied(max_batch_size=5, model_copies=2)),
    "beam": lambda: RunInference(BeamHandler()),
    "engine": lambda: RunInference(EngineHandler(large_model=True)),
    "isolated": lambda: RunInference(Dying(max_batch_size=5), isolate=True),
    "failing": lambda: RunInference(Failing(max_batch_size=5)),
}

def line(outcome, begin):
    element, *more = outcome if begin.endswith("good") else outcome[:1]
    return " ".join(map(str, [begin, element, *more, os.getpid()]))

def main():
    options = PipelineOptions(
        direct_num_workers=2,
        direct_running_mode=sys.argv[2],
        save_main_session=True,
        pickle_library="cloudpickle",  # dill, the default before Beam 2.65, loses the main module's names
    )
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        elements = pipeline | beam.Create(range(200)) | beam.Reshuffle()
        lines = []
        for name in sys.argv[1].split(","):
            good, dead = elements | name >> TRANSFORMS[name]().with_exception_handling()
            for label, outcomes in (("good", good), ("dead", dead.failed_inferences)):
                lines.append(outcomes | f"{name}, {label}" >> beam.Map(line, f"{name} {label}"))
        _ = lines | beam.Flatten() | beam.io.WriteToText(FOLDER + "/lines")

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


def run_pipeline(folder, transforms, mode="multi_processing", **variables):
    """What came out of each: (element, size of the model, process that computed it, worker); and the dead letters."""
    script = folder / "pipeline.py"
    script.write_text(f"FOLDER = {str(folder)!r}\n{PIPELINE}")
    run_python(folder, script, ",".join(transforms), mode, **variables)
    lines = [line.split() for file in folder.glob("lines-*") for line in file.read_text().splitlines()]
    for name in transforms:
        good, dead = ([rest for one, kind, *rest in lines if (one, kind) == (name, of)] for of in ("good", "dead"))
        yield name, [tuple(map(int, row)) for row in good], [element for element, _ in dead]


def test_worker_processes_share_one_load(tmp_path, runtime, processes, wait_until):
    """In one pipeline: the start of its processes takes longer than all the rest."""
    for handler, rows, dead in run_pipeline(tmp_path, ("large", "copies", "beam", "engine")):
        assert sorted(row[:2] for row in rows) == [(n, 100_000) for n in range(200)], handler
        assert dead == [], handler
        loads = {int(file.name.rpartition("-")[2]) for file in tmp_path.glob(f"{handler}-load-*")}
        assert len(loads) == 1, handler
        computed, workers = {row[2] for row in rows}, {row[3] for row in rows}
        if handler in ("engine", "copies"):
            assert computed.isdisjoint(workers), handler
            assert computed == loads or (handler == "copies" and 1 <= len(computed) <= 2)
        else:
            assert computed == workers >= loads, handler
    assert wait_until(lambda: not processes()), processes()
    assert not runtime.exists()


def test_worker_processes_have_one_host_each_and_leave_none(tmp_path, processes):
    ((_, rows, dead),) = run_pipeline(tmp_path, ["isolated"])
    assert sorted(row[0] for row in rows) == [n for n in range(200) if n != 13]
    assert {row[2] for row in rows}.isdisjoint({row[3] for row in rows})
    assert dead == ["[13]"]
    assert processes() == []


@pytest.mark.parametrize("mode", ["multi_processing", "in_memory"])
def test_each_worker_process_exports(tmp_path, mode):
    figures = tmp_path / "figures"
    figures.mkdir()
    with collecting() as collector:
        addresses = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "PROMETHEUS_MULTIPROC_DIR": str(figures)}
        ((_, rows, _),) = run_pipeline(tmp_path, ["failing"], mode, HEADRACE_PROMETHEUS="registry", **addresses)
    assert collector.total("headrace.examples") == 199
    assert collector.total("headrace.element.failures", error__type="ValueError") == 1
    assert len(collector.instances("headrace.examples")) == len({row[3] for row in rows})
    assert collector.trees()
    assert b"the text of a row" not in collector.received
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(figures))
    assert registry.get_sample_value("headrace_batch_size_sum", {"headrace_model": ""}) == 199


def test_a_run_shows_the_figures_of_a_runners_processes(tmp_path):
    (tmp_path / "in.csv").write_text("a\n" + "1\n" * 60)
    code = "import sys; from headrace.cli.main import main; sys.exit(main())"
    handler = ("--handler", "worker_handlers:Twice", "--output", "p.jsonl", "--prometheus", "run.prom")
    processes = ("--runner", "FnApiRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    run_python(tmp_path, "-c", code, "run", "in.csv", *handler, *processes)
    assert 'headrace_examples_total{headrace_model=""} 60.0\n' in (tmp_path / "run.prom").read_text()
