"""vLLM's engine is shared by worker processes, and replaced for all of them; and the command has one of its own.

Neither leaves a process behind: tests/conftest.py looks for one, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.events import ModelLoaded, UsageReported
from headrace.core.result import PredictionResult
from headrace.handlers.vllm_engine import VLLMEngineModelHandler
from headrace.machine.status import machine_status
from headrace.runtime.prepare import InferenceRequest, prepare

ENGINE_ARGS = {"max_model_len": 1024, "enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
GREEDY = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
PROMPTS = [f"{first} {second}" for first in ("once", "there", "a") for second in ("upon", "was", "wheel")]


def text(result: PredictionResult) -> tuple[str, str]:
    return result.example, result.inference["text"]


@pytest.mark.usefixtures("runtime")
def test_worker_processes_share_an_engine_and_its_successor(saved_model, worker_process, processes, wait_until):
    handler = VLLMEngineModelHandler(saved_model, engine_args=ENGINE_ARGS, sampling_args=GREEDY, large_model=True)
    spec = prepare(handler.with_postprocess_fn(text), InferenceRequest())
    workers = [worker_process(spec) for _ in range(3)]
    for worker in workers:
        worker.begin(PROMPTS * 5)
    found = [worker.outcomes() for worker in workers]
    assert found[0].good == found[1].good == found[2].good
    assert [len(set(one.good)) for one in found] == [len(PROMPTS)] * 3
    assert sum(len(one.of(ModelLoaded)) for one in found) == 1
    assert [len(one.of(UsageReported)) for one in found] == [5 * len(PROMPTS)] * 3
    [manager] = machine_status().managers
    [host] = manager.models[0].hosts
    os.kill(host.process, signal.SIGKILL)
    for worker in workers:
        worker.begin(PROMPTS)
    again = [worker.outcomes() for worker in workers]
    assert [set(one.good) for one in again] == [set(found[0].good)] * 3
    for worker in workers:
        worker.close()
    assert wait_until(lambda: not processes()), processes()


def test_command_generates(saved_model, tmp_path):
    (tmp_path / "prompts.csv").write_text("prompt\nonce upon\n" + "x" * 65 + "\na time\n")
    command = [str(Path(sys.executable).with_name("headrace")), "run", "prompts.csv", "--handler", "vllm-engine"]
    command += ["--model", saved_model, "--output", "answers.jsonl", "--dead-letters", "failed.jsonl"]
    engine_args, structure = json.dumps(ENGINE_ARGS | {"max_model_len": 64}), json.dumps({"choice": ["left", "right"]})
    command += ["--handler-arg", f"engine_args={engine_args}", "--inference-arg", f"structured_outputs={structure}"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    answers, failed = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("answers.jsonl", "failed.jsonl")
    )
    assert [one["prompt"] for one in answers] == ["once upon", "a time"], done.stderr
    assert {one["prediction"]["text"] for one in answers} <= {"left", "right"}
    assert len(failed) == 1
    assert "Traceback" not in done.stdout + done.stderr.replace("inference failed", "")
