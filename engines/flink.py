"""A Flink cluster on this machine: ``python engines/flink.py up``, ``status``, ``down``; see README.md beside it.

One job manager, two task managers with two slots each, and Beam's job server, for trying and testing. Every process
listens on 127.0.0.1 only, on ports that were free.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fetch import EngineError, flink_jars, java, job_server_jar
from members import MARK, end_all, members, start, wait_until

FOLDER = Path(__file__).resolve().parent.parent / ".engines"
TASK_MANAGERS = ("tm1", "tm2")
SLOTS = 2
TASK_MANAGER_VARIABLE = "HEADRACE_TASK_MANAGER"
"""Tells a worker process whose it is."""
_START_SECS = 120.0

_OPENED = "lang lang.reflect net io nio text time util util.concurrent util.concurrent.atomic util.concurrent.locks"
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # they live for minutes: what starts fast is better than what runs fast
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED.split()),
)
"""With which Flink runs on Java 17, as in its default configuration."""

_LOGGING = """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


@dataclass
class Cluster:
    """What there is, as it is written down for the commands that follow."""

    name: str
    scratch: str
    """Temporary files of all its processes."""
    machines: int
    ports: dict[str, int]
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
        return f"127.0.0.1:{self.ports['job']}"

    @property
    def boot(self) -> Path:
        """The program that task managers start a worker process with."""
        return Path(self.scratch) / "boot"

    def runtime_directory(self, task_manager: str) -> str:
        """HEADRACE_RUNTIME_DIR of a task manager's worker processes: a machine is whatever shares it."""
        number = TASK_MANAGERS.index(task_manager) % self.machines + 1
        return str(Path(self.scratch) / f"machine{number}")

    def running(self) -> dict[str, int]:
        """The pids of those of its own processes that run."""
        marked = set(members(self.mark))
        return {role: pid for role, pid in self.pids.items() if pid in marked}

    def ask(self, path: str) -> Any:
        """The job manager's answer (its REST interface)."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['rest']}/{path}", timeout=5) as answer:
            return json.load(answer)

    def pipeline_options(self, **environment: str) -> list[str]:
        """The arguments with which a pipeline runs on it, its worker processes with these variables."""
        process = {"command": str(self.boot), "env": environment}
        return [
            "--runner=PortableRunner",
            f"--job_endpoint={self.job_endpoint}",
            "--environment_type=PROCESS",
            f"--environment_config={json.dumps(process)}",
            "--sdk_worker_parallelism=2",
            f"--parallelism={SLOTS * len(TASK_MANAGERS)}",
        ]


def up(name: str = "flink", machines: int = 1) -> Cluster:
    """Starts a cluster, or what is missing of it; returns when it takes pipelines.

    Args:
        name: several may run side by side.
        machines: 1: the task managers share HEADRACE_RUNTIME_DIR; 2: each has its own, as on two machines.

    Raises:
        EngineError: something is missing, or a process has failed; the message says what to do.
    """
    program, flink, job_server = java(), flink_jars(FOLDER), job_server_jar(FOLDER)
    with _alone(name):
        cluster = Cluster.read(name)
        if cluster is not None and (cluster.machines != machines or not Path(cluster.scratch).exists()):
            _down(name)
            cluster = None
        cluster = cluster or _new(name, machines)
        commands = _commands(cluster, program, flink, job_server)
        running = cluster.running()
        for role in (role for role in commands if role not in running):
            variables = _variables(cluster, role)
            cluster.pids[role] = start(commands[role], cluster.mark, logs(name) / f"{role}.log", variables).pid
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


def logs(name: str = "flink") -> Path:
    """The folder with what each process has said."""
    return FOLDER / f"{name}-logs"


def _down(name: str) -> int:
    count = end_all(_mark(name))
    shutil.rmtree(_scratch(name), ignore_errors=True)
    _record(name).unlink(missing_ok=True)
    return count


def _new(name: str, machines: int) -> Cluster:
    _down(name)  # one whose record has been lost
    shutil.rmtree(logs(name), ignore_errors=True)
    logs(name).mkdir(parents=True)
    scratch = _scratch(name)
    scratch.mkdir(mode=stat.S_IRWXU)
    cluster = Cluster(name, str(scratch), machines, _free_ports("rpc", "rest", "job", "artifact", "expansion"))
    cluster.write()
    for folder in ("conf", "tmp"):
        (scratch / folder).mkdir()
    (scratch / "conf" / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in _settings(cluster)))
    (scratch / "conf" / "log4j.properties").write_text(_LOGGING)
    worker = shlex.join([sys.executable, str(Path(__file__).with_name("boot.py"))])
    cluster.boot.write_text(f'#!/bin/sh\nexec {worker} "$@"\n')
    cluster.boot.chmod(stat.S_IRWXU)
    return cluster


def _settings(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    """Flink's configuration. Its scripts, which we do not have, would compute the sizes of memory."""
    here = "127.0.0.1"
    yield from (("jobmanager.rpc.address", here), ("jobmanager.bind-host", here))
    yield from (("jobmanager.rpc.port", cluster.ports["rpc"]), ("jobmanager.memory.process.size", "1g"))
    yield from (("rest.address", here), ("rest.bind-address", here))
    yield from (("rest.port", cluster.ports["rest"]), ("rest.bind-port", cluster.ports["rest"]))
    yield from (("taskmanager.host", here), ("taskmanager.bind-host", here))
    yield from (("taskmanager.numberOfTaskSlots", SLOTS), ("taskmanager.cpu.cores", float(SLOTS)))
    sizes = {"framework.heap": 128, "task.heap": 384, "framework.off-heap": 128, "task.off-heap": 64, "managed": 128}
    yield from ((f"taskmanager.memory.{kind}.size", f"{size}m") for kind, size in sizes.items())
    yield from (("taskmanager.memory.network.min", "256m"), ("taskmanager.memory.network.max", "256m"))
    yield from (("taskmanager.memory.jvm-metaspace.size", "256m"), ("taskmanager.memory.jvm-overhead.min", "192m"))
    yield from (("taskmanager.memory.jvm-overhead.max", "192m"), ("io.tmp.dirs", f"{cluster.scratch}/tmp"))
    yield from (("restart-strategy.type", "fixed-delay"), ("restart-strategy.fixed-delay.attempts", 3))
    yield from (("restart-strategy.fixed-delay.delay", "1 s"), ("heartbeat.timeout", 15000))
    yield from (("heartbeat.interval", 3000), ("state.checkpoints.dir", f"file://{cluster.scratch}/checkpoints"))


def _commands(cluster: Cluster, program: str, flink: str, job_server: str) -> dict[str, list[str]]:
    configuration = f"{cluster.scratch}/conf"
    settings = [f"-Dlog4j.configurationFile=file:{configuration}/log4j.properties", *_JAVA_OPTIONS]
    settings.append(f"-Djava.io.tmpdir={cluster.scratch}/tmp")
    of_flink = "org.apache.flink.runtime"
    start_job_manager = f"{of_flink}.entrypoint.StandaloneSessionClusterEntrypoint"
    start_task_manager = f"{of_flink}.taskexecutor.TaskManagerRunner"
    configured = ["--configDir", configuration]
    task_manager = [program, "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:MaxMetaspaceSize=256m", *settings]
    logging = [jar for jar in flink.split(os.pathsep) if Path(jar).name.startswith("log4j")]
    ports = [f"--{kind}-port={cluster.ports[kind]}" for kind in ("job", "artifact", "expansion")]
    return {
        "jobmanager": [program, "-Xmx512m", *settings, "-cp", flink, start_job_manager, *configured],
        **{
            role: [*task_manager, "-cp", flink, start_task_manager, *configured, f"-Dtaskmanager.resource-id={role}"]
            for role in TASK_MANAGERS
        },
        "jobserver": [
            *(program, "-Xmx512m", *settings, "-cp", os.pathsep.join([*logging, job_server])),
            *("org.apache.beam.runners.flink.FlinkJobServerDriver", "--job-host=127.0.0.1", *ports),
            *(f"--flink-master=127.0.0.1:{cluster.ports['rest']}", f"--artifacts-dir={cluster.scratch}/artifacts"),
        ],
    }


def _variables(cluster: Cluster, role: str) -> dict[str, str]:
    """Of a process's environment, and so of the worker processes that a task manager starts."""
    variables = {"TMPDIR": f"{cluster.scratch}/tmp"}
    if role in TASK_MANAGERS:
        variables[TASK_MANAGER_VARIABLE] = role
        variables["HEADRACE_RUNTIME_DIR"] = cluster.runtime_directory(role)
    return variables


def _await(cluster: Cluster) -> None:
    def is_done() -> bool:
        dead = set(cluster.pids) - set(cluster.running())
        if dead:
            raise EngineError(_told(cluster, dead.pop(), "has ended"))
        return _takes_pipelines(cluster)

    if not wait_until(is_done, _START_SECS):
        raise EngineError(_told(cluster, "jobmanager", f"and the others are not ready after {_START_SECS:g} s"))


def _takes_pipelines(cluster: Cluster) -> bool:
    try:
        slots = cluster.ask("overview")["slots-total"]
        with socket.create_connection(("127.0.0.1", cluster.ports["job"]), timeout=1):
            return bool(slots >= SLOTS * len(TASK_MANAGERS))
    except (OSError, urllib.error.URLError, json.JSONDecodeError):
        return False


def _told(cluster: Cluster, role: str, what: str) -> str:
    log = logs(cluster.name) / f"{role}.log"
    lines = log.read_text(errors="replace").splitlines()[-15:]
    return "\n".join([f"{role} {what}; the end of {log}:", *lines])


def _free_ports(*uses: str) -> dict[str, int]:
    """A port for each use, all of them free now."""
    with contextlib.ExitStack() as taken:
        sockets = [taken.enter_context(socket.socket()) for _ in uses]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return {use: one.getsockname()[1] for use, one in zip(uses, sockets, strict=True)}


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
    """The same each time, so that it is found without a record; short, as addresses of sockets must be."""
    digest = hashlib.sha256(_mark(name).encode()).hexdigest()
    return Path(tempfile.gettempdir()) / f"flink-{os.geteuid()}-{digest[:10]}"


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
        print(f"{role:<12} {pid:>8}  {'runs' if role in running else 'has ended'}")
    print(f"{others - len(running)} other processes that they have started ({MARK} in their environment)")
    print(f"--job_endpoint={cluster.job_endpoint}, Flink's pages: http://127.0.0.1:{cluster.ports['rest']}")
    print(f"logs: {logs(name)}")
    return len(running) == len(cluster.pids)


def main() -> None:
    """One command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument("--name", default="flink", help="of the cluster; several may run side by side")
    parser.add_argument(
        "--machines",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: each task manager has a HEADRACE_RUNTIME_DIR of its own, as on two machines",
    )
    words = parser.parse_args()
    try:
        if words.command == "down":
            print(f"{words.name}: ended {down(words.name)} processes")
            return
        if words.command == "up":
            up(words.name, words.machines)
        sys.exit(0 if show(words.name) else 1)
    except (EngineError, TimeoutError) as error:
        sys.exit(f"{words.name}: {error}")


if __name__ == "__main__":
    main()
