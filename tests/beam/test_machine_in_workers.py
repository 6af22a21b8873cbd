"""Worker processes of an engine share the machine's copy of a model, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.large

ENGINE_HANDLER = """
import os
from headrace import EngineModelHandler

class EngineHandler(EngineModelHandler):
    def load_model(self):
        open(os.path.join(FOLDER, f"load-{os.getpid()}"), "x").close()
        return bytes(100_000)

    async def submit(self, example, model, inference_args=None):
        return example, len(model), os.getpid()
"""
"""In a module: Beam before 2.65 cannot pickle an abstract class's heirs that are in the main module."""

PIPELINE = """
import os
import sys
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from engine_handler import EngineHandler
from headrace.beam import ModelHandler, RunInference

class Handler(ModelHandler):
    def load_model(self):
        open(os.path.join(FOLDER, f"load-{os.getpid()}"), "x").close()
        return bytes(100_000)

    def run_inference(self, batch, model, inference_args=None):
        return [(example, len(model), os.getpid()) for example in batch]

class BeamHandler(beam.ml.inference.base.ModelHandler):
    def share_model_across_processes(self):
        return True

    def batch_elements_kwargs(self):
        return {"max_batch_size": 5}

    load_model = Handler.load_model
    run_inference = Handler.run_inference

HANDLERS = {
    "large": lambda: Handler(max_batch_size=5, large_model=True),
    "copies": lambda: Handler(max_batch_size=5, model_copies=2),
    "beam": BeamHandler,
    "engine": lambda: EngineHandler(large_model=True),
}

def main():
    options = PipelineOptions(
        direct_num_workers=3,
        direct_running_mode="multi_processing",
        save_main_session=True,
        pickle_library="cloudpickle",  # dill, the default before Beam 2.65, loses the main module's names
    )
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        good = pipeline | beam.Create(range(60)) | beam.Reshuffle() | RunInference(HANDLERS[sys.argv[1]]())
        _ = good | beam.Map(lambda one: "%s %s %s %s" % (*one, os.getpid())) | beam.io.WriteToText(FOLDER + "/good")

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("handler", ["large", "copies", "beam", "engine"])
def test_worker_processes_share_one_load(tmp_path, runtime, processes, handler, wait_until):
    script = tmp_path / "pipeline.py"
    script.write_text(f"import apache_beam.ml.inference.base\nFOLDER = {str(tmp_path)!r}\n{PIPELINE}")
    (tmp_path / "engine_handler.py").write_text(f"FOLDER = {str(tmp_path)!r}\n{ENGINE_HANDLER}")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command, env = [sys.executable, script, handler], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [tuple(map(int, line.split())) for file in tmp_path.glob("good-*") for line in file.read_text().splitlines()]
    assert sorted(row[:2] for row in rows) == [(n, 100_000) for n in range(60)]
    loads = [int(file.name.partition("-")[2]) for file in tmp_path.glob("load-*")]
    assert len(loads) == 1
    computed, workers = {row[2] for row in rows}, {row[3] for row in rows}
    if handler == "engine":
        assert computed == set(loads)
        assert computed.isdisjoint(workers)
    elif handler == "copies":
        assert 1 <= len(computed) <= 2
        assert computed.isdisjoint(workers)
    else:
        assert computed == workers
        assert loads[0] in workers
    assert wait_until(lambda: not processes()), processes()
    assert not runtime.exists()
