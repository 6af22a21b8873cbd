"""Whichever process of a shared model dies, at any moment, no element is lost, doubled or wrongly blamed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter

import pytest

pytestmark = pytest.mark.large

WORKERS = 3
DEEDS = 12
MANY = 10**6
KINDS = ["manager", "fork_servers", "hosts", "worker", "loader", "machine's fork_servers", "machine's hosts"]


class Outsider:
    """Kills those that have to do with the model, one after the other.

    A batch, or a load, may be its victim only once: of what dies twice nobody could say that it is innocent. So between
    its deeds it waits until every worker has finished two more bundles.
    """

    def __init__(self, machine, census, spec, randomness, wait_until):
        self._machine = machine
        self._census = census
        self._spec = spec
        self._random = randomness
        self._wait_until = wait_until
        self.killed = []
        self.deeds = Counter()

    def run(self, deeds):
        self._settle()
        while self.deeds.total() < deeds:
            time.sleep(self._random.uniform(0, 0.01))
            deed = self._random.choice(KINDS)
            if self._commit(deed):
                self.deeds[deed] += 1
                self._settle()

    def _settle(self):
        """Waits until the living workers have finished two more bundles."""
        before = {number: self._machine.bundles(number) for number in self._living()}
        done = self._wait_until(
            lambda: all(self._machine.bundles(n) >= before[n] + 2 or self._failed(n) for n in before), 60
        )
        assert done, (dict(self.deeds), self._machine.stderr()[-3000:])
        assert not any(map(self._failed, before)), (dict(self.deeds), self._machine.stderr()[-3000:])

    def _living(self):
        return [n for n, worker in enumerate(self._machine.workers) if worker.pid not in self.killed]

    def _failed(self, number):
        return self._machine.workers[number].poll() is not None

    def _commit(self, deed):
        """Returns whether there was a process to kill."""
        if deed == "worker":
            return self._replace_worker()
        if deed == "loader":
            return self._disturb_load()
        victims = managers = self._census.managers()
        if deed != "manager":
            owners = managers if "machine" in deed else [self._machine.workers[n].pid for n in self._living()]
            victims = [victim for owner in owners for victim in getattr(self._census, deed.split()[-1])(owner)]
        kill(*victims)
        return bool(victims)

    def _replace_worker(self):
        victim = self._machine.workers[self._random.choice(self._living())]
        self.killed.append(victim.pid)
        kill(victim.pid)
        self._machine.start(self._spec, workers=1, bundles=MANY)
        return True

    def _disturb_load(self):
        """With its manager gone, a model is loaded anew for the next worker, or at once for all; not undisturbed."""
        loads = len(self._machine.notes("load"))
        kill(*self._census.managers())
        self._replace_worker()
        assert self._wait_until(lambda: len(self._machine.notes("load")) > loads), self._machine.stderr()[-3000:]
        kill(*(host for manager in self._census.managers() for host in self._census.hosts(manager)))
        return True


def kill(*processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def expected(element, program):
    return [element, "ValueError('refused')" if element % program.REFUSED == 0 else 2 * element]


@pytest.mark.parametrize("kind", ["mapped", "timeout", "copies"])
def test_scheduled_kills_lose_double_or_blame_no_element(machine, census, seed, wait_until, kind):
    spec = machine.spec(kind, "Refusing")
    outsider = Outsider(machine, census, spec, random.Random(seed), wait_until)
    machine.start(spec, workers=WORKERS, bundles=MANY)
    outsider.run(DEEDS)
    (machine.folder / "enough").touch()
    for number, worker in enumerate(machine.workers):
        code = worker.wait(120)
        assert code == (-signal.SIGKILL if worker.pid in outsider.killed else 0), machine.stderr()[-3000:]
        outcomes = machine.result(number)
        first = machine.elements(number).start
        assert outcomes == [expected(n, machine.program) for n in range(first, first + len(outcomes))]
    print(dict(outsider.deeds))
    machine.workers.clear()
    machine.assert_vacated_by_the_next(machine.spec(kind))
