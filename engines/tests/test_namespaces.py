"""Network namespaces as machines: they reach each other, and nothing is left of them; needs root and iproute2."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from pathlib import Path

import namespaces
import pytest

LABELS = (f"t{os.getpid() % 10**6}a", f"t{os.getpid() % 10**6}b")
LISTEN = (
    "import socket, sys; s = socket.create_server((sys.argv[1], 0)); print(s.getsockname()[1], flush=True); s.accept()"
)
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)"


@pytest.fixture
def label():
    yield LABELS[0]
    for one in LABELS:
        namespaces.remove(one)
        assert left_of(one) == []


def left_of(label):
    return [path for folder in ("/run/netns", "/sys/class/net") for path in Path(folder).glob(f"{label}-*")]


def test_namespaces_reach_each_other_and_this_machine_reaches_them(label):
    network = namespaces.make(label, 2)
    for caller in ([], namespaces.inside(namespaces.name(label, 1))):
        there = [*namespaces.inside(namespaces.name(label, 0)), sys.executable, "-c", LISTEN]
        address = namespaces.address(network, 0)
        with subprocess.Popen([*there, address], stdout=subprocess.PIPE, text=True) as server:
            try:
                port = server.stdout.readline().strip()
                subprocess.run([*caller, sys.executable, "-c", CONNECT, address, port], check=True)
                assert server.wait(60) == 0
            finally:
                server.kill()


def test_two_sets_of_namespaces_have_their_own_networks(label):
    first, second = (ipaddress.ip_network(namespaces.make(one, 1)) for one in LABELS)
    assert not first.overlaps(second)
    assert namespaces.free_network(label, [first]) != str(first)


def test_remains_of_a_namespace_are_removed(label):
    namespaces.make(label, 2)
    subprocess.run(["ip", "netns", "delete", namespaces.name(label, 1)], check=True)
    assert not namespaces.stands(label, 2)
    namespaces.remove(label)
    assert left_of(label) == []


def test_namespaces_that_cannot_be_created_leave_nothing(label):
    subprocess.run(["ip", "netns", "add", namespaces.name(label, 1)], check=True)  # in the way of the second
    with pytest.raises(namespaces.EngineError, match="netns add"):
        namespaces.make(label, 2)
    assert left_of(label) == []
