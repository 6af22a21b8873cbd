"""Ports of 127.0.0.1 that no test of this process has used before.

What Headrace knows of an endpoint goes by its address, and outlives a test. The system draws its own ports, from a few
thousand, so that in a whole run of the tests some come again.
"""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress

_PORTS = itertools.count(10_000 + os.getpid() * 997 % 20_000)  # below those that Linux draws


def new_port() -> int:
    """One where nobody listens now."""
    for port in _PORTS:
        with suppress(OSError), socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError
