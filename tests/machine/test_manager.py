"""A manager that runs on a thread of the test: who gets which model, and when it goes."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.core.errors import HostStartError, ModelMemoryError
from headrace.hosts.host import Exported
from headrace.ipc.channel import Channel
from headrace.ipc.codec import decode, encode
from headrace.ipc.weights_file import attach, export
from headrace.machine import manager as manager_module
from headrace.machine import model_table
from headrace.machine.discovery import find_or_launch
from headrace.machine.lease import manager_name
from headrace.machine.manager import Manager
from headrace.machine.shared_model import SharedModel
from toy_hosts import a_list, mapped

GB = 10**9


def take(lease):
    grant, files = lease.take()
    model = attach(files[1:], grant.exported.layout) if files else None
    for file in files:
        os.close(file)
    return model, grant.is_first


def loader_of(lease):
    grant, files = lease.take()
    for file in files:
        os.close(file)
    return decode(memoryview(grant.exported.load_response), own=True).rows[0]


@pytest.fixture
def noted(tmp_path):
    """A way to load that leaves word of each load, and then waits until it may go on."""

    def load(toy, folder=str(tmp_path)):
        Path(folder, f"load-{os.getpid()}").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.002)
        if Path(folder, "fails").exists():
            raise ValueError("no")
        toy.model = "noted"

    load.all = lambda: [int(file.name.partition("-")[2]) for file in tmp_path.glob("load-*")]
    return load


def test_one_key_is_loaded_once_for_all(managers, lease_of):
    leases = [lease_of(a_list) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        models, firsts = zip(*pool.map(take, leases), strict=True)
    assert models == (["a", "model"],) * 4
    assert sorted(firsts) == [False, False, False, True]
    assert len(managers.all) == 1
    assert managers.models()["key"]["clients"] == 4


def test_a_model_is_released_with_its_last_client_and_loaded_for_the_next(managers, lease_of, wait_until):
    stays = lease_of(a_list, "another")
    take(stays)
    first, second = lease_of(a_list), lease_of(a_list)
    loader = loader_of(first)
    assert loader_of(second) == loader
    first.close()
    assert wait_until(lambda: managers.models()["key"]["clients"] == 1)
    assert loader_of(lease_of(a_list)) == loader
    second.close()
    assert wait_until(lambda: managers.models()["key"]["clients"] == 1)


def test_a_manager_exits_with_its_last_model(managers, lease_of, runtime):
    lease = lease_of(a_list)
    take(lease)
    assert sorted(file.name for file in runtime.iterdir()) == [manager_name() + ".lock", manager_name() + ".sock"]
    lease.close()
    managers.threads[0].join(60)
    assert not managers.threads[0].is_alive()
    assert not runtime.exists()
    assert take(lease_of(a_list)) == (["a", "model"], True)
    assert len(managers.all) == 2


def test_a_lingering_model_waits_for_the_next_client(managers, clock, lease_of, wait_until):
    first = lease_of(a_list, linger_secs=60)
    assert take(first)[1]
    first.close()
    assert wait_until(lambda: managers.models()["key"]["clients"] == 0)
    clock.advance(59)
    second = lease_of(a_list)
    assert take(second) == (["a", "model"], False)
    second.close()
    assert wait_until(lambda: managers.models()["key"]["clients"] == 0)
    clock.advance(59)
    other = lease_of(a_list, "other")
    take(other)
    assert set(managers.models()) == {"key", "other"}
    clock.advance(2)
    other.close()  # has the manager look at its clock
    managers.threads[0].join(60)
    assert not managers.threads[0].is_alive()


def test_a_load_that_fails_fails_for_all_who_wait_and_not_for_the_next(managers, lease_of, noted, tmp_path, wait_until):
    (tmp_path / "fails").touch()
    leases = [lease_of(noted) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(lease.take) for lease in leases]
        assert wait_until(lambda: managers.all and managers.models().get("key", {}).get("clients") == 3)
        (tmp_path / "go").touch()
        shares = [answer.result()[0] for answer in answers]
    load_response = {str(decode(memoryview(grant.exported.load_response), own=True).head) for grant in shares}
    assert load_response == {"('raised', \"ValueError('no')\")"}
    assert [grant.exported.layout for grant in shares] == [None] * 3
    (tmp_path / "fails").unlink()
    assert take(leases[0]) == ("noted", True)
    assert take(leases[1]) == ("noted", False)
    assert len(noted.all()) == 2


@pytest.mark.parametrize("linger_secs", [0, 60])
def test_a_load_without_waiting_clients_is_given_up(managers, lease_of, noted, linger_secs, wait_until, marked):
    stays, leaves = lease_of(a_list, "another"), lease_of(noted, linger_secs=linger_secs)
    take(stays)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(leaves.take)
        assert wait_until(noted.all)
        [loader] = noted.all()
        assert loader in marked()
        leaves.close()
        with pytest.raises(HostStartError, match="no longer wants"):
            answer.result()
    assert wait_until(lambda: loader not in marked())
    assert set(managers.models()) == {"another"}


def test_a_half_written_weights_file_goes_to_no_client(managers, lease_of, tmp_path, wait_until):
    """The loader is killed while it exports: with that, its model and its file are gone."""

    class Slow:
        def __reduce__(self):
            Path(folder, "exporting").write_text(str(os.getpid()))
            while not Path(folder, "go").exists():
                time.sleep(0.002)
            return list, ()

    folder = str(tmp_path)

    def slow(toy):
        toy.model = [bytearray(1 << 20), Slow()]

    leases = [lease_of(slow) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(lease.take) for lease in leases]
        assert wait_until(lambda: (tmp_path / "exporting").exists() and (tmp_path / "exporting").read_text())
        assert wait_until(lambda: managers.models()["key"]["clients"] == 2)
        os.kill(int((tmp_path / "exporting").read_text()), 9)
        assert [answer.result().exit_text for answer in answers] == ["was killed by SIGKILL"] * 2
    (tmp_path / "go").touch()
    assert take(leases[0])[0][1] == []


@pytest.fixture
def memory(monkeypatch):
    """The machine's, as the manager sees it: it has 10 GB, and each model takes what its key says."""
    held = set()

    def load(model, make_room, load_at_client, load=SharedModel.load):
        held.add(model)
        return load(model, make_room, load_at_client)

    def close(model, close=SharedModel.close):
        held.discard(model)
        close(model)

    def size(model):
        return int(model.load_request.key) * GB

    monkeypatch.setattr(model_table, "memory_available", lambda: 10 * GB - sum(map(size, held)))
    monkeypatch.setattr(model_table, "memory_limit", lambda: 10 * GB)
    monkeypatch.setattr(SharedModel, "load", load)
    monkeypatch.setattr(SharedModel, "close", close)
    monkeypatch.setattr(SharedModel, "nbytes", property(size))


def test_an_idle_model_makes_room(managers, clock, memory, lease_of, wait_until):
    for gigabytes in (3, 4):
        lease = lease_of(a_list, str(gigabytes), linger_secs=1000, at_least=gigabytes * GB)
        take(lease)
        lease.close()
        assert wait_until(lambda key=str(gigabytes): managers.models()[key]["clients"] == 0)
        clock.advance(1)
    take(lease_of(a_list, "5", at_least=5 * GB))
    assert set(managers.models()) == {"4", "5"}
    clock.advance(1000)


def test_a_client_is_not_refused_for_the_model_of_one_that_has_left(
    managers, memory, lease_of, monkeypatch, wait_until
):
    noticed = threading.Event()

    class Late(Channel):
        """The thread that serves it takes a while to notice that the client has left."""

        def receive(self, timeout_secs=None):
            try:
                return super().receive(timeout_secs)
            except EOFError:
                noticed.wait(30)
                raise

    monkeypatch.setattr(manager_module, "Channel", Late)
    leaves = lease_of(a_list, "6", at_least=6 * GB)
    take(leaves)
    leaves.close()
    with ThreadPoolExecutor(1) as pool:
        comes = pool.submit(take, lease_of(a_list, "5", at_least=5 * GB))
        try:
            assert wait_until(lambda: comes.done() or "5" in managers.models())
        finally:
            noticed.set()
        assert comes.result() == (["a", "model"], True)


def test_a_model_that_never_fits_is_refused_with_the_figures(managers, memory, lease_of):
    with pytest.raises(ModelMemoryError, match=r"at least 11.0 GB.* 10.0 GB in all"):
        lease_of(a_list, "11", at_least=11 * GB).take()


def test_a_client_that_waits_for_memory_gets_it_when_a_load_has_ended(
    managers, memory, lease_of, noted, tmp_path, wait_until
):
    first, second = lease_of(noted, "6", at_least=6 * GB), lease_of(noted, "5", at_least=5 * GB)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first.take)
        assert wait_until(noted.all)
        two = pool.submit(take, second)
        assert wait_until(lambda: "5" in managers.models())
        assert len(noted.all()) == 1
        first.close()
        with pytest.raises(HostStartError):
            one.result()
        assert wait_until(lambda: "6" not in managers.models())
        (tmp_path / "go").touch()
        assert two.result() == ("noted", True)


def test_a_manager_without_clients_exits(runtime, monkeypatch):
    monkeypatch.setattr(manager_module, "_FIRST_CLIENT_SECS", 0.05)
    endpoints = []

    def launch(lock, listening):
        endpoints.append(manager_module.ManagerEndpoint(str(runtime), manager_name(), os.dup(lock), os.dup(listening)))

    find_or_launch(str(runtime), manager_name(), launch).close()
    endpoints[0].accept().close()
    Manager(endpoints[0]).run()
    assert endpoints[0].fileno() == -1


# Models that a client loads for all.


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
    assert (grant.exported.layout, grant.exported.reason, files) == (None, "it is of clay", [])
    assert len(managers.models()["key"]["hosts"]) == 1
    assert here.times == 1
