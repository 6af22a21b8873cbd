"""Models that a client loads for all: who is asked, and who is next."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.hosts.host import Exported
from headrace.ipc.codec import encode
from headrace.ipc.weights_file import export
from toy_hosts import mapped


def a_list(toy):
    toy.model = ["a", "model"]
    return os.getpid()


class LoadingHere:
    """What a client does that loads the model itself; waits for ``go`` in between."""

    def __init__(self, reason=""):
        self.reason = reason
        self.begun, self.go = threading.Event(), threading.Event()
        self.times = 0
        self.files = []

    def __call__(self):
        self.times += 1
        self.begun.set()
        assert self.go.wait(60)
        answer = b"".join(encode(("done", None), []).content())
        if self.reason:
            return Exported(answer, reason=self.reason), []
        self.files, layout = export(["made", "here"], destroys=False)
        return Exported(answer, layout), self.files


@pytest.fixture
def loading_here():
    """Makes what a client does that loads, and closes its files."""
    made = []
    yield lambda reason="": made.append(LoadingHere(reason)) or made[-1]
    for one in made:
        for file in one.files:
            os.close(file)


def test_a_client_that_offers_it_loads_for_all(managers, lease_of, loading_here, wait_until):
    first, second = loading_here(), loading_here()
    with ThreadPoolExecutor(2) as pool:
        loads = pool.submit(mapped, lease_of(a_list), first)
        assert first.begun.wait(60)
        waits = pool.submit(mapped, lease_of(a_list), second)
        assert wait_until(lambda: managers.models()["key"]["clients"] == 2)
        first.go.set()
        assert loads.result() == waits.result() == ["made", "here"]
    assert (first.times, second.times) == (1, 0)
    assert mapped(lease_of(a_list)) == ["made", "here"]
    assert managers.models()["key"]["hosts"] == []


def test_a_client_that_ends_while_it_loads_is_followed_by_the_next(managers, lease_of, loading_here, wait_until):
    class EndsError(Exception):
        pass

    def ends():
        assert wait_until(lambda: managers.models()["key"]["clients"] == 2)
        raise EndsError

    first, second = lease_of(a_list), lease_of(a_list)
    begun, here = threading.Event(), loading_here()
    here.go.set()
    with ThreadPoolExecutor(2) as pool:
        fails = pool.submit(first.take, lambda: (begun.set(), ends()))
        assert begun.wait(60)
        loads = pool.submit(mapped, second, here)
        with pytest.raises(EndsError):
            fails.result()
        assert loads.result() == ["made", "here"]


def test_a_model_that_a_client_cannot_export_lives_in_a_host(managers, lease_of, loading_here):
    here = loading_here("it is of clay")
    here.go.set()
    grant, files = lease_of(a_list).take(here)
    assert (grant.layout, grant.reason, files) == (None, "it is of clay", [])
    assert len(managers.models()["key"]["hosts"]) == 1
    assert here.times == 1
