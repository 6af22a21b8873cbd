"""Schedules of faults, from elements and from outside: each element has one outcome, its own, and nothing is left."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from unittest import mock

import _minefield as minefield
import _schedule as schedules
import cloudpickle

from headrace import SKIP, Failure, KeyedModelHandler, KeyModelMapping
from headrace.core.errors import PredictionCountError
from headrace.core.result import Skipped, Stage
from headrace.machine.status import clean, machine_status
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import FakeDevice
from waiting import wait_until

sys.path.append(str(Path(__file__).parents[2] / "faults"))

from census import TOKEN, Census

ROUND = 8
_LONGEST_SECS = 120
"""Many times what any schedule takes: then something waits that nobody wakes."""
_TO_THE_END_SECS = 15


def run(seed: int, cases: int) -> None:
    """Plays so many schedules; the first that goes wrong is shown."""
    for number in range(cases):
        schedule = schedules.draw(random.Random(f"{seed} {number}"))
        with _environment() as (census, log):
            try:
                play(schedule, census, random.Random(seed + number))
            except BaseException as error:
                print(f"Schedule {number} of seed {seed}: {schedule}", *log, sep="\n", file=sys.stderr)
                raise AssertionError(f"schedule {number} of seed {seed} went wrong") from error


def play(schedule, census, randomness) -> None:
    spec = specification(schedule)
    outsider = Outsider(census, schedule.deeds, randomness)
    threads = [Thread(spec, schedule, number, outsider) for number in range(len(schedule.threads))]
    for thread in threads:
        thread.start()
    outsider.run(threads)
    deadline = time.monotonic() + _LONGEST_SECS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(all_threads=True)
        raise AssertionError(f"after {_LONGEST_SECS} s it goes on")
    errors = [thread.error for thread in threads if thread.error is not None]
    if errors:
        raise errors[0]
    for thread in threads:
        check(schedule, thread.elements, thread.outcomes)


def specification(schedule):
    faults, device = schedule.faults_of(Stage.INFERENCE), FakeDevice()
    options = {"large_model": True} if schedule.placement.startswith("mapped") else {}
    if schedule.placement.startswith("copies"):
        options = {"model_copies": 2}
    handlers = [
        minefield.Minefield(faults, device, schedule.crowd, schedule.room, **options)
        for _ in range(max(1, schedule.keys))
    ]
    handler = handlers[0]
    if schedule.keys == 1:
        handler = KeyedModelHandler(handler)
    elif schedule.keys:
        handler = KeyedModelHandler([KeyModelMapping([f"key {n}"], one) for n, one in enumerate(handlers)])
    for index in reversed(range(schedule.preprocessing)):  # the one that is added last runs first
        handler = handler.with_preprocess_fn(minefield.Mine(schedule.faults_of(Stage.PREPROCESSING, index), device))
    for index in range(schedule.postprocessing):
        handler = handler.with_postprocess_fn(minefield.Mine(schedule.faults_of(Stage.POSTPROCESSING, index), device))
    request = InferenceRequest(batching=schedule.batching, timeout_secs=schedule.timeout, isolate=schedule.is_isolated)
    return catching(prepare(handler, request), Exception)


class Thread(threading.Thread):
    """Takes its elements through a worker of its own, and then others, until the outsider has done what it will."""

    def __init__(self, spec, schedule, number, outsider):
        super().__init__(daemon=True, name=f"fuzz {number}")
        self._spec = pickle.loads(pickle.dumps(spec))
        self._schedule = schedule
        self._sizes = deque(schedule.threads[number])
        self._outsider = outsider
        first = number * schedules.APART
        self.elements = range(first, first)
        self.outcomes = []
        self.bundles = 0
        self.error = None

    def run(self):
        try:
            with contextlib.closing(open_worker(self._spec)) as worker:
                while self._sizes or not self._outsider.is_done.is_set():
                    self._run_bundle(worker.bundle(FanOut()), self._sizes.popleft() if self._sizes else 3)
        except BaseException as error:
            self.error = error

    def _run_bundle(self, bundle, size):
        numbers = range(self.elements.stop, self.elements.stop + size)
        for element, tag in self._elements(numbers):
            self.outcomes += bundle.add(element, tag)
        self.outcomes += bundle.finish()
        self.elements = range(self.elements.start, numbers.stop)
        self.bundles += 1

    def _elements(self, numbers):
        """Each with its tag, its first number."""
        if self._schedule.batching.columnar:
            step = 1 + len(numbers) % 4
            return [(list(numbers[at : at + step]), numbers[at]) for at in range(0, len(numbers), step)]
        if self._schedule.keys:
            return [((self._schedule.key(n), n), n) for n in numbers]
        return [(n, n) for n in numbers]


class Outsider:
    """Kills those that it is to kill, each at some moment.

    A batch, or a load, may be its victim only once: of what dies twice nobody could say that it is innocent. So between
    two deeds every thread finishes a bundle that was begun after the first.
    """

    def __init__(self, census, deeds, randomness):
        self._census = census
        self._deeds = deque(deeds)
        self._random = randomness
        self.is_done = threading.Event()
        if not deeds:
            self.is_done.set()

    def run(self, threads):
        """Until all is done, or a thread has failed, or it takes too long."""
        deadline = time.monotonic() + _LONGEST_SECS
        finished = [-1] * len(threads)
        while self._deeds and all(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            if all(one.bundles > before + 1 for one, before in zip(threads, finished, strict=True)):
                time.sleep(self._random.uniform(0, 0.05))
                self._kill(self._deeds.popleft())
                finished = [thread.bundles for thread in threads]
            time.sleep(0.001)
        self.is_done.set()

    def _kill(self, whom):
        managers = self._census.managers()
        owners = [os.getpid(), *managers]
        victims = (
            managers if whom == "managers" else [one for pid in owners for one in getattr(self._census, whom)(pid)]
        )
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)


def check(schedule, elements, outcomes) -> None:
    """Each element, or row, has one outcome: its prediction, or the failure that it deserves."""
    found = {}
    for outcome in outcomes:
        for row, result in _rows_of(outcome):
            assert row not in found, f"{row} has two outcomes: {found[row]} and {result}"
            found[row] = result
    assert not (lost := set(elements) - found.keys()), f"without any outcome: {sorted(lost)}"
    assert not (invented := found.keys() - set(elements)), f"invented: {sorted(invented)}"
    for row, result in found.items():
        _check_one(schedule, row, result)


def _check_one(schedule, row, result) -> None:
    fault = schedule.faults.get(row)
    if isinstance(result, Failure):
        told = (type(result.error), result.stage, result.index)
        deserved = fault and (minefield.DESERTS.get(fault.name), fault.stage, fault.index)
        shared = _is_of_a_miscount(schedule, row) and told == (PredictionCountError, Stage.INFERENCE, 0)
        assert told == deserved or shared, f"{row} deserves {fault}, and has {result!r}"
    elif fault and fault.name == minefield.SKIPPED:
        assert result is SKIP, f"{row} is to be skipped, and has {result!r}"
    else:
        assert not fault or fault.name not in minefield.DESERTS, f"{row} has a prediction, though {fault}"
        assert result == 2 * row, f"{row} has {result!r}"


def _is_of_a_miscount(schedule, row) -> bool:
    """Whether the model may have given a wrong number of predictions for a batch that it was in."""
    if row % schedules.APART >= sum(schedule.threads[row // schedules.APART]):
        return False
    near = schedule.neighbours(row)
    return any(n in schedule.faults and schedule.faults[n].name == minefield.MISCOUNT for n in near)


def _rows_of(outcome):
    """Pairs of a number and what has become of it: its prediction, a Failure, or SKIP."""
    if isinstance(outcome, Failure):
        of = minefield.number(outcome.element)
        return [(row, outcome) for row in (of if isinstance(of, list) else [of])]
    if isinstance(outcome, Skipped):
        return [(tag, SKIP) for tag in outcome.tags]
    pairs = []
    for value, tag in zip(outcome.values, outcome.tags, strict=True):
        result = value[1] if isinstance(value, tuple) and not hasattr(value, "inference") else value
        if isinstance(result.example, list):
            pairs += zip(result.example, result.inference, strict=True)
        else:
            assert tag == result.example, f"{result.example} came out as {tag}"
            pairs.append((tag, result.inference))
    return pairs


@contextlib.contextmanager
def _environment():
    """A census of what a schedule starts and leaves, and what it logs, in places of its own."""
    folder = Path(tempfile.mkdtemp(prefix="hr", dir="/tmp"))  # a socket's address is short
    (temporary := folder / "tmp").mkdir()
    census, log, modules = Census(temporary), _Log(), [minefield, schedules]
    settings = {"TMPDIR": str(temporary), "HEADRACE_RUNTIME_DIR": str(folder / "run"), TOKEN: census.token}
    with mock.patch.dict(os.environ, settings), mock.patch.object(tempfile, "tempdir", str(temporary)):
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            with log.listening():
                yield census, log.lines
                _check_that_nothing_is_left(census, folder / "run")
        finally:
            census.kill_all()
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
            shutil.rmtree(folder, ignore_errors=True)


def _check_that_nothing_is_left(census, runtime: Path) -> None:
    gc.collect()
    assert wait_until(lambda: not census.leftovers(), _TO_THE_END_SECS), census.leftovers()
    if runtime.exists():  # of a manager that was killed, and that nobody had to replace
        clean(machine_status())
        assert not runtime.exists(), list(runtime.iterdir())


class _Log(logging.Handler):
    """Keeps the last lines, for the case that something goes wrong."""

    def __init__(self):
        super().__init__()
        self.lines = deque(maxlen=200)

    def emit(self, record):
        self.lines.append(f"{record.relativeCreated:9.0f} {record.levelname} {record.name}: {record.getMessage()}")

    @contextlib.contextmanager
    def listening(self):
        """What Headrace logs comes here only."""
        logger = logging.getLogger("headrace")
        level = logger.level
        logger.setLevel(logging.DEBUG)
        try:
            with mock.patch.multiple(logger, handlers=[self], propagate=False):
                yield
        finally:
            logger.setLevel(level)
