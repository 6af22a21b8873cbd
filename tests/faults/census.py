"""Counts what a test leaves behind: descendant processes, and this process's descriptors, mappings and files."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import uuid
from pathlib import Path

from headrace.hosts.system import fields_of, processes

TOKEN = "HEADRACE_CENSUS"
"""A variable in the environment of everything that a test starts, and of whatever that starts."""


class Census:
    """The processes that descend from this test, by the token that they inherit, whatever has become of their parents.

    And the descriptors, mappings, threads and files of this process that model hosts account for.
    """

    def __init__(self, temporary):
        self.token = uuid.uuid4().hex
        self._temporary = temporary
        self._before = self._belongings()

    def processes(self):
        return {
            process: _read(process, "cmdline").replace("\0", " ") for process in processes() if self._counts(process)
        }

    def managers(self):
        return [process for process, command in self.processes().items() if "headrace.machine.manager" in command]

    def fork_servers(self, owner=None):
        module = "headrace.hosts.fork_server\0"
        return [one for one in _children(owner or os.getpid()) if module in _read(one, "cmdline")]

    def hosts(self, owner=None):
        return [host for fork_server in self.fork_servers(owner) for host in _children(fork_server)]

    def leftovers(self):
        left = [f"process {process}: {command}" for process, command in self.processes().items()]
        return left + sorted(self._belongings() - self._before)

    def kill_all(self):
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _counts(self, process):
        return f"{TOKEN}={self.token}\0" in _read(process, "environ")

    def _belongings(self):
        files = {f"descriptor of {target}" for target in _descriptors() if _is_of_hosts(target)}
        maps = {line.split(maxsplit=1)[0] for line in _read("self", "maps").splitlines() if "memfd:headrace" in line}
        threads = {one.name for one in threading.enumerate() if one.name.startswith("headrace output")}
        return files | maps | threads | {str(path) for path in self._temporary.iterdir()}


def _read(process, name):
    try:
        return Path(f"/proc/{process}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _children(parent):
    return [process for process in processes() if fields_of(process)[1:2] == [str(parent)]]


def _descriptors():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{name}")


def _is_of_hosts(target):
    kind, _, inode = target.partition(":[")
    if kind == "socket":
        return inode.rstrip("]") in _read("self", "net/unix").split()
    return (kind in ("pipe", "anon_inode") and "event" not in target) or "headrace" in target
