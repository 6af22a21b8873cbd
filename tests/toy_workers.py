"""Worker processes of a test: each opens a worker for the same transform, and runs the bundles that it is given."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys

import cloudpickle
import pytest

from headrace.core.result import Failure
from toys import Events, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])

_SCRIPT = """
import pickle, sys
spec, outcomes_of = pickle.load(sys.stdin.buffer)
from headrace.runtime.open_worker import open_worker
worker = None
while True:
    try:
        elements = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        worker = worker or open_worker(spec)
        outcomes = outcomes_of(worker, elements)
    except Exception as error:
        outcomes = error
    pickle.dump(outcomes, sys.stdout.buffer)
    sys.stdout.buffer.flush()
if worker is not None:
    worker.close()
"""


class Bundle:
    """What became of a bundle.

    Attributes:
        good: its predictions, sorted.
        dead: the classes of errors, by element.
        events: those that the worker reported.
    """

    def __init__(self, good, dead, events):
        self.good = good
        self.dead = dead
        self.events = events

    def of(self, kind):
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def outcomes_of(worker, elements):
    """What becomes of a bundle: what a ``Bundle`` is made of."""
    events = Events()
    found = run(worker, elements, events)
    dead = {one.element: type(one.error) for one in found if isinstance(one, Failure)}
    return sorted(one for one in found if not isinstance(one, Failure)), dead, list(events)


class WorkerProcess:
    """A process with one worker, opened for its first bundle."""

    def __init__(self, process, spec):
        self.process = process
        self.number = process.pid
        self._send(io.BytesIO(cloudpickle.dumps((spec, outcomes_of))).getvalue())

    def begin(self, elements):
        """Gives it a bundle."""
        self._send(pickle.dumps(list(elements)))

    def outcomes(self):
        """What became of the bundle that it was given first.

        Raises:
            Exception: what the worker raised.
        """
        found = pickle.load(self.process.stdout)
        if isinstance(found, Exception):
            raise found
        return Bundle(*found)

    def run(self, elements):
        """Gives it a bundle and waits."""
        self.begin(elements)
        return self.outcomes()

    def close(self):
        """Closes the worker; the process ends by itself."""
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def _send(self, content):
        self.process.stdin.write(content)
        self.process.stdin.flush()


@pytest.fixture
def worker_process(popen):
    """Starts a worker process for a spec."""

    def start(spec):
        process = popen([sys.executable, "-c", _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return WorkerProcess(process, spec)

    return start
