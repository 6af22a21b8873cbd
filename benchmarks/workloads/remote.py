"""How much of an endpoint's quota is used, and how many requests are refused, when nobody says what the quota is."""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.ml.inference import base
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from elsewhere.asking import Async, OnThreads, ask
from elsewhere.quota_server import LATENCY_SECS
from goals import Goal, find
from measure import BEAM, HEADRACE

import headrace
from workloads import by_hand, remote_ray

TITLE = "An endpoint with a quota, on this machine"

ABOUT = f"""\
A server in a process of its own answers each request after {LATENCY_SECS * 1e3:.0f} ms, and refuses those beyond its
quota (a token bucket that holds a tenth of a second's) with 429, without Retry-After. Requests have one element. *Of
the ideal* is the number of right answers, divided by the quota and by the time from the first request to the last
answer. A run takes about half a minute at the ideal rate; those of sides that cannot reach it have fewer rows and take
ten seconds. The peers run once. *By hand* is a loop with a semaphore, which tries again 0.1 s after a refusal. Several
processes share a runtime directory, as the workers of a machine do; each has as many elements. Beam's
`RemoteModelHandler` runs with its defaults, on the FnApiRunner with one thread.

{remote_ray.ABOUT}"""

_HERE = Path(__file__).parents[1]
_QUOTAS = (1000, 200)
_ASYNC, _THREADS = f"{HEADRACE}, async", f"{HEADRACE}, threads"
_TWO, _FOUR = f"{HEADRACE}, 2 processes", f"{HEADRACE}, 4 processes"
_OURS = (_ASYNC, _THREADS, _TWO, _FOUR)
_BY_HAND = {f"{by_hand.BY_HAND}, {most} at once": most for most in by_hand.SEMAPHORES}
_SLOW = {
    BEAM: 1 / LATENCY_SECS,
    remote_ray.RAY: remote_ray.BY_WORKER,
    **{side: most / LATENCY_SECS for side, most in _BY_HAND.items()},
}
"""Sides that make at most so many requests a second."""

GOALS = [
    goal
    for quota in _QUOTAS
    for side in _OURS
    for goal in (
        Goal(
            f"Quota of {quota}/s, {side}: of the ideal",
            lambda results, key=f"{quota}/s, {side}": [share for share, *_ in find(results, key)],
            at_least=0.95,
        ),
        Goal(
            f"Quota of {quota}/s, {side}: refused",
            lambda results, key=f"{quota}/s, {side}": [refused for _, refused, *_ in find(results, key)],
            at_most=0.02,
        ),
    )
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - needs no files
    """One row for each quota and side."""
    for quota in _QUOTAS[-1:] if quick else _QUOTAS:
        for side, run in {**_SIDES, **remote_ray.sides(quota)}.items():
            most = _SLOW.get(side, quota)
            seconds = 1 if quick else 10 if most < quota else 30
            count = int(seconds * min(quota, most)) // 4 * 4
            runs = [measure(run, quota, count) for _ in range(repeats if side in _OURS else 1)]
            if side in _OURS and any(one.right < count for one in runs):
                raise AssertionError("predictions are wrong or missing")
            yield {
                "requests": f"{quota}/s, {side}",
                "of the ideal": _middle([one.share for one in runs], "{:.3f}"),
                "refused": _middle([one.refused for one in runs], "{:.2%}"),
                "rows answered": f"{min(one.right for one in runs):,} of {count:,}",
                "runs": runs,
            }


class Run(NamedTuple):
    """The share of the quota that is used, that of the requests that is refused, and how many rows were answered."""

    share: float
    refused: float
    right: int


def measure(run: Callable[[int, int], int], quota: float, count: int) -> Run:
    """Runs a side against a new server."""
    with serving(quota) as port:
        right = run(port, count)
        counts = counted(port)
    seconds = counts["last"] - counts["first"]
    refused = counts["refused"] / (counts["accepted"] + counts["refused"])
    return Run(right / seconds / quota, refused, right)


def _middle(figures: Sequence[float], form: str) -> str:
    median, *ends = (form.format(figure) for figure in (statistics.median(figures), min(figures), max(figures)))
    return f"{median} ({' to '.join(ends)})"


@contextmanager
def serving(*arguments: object, server: str = "quota_server") -> Iterator[int]:
    """The port of a new server of the folder elsewhere, and its arguments."""
    command = [sys.executable, "-m", f"elsewhere.{server}", *map(str, arguments)]
    with subprocess.Popen(command, cwd=_HERE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def counted(port: int) -> dict[str, Any]:
    """What the server has counted."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/")
        counts: dict[str, Any] = json.load(connection.getresponse())
        return counts


def run_processes(
    port: int, count: int, processes: int, patience_secs: int = 60, machines: int = 1, at_once: int | None = None
) -> int:
    """Has processes ask for ``count`` predictions; returns how many were right.

    Args:
        port: of the server.
        count: of all processes together.
        processes: how many.
        patience_secs: how long an outage may last.
        machines: on how many machines they are, which are runtime directories.
        at_once: asks by hand, with so many requests at once.
    """
    if at_once is not None:
        return int(by_hand.asked("asking", port, 0, count, patience_secs, at_once=at_once)[0])
    with tempfile.TemporaryDirectory(prefix="hr", dir="/tmp") as directory:
        path = os.pathsep.join([str(_HERE), str(Path(headrace.__file__).parents[1])])
        each = count // processes
        with ExitStack() as stack:
            workers = []
            for number in range(processes):
                arguments = port, number * each, each, patience_secs
                command = [sys.executable, "-m", "elsewhere.asking", *map(str, arguments)]
                own = {"HEADRACE_RUNTIME_DIR": f"{directory}/{number % machines}", "PYTHONPATH": path}
                worker = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **own}
                )
                workers.append(stack.enter_context(worker))
            for worker in workers:
                assert worker.stdout is not None
                worker.stdout.readline()
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write("go\n")
                worker.stdin.flush()
            return sum(int(worker.communicate()[0]) for worker in workers)


class _Beams(base.RemoteModelHandler):
    def __init__(self, port: int) -> None:
        super().__init__(namespace="benchmark")
        self.port = port

    def create_client(self) -> _Local:
        return _Local()

    def request(self, batch: Sequence[int], model: _Local, inference_args: Any = None) -> list[int]:
        return ask(model, self.port, batch)

    def batch_elements_kwargs(self) -> dict[str, int]:
        return {"max_batch_size": 1}


class _Local(threading.local):
    """Supports weak references, which Beam needs."""


def predict_async(port: int, count: int) -> int:
    return sum(one == 2 * place for place, one in enumerate(headrace.predict(Async(port), range(count))))


def predict_on_threads(port: int, count: int) -> int:
    return sum(one == 2 * place for place, one in enumerate(headrace.predict(OnThreads(port), range(count))))


_found: list[int] = []


def run_beam(port: int, count: int) -> int:
    _found.clear()
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions()) as pipeline:
        _ = pipeline | beam.Create(range(count), reshuffle=False) | base.RunInference(_Beams(port)) | beam.Map(_keep)
    return len(set(_found) & {2 * n for n in range(count)})


def _keep(prediction: int) -> None:
    _found.append(prediction)


_SIDES: dict[str, Callable[[int, int], int]] = {
    _ASYNC: predict_async,
    _THREADS: predict_on_threads,
    _TWO: partial(run_processes, processes=2),
    _FOUR: partial(run_processes, processes=4),
    **{side: partial(run_processes, processes=1, at_once=most) for side, most in _BY_HAND.items()},
    BEAM: run_beam,
}
