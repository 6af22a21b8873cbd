"""Loads of shared models: errors, deaths, repetitions, finalizers."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import Failure, KeyedModelHandler, KeyModelMapping
from headrace.core.events import HostLost, ModelLoaded
from headrace.machine.status import machine_status

HERE = os.getpid()


@pytest.mark.large
@pytest.mark.parametrize("mappable", [None, False], ids=["worker", "loader"])
def test_model_that_does_not_unpickle_where_it_was_loaded_lives_in_a_host(home, mappable):
    handler = home.handler(home.unreadable, large_model=True, mappable=mappable)
    [(value, loader, host)], events = home.run(home.spec(handler))
    assert value == 2
    assert loader == host != HERE
    assert len(home.noted("loaded")) == 2  # to be exported in vain, and to be used
    [line] = home.logged()
    assert "since it does not unpickle (" in line
    assert "no number" in line
    assert len(events.of(ModelLoaded)) == 1


def test_model_that_does_not_unpickle_here_is_an_error(home):
    here = HERE

    def unpickled(*parts):
        if os.getpid() == here:
            raise KeyError("not here")
        return parts

    class Local:
        def __reduce__(self):
            return unpickled, (1,)

    spec = home.spec(home.handler(lambda folder: Local(), large_model=True, mappable=False))
    with pytest.raises(KeyError, match="not here") as caught:
        home.open(spec)
    assert home.close()
    assert caught.value.__traceback__ is not None  # which keeps alive what its frames hold, though no share


KINDS = {
    "mapped": ({"large_model": True}, {}),
    "loaded by a host": ({"large_model": True, "mappable": False}, {}),
    "isolated": ({"large_model": True}, {"isolate": True}),
    "copies": ({"model_copies": 2}, {}),
}
each_kind = pytest.mark.parametrize(("options", "request_"), KINDS.values(), ids=KINDS.keys())
each_kind_with_hosts = pytest.mark.parametrize(("options", "request_"), list(KINDS.values())[1:], ids=list(KINDS)[1:])


@pytest.mark.parametrize("options", [{"large_model": True}, {"model_copies": 2}], ids=["by workers", "by hosts"])
def test_weights_that_are_mapped_from_a_file_are_mapped_from_there_everywhere(home, options):
    spec = home.spec(home.handler(home.from_file, **options))
    here, events = home.run(spec, [1, 2])
    [model] = [model for manager in machine_status().managers for model in manager.models]
    assert model.hosts or model.nbytes == 0
    there, _ = home.elsewhere(spec, [1, 2])
    assert [value for value, *_ in here] == [value for value, *_ in there] == [2, 4]
    assert len(home.noted("loaded")) == len(events.of(ModelLoaded)) == 1


@pytest.mark.large
@each_kind
def test_load_that_raises_is_an_error_at_once(home, options, request_):
    def refused(folder):
        raise ValueError("no model today")

    with pytest.raises(ValueError, match="no model today") as caught:
        home.open(home.spec(home.handler(refused, **options), Exception, **request_))
    if request_ or "large_model" not in options or "mappable" in options:  # it was raised in another process
        assert "in refused" in str(caught.value.__cause__)


@pytest.mark.large
def test_load_that_raises_a_timeout_of_its_own_is_no_lost_process(home):
    def refused(folder):
        (folder / f"tried-{os.getpid()}").touch()
        raise TimeoutError("no server")

    handler = home.handler(refused, large_model=True, mappable=False)
    with pytest.raises(TimeoutError, match="no server"):
        home.open(home.spec(handler, isolate=True))
    assert len(home.noted("tried")) == 1  # no host of its own has tried, too: its model would be shared with nobody


@pytest.mark.large
@each_kind_with_hosts
def test_load_that_dies_repeatedly_is_an_error(home, options, request_):
    handler = home.handler(lambda folder: os._exit(7), **options)
    with pytest.raises(Exception, match="while it was loading the model of Homely") as caught:
        home.open(home.spec(handler, **request_))
    assert type(caught.value).__name__ == "HostDiedError"


def test_load_that_dies_once_is_repeated(home):
    [(value, _, computing)], events = home.run(
        home.spec(home.handler(home.second_time, large_model=True, mappable=False))
    )
    assert (value, computing) == (2, HERE)
    assert [event.timed_out for event in events.of(HostLost)] == [False]
    assert len(events.of(ModelLoaded)) == 1


def test_worker_that_is_killed_while_it_loads_is_followed_by_one_that_waits(home, wait_until):
    model = home.Model

    def first_hangs(folder):
        while len(list(folder.glob("loaded-*"))) < 2:
            time.sleep(0.002)
        return model(folder)

    spec = home.spec(home.handler(first_hangs, large_model=True))
    loading = home.begin_elsewhere(spec)
    assert wait_until(lambda: home.noted("loaded") == [loading.pid])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(home.run, spec)
        assert wait_until(lambda: clients() == [2])
        loading.kill()
        [(value, loader, computing)], _ = waiting.result()
    assert (value, loader, computing) == (2, HERE, HERE)


def clients():
    """The numbers of clients of the machine's models."""
    managers = machine_status().managers
    return [model.clients for manager in managers for model in manager.models]


@pytest.mark.large
def test_load_by_key_that_dies_fails_only_its_elements(home):
    mappings = [
        KeyModelMapping(["a"], home.handler(lambda folder: os._exit(7), large_model=True, mappable=False)),
        KeyModelMapping(["b"], home.handler(large_model=True)),
    ]
    outcomes, events = home.run(home.spec(KeyedModelHandler(mappings), Exception), [("a", 1), ("b", 1)])
    [failure] = [one for one in outcomes if isinstance(one, Failure)]
    assert failure.element[0] == "a"
    assert "while it was loading" in str(failure.error)
    assert len(events.of(HostLost)) == 2
    assert len(events.of(ModelLoaded)) == 1


@pytest.mark.large
def test_load_that_hangs_is_killed(home):
    def hang(folder):
        while True:
            os.getpid()

    handler = home.handler(hang, large_model=True)
    with pytest.raises(TimeoutError, match=r"loading the model of Homely took longer than 0\.2 s"):
        home.open(home.spec(handler, timeout_secs=0.2))
    outcomes, events = home.run(home.spec(handler, Exception, timeout_secs=0.2))
    [failure] = outcomes
    assert isinstance(failure.error, TimeoutError)
    assert all(event.timed_out for event in events.of(HostLost))


@pytest.mark.large
@each_kind
def test_model_is_finalized_only_where_it_was_used(home, options, request_):
    outcomes, _ = home.run(home.spec(home.handler(**options), **request_), range(4))
    home.close()
    computing = {process for _, _, process in outcomes}
    assert computing <= set(home.noted("finalized"))
    if home.noted("loaded") == [HERE]:  # what was loaded was finalized as soon as it was mapped
        assert home.noted("finalized") == [HERE] * 2
    else:
        assert home.noted("loaded")[0] not in home.noted("finalized")
        assert 1 <= len(home.noted("finalized")) <= (2 if options.get("model_copies") else 1)
