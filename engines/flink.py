"""A Flink cluster on this machine: ``python engines/flink.py up``, ``status``, ``down``; see README.md beside it.

One job manager, two task managers with two slots each, and Beam's job server, for trying and testing. Every process
listens on ports that were free and on 127.0.0.1, or on the network that the machines have among them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import namespaces
from configuration import LOGGING, SLOTS, TASK_MANAGERS, commands, settings
from fetch import EngineError, flink_jars, java, job_server_jar
from job_server import (
    FOLDER,
    PORTS,
    START_SECS,
    digest,
    free_ports,
    listens,
    logs,
    process_options,
    reach_directly,
    scratch_folder,
    told,
    write_boot,
)
from members import MARK, end_all, ended, members, start, wait_until

TASK_MANAGER_VARIABLE = "HEADRACE_TASK_MANAGER"
"""Tells a worker process whose it is."""


@dataclass
class Cluster:
    """What there is, as it is written down for the commands that follow."""

    name: str
    scratch: str
    """Temporary files of all its processes."""
    machines: int
    ports: dict[str, int]
    network: str = ""
    """That of the machines, each in a namespace; empty: they share this one's."""
    pids: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str) -> Cluster | None:
        """The cluster of that name, running or not; None: there is none."""
        path = _record(name)
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def write(self) -> None:
        """So that the next command finds it, even should this one be interrupted."""
        _record(self.name).write_text(json.dumps(asdict(self), indent=2))

    @property
    def mark(self) -> str:
        """What its processes, and all that they start, carry in their environment."""
        return _mark(self.name)

    @property
    def job_endpoint(self) -> str:
        """Where pipelines are submitted to."""
        return f"{self.address('jobserver')}:{self.ports['job']}"

    @property
    def boot(self) -> Path:
        """The program that task managers start a worker process with."""
        return Path(self.scratch) / "boot"

    def runtime_directory(self, task_manager: str) -> str:
        """HEADRACE_RUNTIME_DIR of a task manager's worker processes: a machine is whatever shares it."""
        return str(Path(self.scratch) / f"machine{self.machine(task_manager)}")

    def machine(self, role: str) -> int:
        """The number of the machine on which a process runs; the task managers' are 1 and more."""
        return TASK_MANAGERS.index(role) % self.machines + 1 if role in TASK_MANAGERS else 0

    def address(self, role: str) -> str:
        """On which a process is to be reached."""
        return namespaces.address(self.network, self.machine(role)) if self.network else "127.0.0.1"

    def namespace(self, role: str) -> str:
        """The name of the network namespace in which a process runs, if machines have networks of their own."""
        return namespaces.name(_label(self.name), self.machine(role))

    @property
    def flink_pages(self) -> str:
        """The job manager's REST interface, which a browser can read, too."""
        return f"http://{self.address('jobmanager')}:{self.ports['rest']}"

    def stands(self) -> bool:
        """Whether what its processes need is there, be they running or not."""
        return Path(self.scratch).exists() and (
            not self.network or namespaces.stands(_label(self.name), 1 + self.machines)
        )

    def running(self) -> dict[str, int]:
        """The pids of those of its own processes that run."""
        marked = set(members(self.mark))
        return {role: pid for role, pid in self.pids.items() if pid in marked}

    def ask(self, path: str) -> Any:
        """The job manager's answer (its REST interface)."""
        with urllib.request.urlopen(f"{self.flink_pages}/{path}", timeout=5) as answer:
            return json.load(answer)

    def pipeline_options(self, **environment: str) -> list[str]:
        """The arguments with which a pipeline runs on it, its worker processes with these variables."""
        parallelism = f"--parallelism={SLOTS * len(TASK_MANAGERS)}"
        return [*process_options(self.job_endpoint, self.boot, environment), parallelism]


def up(name: str = "flink", machines: int = 1, *, one_network: bool = False) -> Cluster:
    """Starts a cluster, or what is missing of it; returns when it takes pipelines.

    Args:
        name: several may run side by side.
        machines: 1: the task managers share HEADRACE_RUNTIME_DIR; 2: each has its own, and a network namespace of its
            own, as on two machines.
        one_network: no namespaces, which take root and ``ip``.

    Raises:
        EngineError: something is missing, or a process has failed; the message says what to do.
    """
    program, flink, job_server = java(), flink_jars(FOLDER), job_server_jar(FOLDER)
    with _alone(name):
        cluster = Cluster.read(name)
        own_networks = machines > 1 and not one_network
        asked = (machines, own_networks)
        if cluster is not None and ((cluster.machines, bool(cluster.network)) != asked or not cluster.stands()):
            _down(name)
            cluster = None
        cluster = cluster or _new(name, machines, own_networks=own_networks)
        reach_directly(cluster.address("jobmanager"))
        programs = commands(cluster, program, flink, job_server)
        running = cluster.running()
        for role in (role for role in programs if role not in running):
            there = namespaces.inside(cluster.namespace(role)) if cluster.network else []
            command, log = [*there, *programs[role]], logs(name) / f"{role}.log"
            cluster.pids[role] = start(command, cluster.mark, log, _variables(cluster, role)).pid
            cluster.write()
        try:
            _await(cluster)
        except BaseException:
            _down(name)
            raise
        return cluster


def down(name: str = "flink") -> int:
    """Ends a cluster and everything that it has started, crashed or not; returns how many processes were left.

    Its logs stay until the next one of that name begins.
    """
    with _alone(name):
        return _down(name)


def lose(cluster: Cluster, task_manager: str) -> None:
    """SIGKILL to a task manager, as the kernel does it when memory is short; another one takes its place."""
    now = Cluster.read(cluster.name) or cluster  # it may be another one's successor
    os.kill(now.pids[task_manager], signal.SIGKILL)
    wait_until(lambda: task_manager not in now.running(), START_SECS)  # a large process takes its time to end
    up(cluster.name, cluster.machines, one_network=not cluster.network)


def _down(name: str) -> int:
    count = end_all(_mark(name))
    namespaces.remove(_label(name))
    shutil.rmtree(_scratch(name), ignore_errors=True)
    _record(name).unlink(missing_ok=True)
    return count


def _new(name: str, machines: int, *, own_networks: bool) -> Cluster:
    _down(name)  # one whose record has been lost
    shutil.rmtree(logs(name), ignore_errors=True)
    logs(name).mkdir(parents=True)
    network = namespaces.make(_label(name), 1 + machines) if own_networks else ""
    scratch = _scratch(name)
    scratch.mkdir(mode=stat.S_IRWXU)
    ports = free_ports("rpc", "rest", *PORTS)
    cluster = Cluster(name, str(scratch), machines, ports, network)
    cluster.write()
    for folder in ("conf", "tmp"):
        (scratch / folder).mkdir()
    (scratch / "conf" / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings(cluster)))
    (scratch / "conf" / "log4j.properties").write_text(LOGGING)
    write_boot(cluster.boot)
    return cluster


def _variables(cluster: Cluster, role: str) -> dict[str, str]:
    """Of a process's environment, and so of the worker processes that a task manager starts."""
    variables = {"TMPDIR": f"{cluster.scratch}/tmp"}
    if role in TASK_MANAGERS:
        variables[TASK_MANAGER_VARIABLE] = role
        variables["HEADRACE_RUNTIME_DIR"] = cluster.runtime_directory(role)
    return variables


def _await(cluster: Cluster) -> None:
    folder = logs(cluster.name)

    def is_done() -> bool:
        for role in (role for role, pid in cluster.pids.items() if ended(pid)):
            raise EngineError(told(folder / f"{role}.log", "has ended"))
        return _takes_pipelines(cluster)

    if not wait_until(is_done, START_SECS):
        raise EngineError(told(folder / "jobmanager.log", f"and the others are not ready after {START_SECS:g} s"))


def _takes_pipelines(cluster: Cluster) -> bool:
    try:
        slots = int(cluster.ask("overview")["slots-total"])
        return slots >= SLOTS * len(TASK_MANAGERS) and listens(cluster.address("jobserver"), cluster.ports["job"])
    except (OSError, urllib.error.URLError, json.JSONDecodeError):
        return False


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """While no other process starts or ends the cluster of that name."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:  # closed in whatever is started meanwhile
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _record(name: str) -> Path:
    return FOLDER / f"{name}.json"


def _scratch(name: str) -> Path:
    return scratch_folder("flink", _mark(name))


def _label(name: str) -> str:
    """Of its namespaces and links, whose names are at most 15 characters long; the same each time, too."""
    return f"fl{digest(_mark(name))[:8]}"


def _mark(name: str) -> str:
    return str(_record(name))


def show(name: str) -> bool:
    """Prints what runs; whether all of it does."""
    cluster = Cluster.read(name)
    others = len(members(_mark(name)))
    if cluster is None:
        print(f"{name}: no cluster" + (f", but {others} processes of one; end them with `down`" if others else ""))
        return False
    running = cluster.running()
    for role, pid in cluster.pids.items():
        state = "runs" if role in running else "has ended"
        folder = f", HEADRACE_RUNTIME_DIR={cluster.runtime_directory(role)}" if role in TASK_MANAGERS else ""
        print(f"{role:<12} {pid:>8}  {cluster.address(role):<15} {state}{folder}")
    print(f"{others - len(running)} other processes that they have started ({MARK} in their environment)")
    print(f"--job_endpoint={cluster.job_endpoint}, Flink's pages: {cluster.flink_pages}")
    print(f"logs: {logs(name)}")
    return len(running) == len(cluster.pids)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that say which cluster is meant, and what it is like if it is new."""
    parser.add_argument("--name", default="flink", help="of the cluster; several may run side by side")
    parser.add_argument(
        "--machines",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: each task manager has a HEADRACE_RUNTIME_DIR and a network namespace of its own, as on two machines",
    )
    parser.add_argument(
        "--one-network", action="store_true", help="two machines without the namespaces, which take root and `ip`"
    )


def main() -> None:
    """One command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("up", "down", "status"))
    add_arguments(parser)
    words = parser.parse_args()
    try:
        if words.command == "down":
            print(f"{words.name}: ended {down(words.name)} processes")
            return
        if words.command == "up":
            up(words.name, words.machines, one_network=words.one_network)
        sys.exit(0 if show(words.name) else 1)
    except (EngineError, TimeoutError) as error:
        sys.exit(f"{words.name}: {error}")


if __name__ == "__main__":
    main()
