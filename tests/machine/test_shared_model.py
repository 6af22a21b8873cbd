"""A model that several clients use through hosts of the machine's: who starts them, who ends them, what they say."""

from __future__ import annotations

import logging
import os

import pytest

from headrace.hosts.client import ModelHosts
from headrace.hosts.provider import ExitCause
from headrace.hosts.system import allowed_cores
from toy_hosts import Told, a_list, forbidden, wait_for

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Client(Told):
    def __init__(self, lease, copies):
        lease.take()
        self.lease = lease
        ModelHosts.__init__(self, lease, "toy", None, copies)

    def where(self):
        return self.learn(lambda rows, toy: os.getpid())


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


@pytest.fixture
def client_of(managers, lease_of, close_later):
    """Makes clients of one model in hosts; those with the same key have the same hosts."""

    def make(load=a_list, copies=1):
        return close_later(Client(lease_of(load, copies=copies, hosted=True), copies))

    return make


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


def test_clients_share_a_host_and_when_it_is_late_it_is_ended_for_all(client_of):
    one, two = client_of(), client_of()
    host = one.where()
    assert two.where() == host
    assert two.learn(lambda rows, toy: toy.model) == ["a", "model"]
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


def test_output_of_hosts_reaches_one_client_and_when_it_has_left_another(client_of, caplog, wait_until, managers):
    def speak(*_):
        print("printed")
        logging.getLogger("of.the.handler").warning("logged")

    caplog.set_level(logging.INFO)
    one, two = client_of(lambda toy: (speak(), a_list(toy))), client_of()
    one.learn(speak)
    assert wait_until(lambda: len(caplog.records) >= 4)
    printed, logged = ("headrace.host", "INFO", "key: printed"), ("of.the.handler", "WARNING", "key: logged")
    found = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert sorted(found) == sorted([printed, logged] * 2)
    one.close()
    assert wait_until(lambda: managers.models()["key"]["clients"] == 1)
    two.learn(lambda rows, toy: logging.getLogger("later").warning("heard"))
    assert wait_until(lambda: caplog.messages[4:] == ["key: heard"])


def test_clients_that_come_and_go_leave_no_descriptors(managers, lease_of, descriptors, wait_until):
    stays = lease_of(a_list)
    [os.close(file) for file in stays.take()[1]]
    assert wait_until(lambda: managers.models()["key"]["clients"] == 1)
    before = len(descriptors())
    for _ in range(5):
        lease = lease_of(a_list)
        [os.close(file) for file in lease.take()[1]]
        lease.close()
    assert wait_until(lambda: len(descriptors()) <= before), descriptors()


def test_copies_share_the_processors(client_of, monkeypatch):
    for name in POOLS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(POOLS[0], "7")
    client = client_of(copies=2)
    grant = str(max(1, allowed_cores() // 2))
    assert client.learn(lambda rows, toy: [os.environ[name] for name in POOLS]) == ["7", grant, grant]
