"""An engine that does as a test says, and the handler that gives it requests."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import cloudpickle

from headrace import EngineModelHandler, predict
from http_endpoint import failures_among

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LONG_SECS = 3.0
"""A time limit that nothing exceeds here, on a busy machine neither, unless it hangs."""


class ToyEngine:
    """Doubles numbers, each after the others have had their turn. Notes what it is given, and what is taken back."""

    def __init__(self):
        self.given = []
        self.dropped = []
        self.in_flight = 0
        self.most = 0
        """How many have been in flight."""

    async def double(self, example, plus=0):
        self.given.append(example)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await self.turn(example)
            return 2 * example + plus
        except asyncio.CancelledError:
            self.dropped.append(example)
            raise
        finally:
            self.in_flight -= 1

    async def turn(self, example):
        await asyncio.sleep(0)


class ToyEngineHandler(EngineModelHandler):
    """Over one engine, that of the test's process, or a new one."""

    def __init__(self, engine=None, **options):
        super().__init__(**options)
        self.engine = engine

    def load_model(self):
        return self.engine or ToyEngine()

    async def submit(self, example, model, inference_args=None):
        if not isinstance(example, int):
            raise ValueError(f"no number: {example!r}")
        return await model.double(example, **(inference_args or {}))


class Engine(EngineModelHandler):
    """Does with each example what an asynchronous function says, which gets the engine, too: its process by default."""

    def __init__(self, act, load=os.getpid, **options):
        super().__init__(**options)
        self.act = act
        self.load = load

    def load_model(self):
        return self.load()

    async def submit(self, example, model, inference_args=None):
        return await self.act(example, model, **(inference_args or {}))


def outcomes_of(act, elements, load=os.getpid, **options):
    """What becomes of elements in a host, in order."""
    return list(predict(Engine(act, load), elements, isolate=True, on_failure="yield", **options))


def dead(outcomes):
    """The classes of errors, by element."""
    return {one.element: type(one.error) for one in failures_among(outcomes)}


async def double(example, engine, plus=0):
    return 2 * example + plus


async def where(example, engine):
    """The process that has loaded the engine, and this one."""
    return engine, os.getpid()


async def stuck(example, engine, which, how):
    """Hangs with one example: "holds the thread", or "answers nobody" any more."""
    if example == which and how == "holds the thread":
        time.sleep(1000)
    if example == which:
        engine.append("stuck")
    await asyncio.sleep(0)
    while engine:
        await asyncio.sleep(1000)
    return example


async def exists(path):
    while not path.exists():
        await asyncio.sleep(0.002)


def die(number=signal.SIGKILL):
    """Ends this process."""
    os.kill(os.getpid(), number)
    time.sleep(1000)  # the signal may reach another thread first
