"""Ray Data's HTTP processor as sides of the workload ``remote``; it has an environment of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from elsewhere.quota_server import LATENCY_SECS
from peers import python_of

RAY = "Ray Data"
BY_WORKER = 4 / LATENCY_SECS
"""Requests a second of one worker: Ray gives it four batches at once, whose requests follow each other."""

ABOUT = f"""\
{RAY}'s is the HTTP processor of `ray.data.llm` 2.60, in an environment of its own (`make ray`) that has Ray without its
extra `llm`: this processor needs nothing of it but aiohttp and pydantic. It has `max_retries=10` (with the default, 0,
the first refused request ends the job) and as many blocks of rows as workers, and all workers are ready before the
first request. A worker sends up to four requests at once, one for each of four batches of 64, so it makes at most
{BY_WORKER:.0f} requests a second. *Told the quota* has `qps=` the quota, as Ray's documentation has it, and as many
workers as this quota and this latency need; the others have no `qps`."""

_ROOT = Path(__file__).parents[2]
_MANY = math.ceil(1000 / BY_WORKER)
_LIMIT_SECS = 600


def sides(quota: int) -> dict[str, Callable[[int, int], int]]:
    """By their names; none, with a line on standard error, if there is no environment."""
    python = python_of("ray")
    if python is None:
        return {}
    enough = math.ceil(quota / BY_WORKER)
    return {
        RAY: partial(ask, python, workers=1),
        f"{RAY}, {_MANY} workers": partial(ask, python, workers=_MANY),
        f"{RAY}, told the quota": partial(ask, python, workers=enough, qps=quota),
    }


def ask(python: Path, port: int, count: int, workers: int, qps: int | None = None) -> int:
    """How many answers were right; what Ray raised goes to standard error."""
    program = str(_ROOT / "benchmarks/elsewhere/with_ray.py")
    command = [str(python), program, *map(str, (port, count, workers)), *([str(qps)] if qps else [])]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECS, env=environment)
    if done.returncode:
        raise RuntimeError(f"{RAY} ended with {done.returncode}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["error"]:
        print(f"{RAY}, workers: {workers}; {found['error']}", file=sys.stderr, flush=True)
    return int(found["right"])
