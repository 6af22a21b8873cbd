"""Real worker processes: a pickled session works in them, and each loads the model once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.large

PIPELINE = """
import os
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from headrace.beam import KeyedModelHandler, KeyModelMapping, ModelHandler, RunInference

class Handler(ModelHandler):
    def load_model(self):
        with open(os.path.join(FOLDER, f"load-{os.getpid()}"), "a") as file:
            file.write("x")
        return os.getpid()

    def run_inference(self, batch, model, inference_args=None):
        if any(example == 13 for example in batch):
            raise ValueError("thirteen")
        return [(example, model) for example in batch]

def main():
    handler = KeyedModelHandler(Handler(max_batch_size=5)).with_preprocess_fn(lambda n: (n % 2, n))
    options = PipelineOptions(direct_num_workers=2, direct_running_mode="multi_processing", save_main_session=True)
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        good, dead = (
            pipeline | beam.Create(range(40)) | beam.Reshuffle() | RunInference(handler).with_exception_handling()
        )
        _ = good | beam.Map(lambda pair: str(pair[1][0])) | beam.io.WriteToText(FOLDER + "/good")
        _ = dead.failed_inferences | beam.Map(lambda record: str(record[0])) | "Dead" >> beam.io.WriteToText(
            FOLDER + "/dead"
        )

if __name__ == "__main__":
    main()
"""


def lines(folder, pattern):
    return sorted(line for file in folder.glob(pattern) for line in file.read_text().splitlines())


def test_two_worker_processes_load_once_each_and_lose_nothing(tmp_path):
    script = tmp_path / "pipeline.py"
    script.write_text(f"FOLDER = {str(tmp_path)!r}\n{PIPELINE}")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(map(int, lines(tmp_path, "good-*"))) == [n for n in range(40) if n != 13]
    assert lines(tmp_path, "dead-*") == ["[(1, 13)]"]
    loads = {file.name: file.read_text() for file in tmp_path.glob("load-*")}
    assert 1 <= len(loads) <= 2
    assert set(loads.values()) == {"x"}


@pytest.mark.parametrize("call", ["list(predict(Slow(), [1]))", "run()"])
def test_ctrl_c_ends_a_run_in_the_users_own_process(tmp_path, popen, call):
    """The model reports that it has begun, then computes without end; one SIGINT is enough."""
    script = tmp_path / "slow.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import threading
            import apache_beam as beam
            from apache_beam.runners.portability.fn_api_runner import FnApiRunner
            from headrace import ModelHandler, predict
            from headrace.beam import RunInference

            class Slow(ModelHandler):
                def load_model(self):
                    return None

                def run_inference(self, batch, model, inference_args=None):
                    print("begun", flush=True)
                    threading.Event().wait()

            def run():
                pipeline = beam.Pipeline(runner=FnApiRunner())
                _ = pipeline | beam.Create([1]) | RunInference(Slow())
                pipeline.run()

            {call}
            """
        )
    )
    process = popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
