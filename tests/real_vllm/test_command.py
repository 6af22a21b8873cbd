"""The command generates with vLLM's engine, and leaves no process behind: tests/conftest.py looks for one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ENGINE_ARGS = {"max_model_len": 64, "enforce_eager": True, "kv_cache_memory_bytes": 1 << 27}
CHOICE = {"choice": ["left", "right"]}


def test_command_generates(saved_model, tmp_path):
    (tmp_path / "prompts.csv").write_text("prompt\nonce upon\n" + "x" * 65 + "\na time\n")
    command = [str(Path(sys.executable).with_name("headrace")), "run", "prompts.csv", "--handler", "vllm-engine"]
    command += ["--model", saved_model, "--output", "answers.jsonl", "--dead-letters", "failed.jsonl"]
    command += ["--handler-arg", f"engine_args={json.dumps(ENGINE_ARGS)}"]
    command += ["--inference-arg", f"structured_outputs={json.dumps(CHOICE)}"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    answers, failed = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("answers.jsonl", "failed.jsonl")
    )
    assert [one["prompt"] for one in answers] == ["once upon", "a time"], done.stderr
    assert {one["prediction"]["text"] for one in answers} <= {"left", "right"}
    assert len(failed) == 1
    assert "Traceback" not in done.stdout + done.stderr.replace("inference failed", "")
