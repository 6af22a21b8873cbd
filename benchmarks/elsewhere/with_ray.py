"""Ray Data's HTTP processor asks the quota server, by the Python of an environment that has Ray and not Headrace.

``python elsewhere/with_ray.py PORT COUNT WORKERS [QPS]`` prints how many answers were right, and Ray's error, as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from typing import Any

import ray
from ray.data.llm import HttpRequestProcessorConfig, HttpRequestStageConfig, build_processor

_RETRIES = 10


def main(port: int, count: int, workers: int, qps: int | None = None) -> None:
    """Asks for the doubles of as many numbers, and counts."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:  # short: sockets
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, _temp_dir=folder)
        found = ask(port, count, workers, qps)
        ray.shutdown()  # it prints to stdout, too
    print(json.dumps(found), flush=True)


def ask(port: int, count: int, workers: int, qps: int | None) -> dict[str, Any]:
    """Runs the processor."""
    ray.data.DataContext.get_current().wait_for_min_actors_s = 300  # else those that start later leave quota unused
    config = HttpRequestProcessorConfig(
        url=f"http://127.0.0.1:{port}/",
        concurrency=(workers, workers),
        qps=qps,
        max_retries=_RETRIES,
        http_request_stage=HttpRequestStageConfig(num_cpus=0.01),  # a machine has few cores, a worker mostly waits
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {"payload": [row["id"]]},
        postprocess=lambda row: {"id": row["id"], "answer": row["http_response"][0]},
    )
    rows = ray.data.range(count, override_num_blocks=workers).materialize()
    found: dict[str, Any] = {"right": 0, "error": ""}
    try:
        answers = processor(rows).take_all()
        found["right"] = len({row["id"] for row in answers if row["answer"] == 2 * row["id"]})
    except Exception as error:  # one request that is refused too often ends the job
        lines = [line.strip() for line in str(error).splitlines()]
        found["error"] = next((line for line in lines if line.startswith("RuntimeError: ")), repr(error))
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
