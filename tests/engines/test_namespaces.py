"""What of the namespaces needs no rights; engines/tests has the rest."""

from __future__ import annotations

import ipaddress
import os

import pytest

RANGE = ipaddress.ip_network("198.18.0.0/15")


@pytest.fixture
def namespaces(engine_module):
    return engine_module("namespaces")


def test_each_machine_has_an_address_on_the_one_network(namespaces):
    network = namespaces.free_network("label", [])
    found = [ipaddress.ip_address(namespaces.address(network, number)) for number in range(-1, 3)]
    assert len(set(found)) == 4
    assert all(address in set(ipaddress.ip_network(network).hosts()) for address in found)
    assert ipaddress.ip_network(network).subnet_of(RANGE)


def test_a_network_that_is_taken_is_passed_over(namespaces):
    first = ipaddress.ip_network(namespaces.free_network("label", []))
    second = ipaddress.ip_network(namespaces.free_network("label", [first]))
    assert not second.overlaps(first)
    assert second.subnet_of(RANGE)


def test_namespaces_that_are_all_taken_are_an_error(namespaces):
    with pytest.raises(namespaces.EngineError, match="taken"):
        namespaces.free_network("label", [ipaddress.ip_network("198.0.0.0/8")])


def test_missing_root_rights_are_reported_with_the_cure(namespaces, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(namespaces.EngineError, match=r"root.*iproute2.*--one-network"):
        namespaces.make("label", 2)


def test_missing_ip_command_is_reported_with_what_to_install(namespaces, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(namespaces.EngineError, match="apt-get install iproute2"):
        namespaces.make("label", 2)


def test_removal_without_namespaces_needs_no_tool(namespaces, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not namespaces.stands("no-such-label", 1)
    namespaces.remove("no-such-label")
