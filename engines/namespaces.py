"""Machines with networks of their own on one machine: network namespaces, joined by a bridge (Linux, root, iproute2).

All names follow from a label, so that what is left of it after a crash is found without a record.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fetch import EngineError

_RANGE = ipaddress.ip_network("198.18.0.0/15")
"""For networks of tests (RFC 2544): hardly a real one has its addresses there."""
_PREFIX_BITS = 28
_NAMESPACES = Path("/run/netns")
_INTERFACES = Path("/sys/class/net")


def make(label: str, count: int) -> str:
    """Makes namespaces, each with an interface on one bridge; returns the network, as ``198.18.3.16/28``.

    Args:
        label: at most 12 characters; unique on this machine.
        count: how many, numbered from 0.

    Raises:
        EngineError: the user may not, or ``ip`` is missing; nothing is left of it then.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter"))):
        raise EngineError(
            "A network for each machine takes root's rights, `ip` and `nsenter`: run this as root, and install what is "
            "missing (apt-get install iproute2 util-linux); or ask for machines that share this one's network, with "
            "--one-network"
        )
    network = free_network(label, _networks_in(_ip("-4", "-o", "address") + _ip("-4", "route", "show", "table", "all")))
    try:
        _add(label, count, network)
    except BaseException:
        remove(label)
        raise
    return network


def remove(label: str) -> None:
    """Removes all that `make` has made, or the part of it that is left.

    Raises:
        EngineError: it cannot be removed.
    """
    for kind, folder in (("link", _INTERFACES), ("netns", _NAMESPACES)):
        for found in _named(folder, label):
            try:
                _ip(kind, "delete", found.name)
            except EngineError:
                if found.exists():  # a link goes with its other end's namespace, whenever the kernel finds the time
                    raise


def stands(label: str, count: int) -> bool:
    """Whether the namespaces are there."""
    return all((_NAMESPACES / name(label, number)).exists() for number in range(count))


def name(label: str, number: int) -> str:
    """Of a namespace, and of this side's end of the link to it."""
    return f"{label}-{number}"


def inside(namespace: str) -> list[str]:
    """What to put before a command so that it runs in a namespace; it replaces itself by the command."""
    return ["nsenter", f"--net={_NAMESPACES / namespace}", "--"]  # `ip netns exec` hides the limits of memory, too


def address(network: str, number: int) -> str:
    """Of a namespace; before the first there is one for the machine itself, on the bridge."""
    return str(ipaddress.ip_network(network)[number + 2])


def free_network(label: str, taken: Sequence[ipaddress.IPv4Network]) -> str:
    """The first after the label's own place that overlaps with none of those that are taken.

    Raises:
        EngineError: there is none.
    """
    count = 1 << (_PREFIX_BITS - _RANGE.prefixlen)
    start = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")
    for number in range(start, start + count):
        first = _RANGE[number % count << (32 - _PREFIX_BITS)]
        network = ipaddress.ip_network(f"{first}/{_PREFIX_BITS}")
        if not any(network.overlaps(other) for other in taken):
            return str(network)
    raise EngineError(f"all networks in {_RANGE} are taken; end a cluster that is not needed")


def _add(label: str, count: int, network: str) -> None:
    bits, bridge = network.rpartition("/")[2], f"{label}-b"
    _ip("link", "add", bridge, "type", "bridge")
    _ip("address", "add", f"{address(network, -1)}/{bits}", "dev", bridge)
    _ip("link", "set", bridge, "up")
    for number in range(count):
        there = name(label, number)
        within = ("-n", there)
        _ip("netns", "add", there)
        _ip("link", "add", there, "type", "veth", "peer", "name", "eth0", "netns", there)
        _ip("link", "set", there, "master", bridge, "up")
        _ip(*within, "address", "add", f"{address(network, number)}/{bits}", "dev", "eth0")
        _ip(*within, "link", "set", "eth0", "up")
        _ip(*within, "link", "set", "lo", "up")


def _networks_in(words: str) -> list[ipaddress.IPv4Network]:
    found = []
    for word in words.split():
        with contextlib.suppress(ValueError):  # most words are none
            found.append(ipaddress.IPv4Network(word, strict=False))
    return [network for network in found if network.prefixlen]  # everything is on the default route


def _named(folder: Path, label: str) -> list[Path]:
    return sorted(folder.glob(f"{label}-*"))


def _ip(*words: str) -> str:
    command = ["ip", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError(
            f"`{' '.join(command)}` has failed ({done.stderr.strip()}); a container needs the right to make network "
            "namespaces (CAP_SYS_ADMIN and CAP_NET_ADMIN); without it, ask for --one-network"
        )
    return done.stdout
