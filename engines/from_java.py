"""A Java pipeline that asks Headrace (``examples/java``), on Prism, with Python's services beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from configuration import FAST_START
from fetch import EngineError, java, java_program
from job_server import FOLDER, START_SECS, free_ports, listens, logs, told
from members import end_all, start, wait_until
from prism import prism

PROJECT = Path(__file__).resolve().parent.parent / "examples" / "java"
_ADDRESS = "127.0.0.1"
_RUN_SECS = 600


class FromJava:
    """The services that Java's pipelines need.

    Args:
        ports: of Prism and of the expansion service.
        mark: what their processes carry in their environment.
    """

    def __init__(self, ports: dict[str, int], mark: str) -> None:
        self.ports = ports
        self.mark = mark

    def run(self, name: str, *arguments: str) -> None:
        """Runs the pipeline of a class, whose Java steps are done in its own process.

        Raises:
            EngineError: it has failed, or cannot be compiled.
        """
        worker = free_ports("worker")["worker"]  # for the Java steps
        command = [
            *(java(), "-Xmx512m", *FAST_START, "-cp", java_program(PROJECT, FOLDER), name),
            *("--runner=PortableRunner", f"--jobEndpoint={_ADDRESS}:{self.ports['job']}"),
            *("--defaultEnvironmentType=LOOPBACK", f"--defaultEnvironmentConfig=localhost:{worker}"),
            *(f"--expansionService={_ADDRESS}:{self.ports['expansion']}", *arguments),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECS, check=False)
        if done.returncode:
            raise EngineError(f"{name} has failed:\n{done.stdout}{done.stderr}")


@contextlib.contextmanager
def running(name: str = "from-java", *, in_processes: bool = False) -> Iterator[FromJava]:
    """Starts Prism and the expansion service, and ends them; what some of that name have left goes first.

    Args:
        in_processes: whether a pool starts a worker process for each pipeline; else it is in the expansion service.

    Raises:
        EngineError: something is missing or has failed; the message says what to do.
    """
    services = FromJava(free_ports("job", "expansion", "pool"), str(FOLDER / name))
    end_all(services.mark)
    shutil.rmtree(logs(name), ignore_errors=True)
    logs(name).mkdir(parents=True)
    try:
        for use, command in _commands(services.ports, in_processes=in_processes).items():
            _start(services, use, command, logs(name) / f"{use}.log")
        yield services
    finally:
        end_all(services.mark)


def _commands(ports: dict[str, int], *, in_processes: bool) -> dict[str, list[str]]:
    beam, where, pool = [sys.executable, "-m"], ["--serve_loopback_worker"], {}
    if in_processes:
        where = ["--environment_type=EXTERNAL", f"--environment_config=localhost:{ports['pool']}"]
        pool["pool"] = [*beam, "apache_beam.runners.worker.worker_pool_main", f"--service_port={ports['pool']}"]
    service = [*beam, "apache_beam.runners.portability.expansion_service_main", f"--port={ports['expansion']}"]
    return {
        **pool,
        "expansion": [*service, "--fully_qualified_name_glob=headrace.*", *where],
        "job": [prism(), f"-job_port={ports['job']}", "-serve_http=false"],
    }


def _start(services: FromJava, use: str, command: list[str], log: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # a pool starts `python`
    modules = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    service = start(command, services.mark, log, {"PATH": path, "PYTHONPATH": modules})

    def is_done() -> bool:
        if service.poll() is not None:
            raise EngineError(told(log, "has ended"))
        return listens(_ADDRESS, services.ports[use])

    if not wait_until(is_done, START_SECS):
        raise EngineError(told(log, f"is not ready after {START_SECS:g} s"))
