"""How much of an endpoint's quota is used, and how many requests are refused, when nobody says what the quota is."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference import base
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from elsewhere.quota_server import LATENCY_SECS
from goals import Goal, find
from measure import BEAM, HEADRACE

import headrace

TITLE = "An endpoint with a quota, on this machine"

ABOUT = f"""\
A server in a process of its own answers each request after {LATENCY_SECS * 1e3:.0f} ms, and refuses those beyond its
quota (a token bucket that holds a tenth of a second's) with 429, without Retry-After. Requests have one element. *Of
the ideal* is the rate of accepted requests, from the first request to the last answer, divided by the quota; a run of
Headrace takes about half a minute at the ideal rate, one of Beam ten seconds. Beam's `RemoteModelHandler` runs with its
defaults, on the FnApiRunner with one thread."""

_QUOTAS = (1000, 200)
_SECS = {HEADRACE: 30, BEAM: 10}
_BEAMS_RATE = 1 / LATENCY_SECS
_ASYNC, _THREADS = f"{HEADRACE}, async", f"{HEADRACE}, threads"

GOALS = [
    goal
    for quota in _QUOTAS
    for side in (_ASYNC, _THREADS)
    for goal in (
        Goal(
            f"Quota of {quota}/s, {side}: of the ideal",
            lambda results, key=f"{quota}/s, {side}": [share for share, _ in find(results, key)],
            at_least=0.95,
        ),
        Goal(
            f"Quota of {quota}/s, {side}: refused",
            lambda results, key=f"{quota}/s, {side}": [refused for _, refused in find(results, key)],
            at_most=0.02,
        ),
    )
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - needs no files
    """One row for each quota and side."""
    for quota in _QUOTAS[-1:] if quick else _QUOTAS:
        for side, run in {_ASYNC: predict_async, _THREADS: predict_on_threads, BEAM: run_beam}.items():
            seconds = 1 if quick else _SECS[BEAM if side == BEAM else HEADRACE]
            count = int(seconds * (min(quota, _BEAMS_RATE) if side == BEAM else quota))
            runs = [measure(run, quota, count) for _ in range(1 if side == BEAM else repeats)]
            shares, refused = (sorted(each) for each in zip(*runs, strict=True))
            middle = len(runs) // 2
            yield {
                "requests": f"{quota}/s, {side}",
                "of the ideal": f"{shares[middle]:.3f} ({shares[0]:.3f} to {shares[-1]:.3f})",
                "refused": f"{refused[middle]:.2%} ({refused[0]:.2%} to {refused[-1]:.2%})",
                "runs": runs,
            }


def measure(run: Callable[[int, int], Sequence[int]], quota: float, count: int) -> tuple[float, float]:
    """The share of the quota that is used, and that of the requests that is refused."""
    with serving(quota) as port:
        if sorted(run(port, count)) != [2 * n for n in range(count)]:
            raise AssertionError("predictions are wrong or missing")
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", "/")
            counts = json.load(connection.getresponse())
    seconds = counts["last"] - counts["first"]
    return counts["accepted"] / seconds / quota, counts["refused"] / (counts["accepted"] + counts["refused"])


@contextmanager
def serving(quota: float) -> Iterator[int]:
    """The port of a new server."""
    command = [sys.executable, "-m", "elsewhere.quota_server", str(quota)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


class RefusedError(Exception):
    """As clients raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


def ask(connections: threading.local, port: int, batch: Sequence[int]) -> list[int]:
    """Sends a request over this thread's connection."""
    connection = getattr(connections, "own", None)
    if connection is None:
        connection = connections.own = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/", json.dumps(list(batch)))
    answer = connection.getresponse()
    found: list[int] = json.load(answer)
    if answer.status != 200:
        raise RefusedError(answer.status)
    return found


class _Threads(headrace.RemoteModelHandler[int, int, threading.local]):
    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    def create_client(self) -> threading.local:
        return threading.local()

    def request(self, batch: Sequence[int], model: threading.local, inference_args: Any = None) -> list[int]:
        return ask(model, self.port, batch)

    def batch_elements_kwargs(self) -> dict[str, int]:
        return {"max_batch_size": 1}


class Connections:
    """Idle connections to a server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, batch: Sequence[int]) -> list[int]:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        data = json.dumps(list(batch)).encode()
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        head = (await reader.readuntil(b"\r\n\r\n")).split()
        body = await reader.readexactly(int(head[-1]))
        self._idle.append((reader, writer))
        if int(head[1]) != 200:
            raise RefusedError(int(head[1]))
        return json.loads(body)

    async def aclose(self) -> None:
        for _, writer in self._idle:
            writer.close()


class _Async(_Threads):
    async def create_client(self) -> Connections:
        return Connections(self.port)

    async def request(self, batch: Sequence[int], model: Connections, inference_args: Any = None) -> list[int]:
        return await model.ask(batch)


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


def predict_async(port: int, count: int) -> list[int]:
    return list(headrace.predict(_Async(port), range(count)))


def predict_on_threads(port: int, count: int) -> list[int]:
    return list(headrace.predict(_Threads(port), range(count)))


_found: list[int] = []


def run_beam(port: int, count: int) -> list[int]:
    _found.clear()
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions()) as pipeline:
        _ = pipeline | beam.Create(range(count), reshuffle=False) | base.RunInference(_Beams(port)) | beam.Map(_keep)
    return list(_found)


def _keep(prediction: int) -> None:
    _found.append(prediction)
