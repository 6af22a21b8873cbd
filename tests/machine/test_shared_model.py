"""A model that several clients use through hosts of the machine's: who starts them, who ends them, what they say."""

from __future__ import annotations

import logging
import os

import cloudpickle
import pytest

from headrace.hosts.client import ModelHosts
from headrace.hosts.provider import ExitCause, HostFailure
from headrace.hosts.system import allowed_cores
from toy_hosts import forbidden, wait_for

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def a_list(toy):
    toy.model = ["a", "model"]


class Client(ModelHosts):
    """Tells hosts what to do."""

    def __init__(self, lease, copies=1, timeout_secs=None):
        lease.take()
        self.lease = lease
        super().__init__(lease, "toy", timeout_secs, copies)

    def tell(self, work, *rows):
        return self.submit(cloudpickle.dumps(work), list(rows))

    def learn(self, work):
        answer = self.result(self.tell(lambda rows, toy: [work(toy)]))
        return answer if isinstance(answer, HostFailure) else answer.rows[0]

    def where(self):
        return self.learn(lambda toy: os.getpid())


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


@pytest.fixture
def client_of(managers, lease_of, close_later):
    """Makes clients of one model in hosts; those with the same key have the same hosts."""

    def make(load=a_list, copies=1, timeout_secs=None, **fields):
        lease = lease_of(load, copies=copies, hosted=True, timeout_secs=timeout_secs, **fields)
        return close_later(Client(lease, copies, timeout_secs))

    return make


def test_clients_share_a_host_that_has_the_model(client_of):
    one, two = client_of(), client_of()
    assert one.where() == two.where()
    assert two.learn(lambda toy: toy.model) == ["a", "model"]


def test_busy_hosts_are_left_alone_while_there_are_others(client_of, managers, gate, wait_until):
    one, two = client_of(copies=2), client_of(copies=2)
    busy = one.tell(wait_for(gate), "answered")
    [first] = one.processes
    assert wait_until(lambda: busy.connection.snapshot().call == busy.number)
    assert {two.where() for _ in range(5)}.isdisjoint({first})
    gate.touch()
    assert one.result(busy).rows == ["answered"]
    assert len(managers.models()["key"]["hosts"]) == 2


def test_a_host_survives_a_client_that_leaves_in_the_middle(client_of, gate, wait_until):
    """What it wanted is computed, and thrown away."""
    one, two = client_of(), client_of()
    busy = one.tell(wait_for(gate))
    [host] = one.processes
    assert wait_until(lambda: busy.connection.snapshot().call == busy.number)
    waiting = two.tell(lambda rows, toy: [os.getpid()])
    one.close()
    gate.touch()
    assert two.result(waiting).rows == [host]


@pytest.mark.parametrize("forbids", [False, True], ids=["pidfd_open", "forbidden"])
def test_a_client_that_loses_its_connection_ends_no_host(client_of, monkeypatch, forbids):
    if forbids:  # as in old containers
        monkeypatch.setattr(os, "pidfd_open", forbidden)
    one, two = client_of(), client_of()
    host = one.where()
    assert two.where() == host
    [connection] = one._connections
    assert (connection.pidfd is None) is forbids
    connection._channel.shut_down()
    assert one.where() == two.where() == host


def test_a_late_host_is_ended_for_all(client_of):
    one, two = client_of(), client_of()
    host = one.where()
    assert two.where() == host
    assert one.lease.reap(host, late=True) == (-9, ExitCause.LATE)
    assert two.lease.reap(host) == (-9, ExitCause.LATE)
    assert one.where() == two.where() != host


def test_a_request_that_waits_at_a_host_that_dies_is_not_lost(client_of, gate, wait_until):
    one, two = client_of(), client_of()
    assert one.where() == two.where()
    wait = wait_for(gate)
    dies = one.tell(lambda rows, toy: (wait(rows, toy), os._exit(3)))
    assert wait_until(lambda: dies.connection.snapshot().call == dies.number)
    waits = two.tell(lambda rows, toy: ["answered"])
    gate.touch()
    assert one.result(dies).exit_text == "ended itself with exit code 3"
    assert two.result(waits).rows == ["answered"]


def test_output_of_hosts_reaches_a_client(client_of, caplog, wait_until):
    def speak(toy):
        print("printed")
        logging.getLogger("of.the.handler").warning("logged")

    caplog.set_level(logging.INFO)
    client_of(lambda toy: (speak(toy), a_list(toy))).learn(speak)

    def load_response():
        return [(record.name, record.levelname, record.getMessage()) for record in caplog.records]

    assert wait_until(lambda: len(load_response()) >= 4)
    printed, logged = ("headrace.host", "INFO", "key: printed"), ("of.the.handler", "WARNING", "key: logged")
    assert sorted(load_response()) == sorted([printed, logged] * 2)


def test_output_of_hosts_reaches_another_client_when_the_first_has_left(client_of, caplog, wait_until, managers):
    one, two = client_of(), client_of()
    one.close()
    assert wait_until(lambda: managers.models()["key"]["clients"] == 1)
    two.learn(lambda toy: logging.getLogger("later").warning("heard"))
    assert wait_until(lambda: [record.getMessage() for record in caplog.records] == ["key: heard"])


def test_clients_that_come_and_go_leave_no_descriptors(managers, lease_of, descriptors, wait_until):
    stays = lease_of(a_list)
    [os.close(file) for file in stays.take()[1]]
    assert wait_until(lambda: managers.models()["key"]["clients"] == 1)
    before = len(descriptors())
    for _ in range(3):
        lease = lease_of(a_list)
        [os.close(file) for file in lease.take()[1]]
        lease.close()
    assert wait_until(lambda: len(descriptors()) == before), descriptors()


def test_copies_share_the_processors(client_of, monkeypatch):
    for name in POOLS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(POOLS[0], "7")
    client = client_of(copies=2)
    grant = str(max(1, allowed_cores() // 2))
    assert client.learn(lambda toy: [os.environ[name] for name in POOLS]) == ["7", grant, grant]
