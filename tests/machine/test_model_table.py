"""Models that a client loads for all: who is asked, and who is next."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.hosts.host import Exported
from headrace.ipc.codec import encode
from headrace.ipc.weights_file import attach, export


def a_list(toy):
    toy.model = ["a", "model"]
    return os.getpid()


class LoadingHere:
    """What a client does that loads the model itself; waits for ``go``, if given, in between."""

    def __init__(self, value=("made", "here"), reason="", go=None):
        self.value = value
        self.reason = reason
        self.go = go
        self.begun = threading.Event()
        self.times = 0

    def __call__(self):
        self.times += 1
        self.begun.set()
        if self.go is not None:
            assert self.go.wait(60)
        message = encode(("done", None), [])
        answer = bytearray(message.nbytes)
        message.write(memoryview(answer))
        if self.reason:
            return Exported(bytes(answer), reason=self.reason), []
        files, layout = export(list(self.value), destroys=False)
        return Exported(bytes(answer), layout), files


def take(lease, here=None):
    """The model, mapped; the client offers to load it ``here``."""
    grant, files = lease.take(here)
    model = attach(files[1:], grant.layout) if files else None
    for file in files:
        os.close(file)
    return model


@pytest.fixture
def loading_here(close_later):
    """Makes what a client does that loads, and closes its files."""
    made = []

    def make(*args, **options):
        made.append(Closing(*args, **options))
        return made[-1]

    class Closing(LoadingHere):
        files = ()

        def __call__(self):
            exported, self.files = super().__call__()
            return exported, self.files

    yield make
    for one in made:
        for file in one.files:
            os.close(file)


def test_a_client_that_offers_it_loads_for_all(managers, lease_of, loading_here, wait_until):
    first, second = loading_here(go=threading.Event()), loading_here()
    with ThreadPoolExecutor(2) as pool:
        loads = pool.submit(take, lease_of(a_list), first)
        assert first.begun.wait(60)
        waits = pool.submit(take, lease_of(a_list), second)
        assert wait_until(lambda: managers.models()["key"]["clients"] == 2)
        first.go.set()
        assert loads.result() == waits.result() == ["made", "here"]
    assert (first.times, second.times) == (1, 0)
    assert take(lease_of(a_list)) == ["made", "here"]
    assert managers.models()["key"]["hosts"] == []


def test_a_client_that_ends_while_it_loads_is_followed_by_the_next(managers, lease_of, loading_here, wait_until):
    class EndsError(Exception):
        pass

    def ends():
        assert wait_until(lambda: managers.models()["key"]["clients"] == 2)
        raise EndsError

    first, second = lease_of(a_list), lease_of(a_list)
    begun, here = threading.Event(), loading_here()
    with ThreadPoolExecutor(2) as pool:
        fails = pool.submit(first.take, lambda: (begun.set(), ends()))
        assert begun.wait(60)
        loads = pool.submit(take, second, here)
        with pytest.raises(EndsError):
            fails.result()
        assert loads.result() == ["made", "here"]


def test_a_model_that_a_client_cannot_export_lives_in_a_host(managers, lease_of, loading_here):
    here = loading_here(reason="it is of clay")
    grant, files = lease_of(a_list).take(here)
    assert (grant.layout, grant.reason, files) == (None, "it is of clay", [])
    assert len(managers.models()["key"]["hosts"]) == 1
    assert here.times == 1
