"""What engines with a job server of Beam's have in common: their folders, their ports, how workers are started."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import Protocol

FOLDER = Path(__file__).resolve().parent.parent / ".engines"
PORTS = ("job", "artifact", "expansion")
"""Those of a job server, by their use."""
START_SECS = 300.0


class Engine(Protocol):
    """Whatever takes pipelines."""

    def pipeline_options(self, **environment: str) -> list[str]:
        """The arguments with which a pipeline runs on it, its worker processes with these variables."""


def process_options(endpoint: str, boot: Path, environment: dict[str, str]) -> list[str]:
    """The arguments with which a pipeline goes to a job server, and its workers are processes beside the engine's.

    Each process of the engine has two at once, unless a later argument says otherwise (``worker_processes``).
    """
    process = {"command": str(boot), "env": environment}
    return [
        "--runner=PortableRunner",
        f"--job_endpoint={endpoint}",
        "--environment_type=PROCESS",
        f"--environment_config={json.dumps(process)}",
        worker_processes(2),
    ]


def worker_processes(count: int) -> str:
    """The argument that says how many worker processes each process of the engine has at once."""
    return f"--sdk_worker_parallelism={count}"


def write_boot(path: Path) -> None:
    """The program that the engine starts a worker process with: this Python, with ``boot.py``."""
    worker = shlex.join([sys.executable, str(Path(__file__).with_name("boot.py"))])
    path.write_text(f'#!/bin/sh\nexec {worker} "$@"\n')
    path.chmod(stat.S_IRWXU)


def logs(name: str) -> Path:
    """The folder with what each process of the engine of that name has said."""
    return FOLDER / f"{name}-logs"


def told(log: Path, what: str) -> str:
    """What has become of the process with that log, and the log's end."""
    return "\n".join([f"{log.stem} {what}; the end of {log}:", *log.read_text(errors="replace").splitlines()[-15:]])


def scratch_folder(engine: str, mark: str) -> Path:
    """The same each time, so that it is found without a record; short, as addresses of sockets must be."""
    return Path(tempfile.gettempdir()) / f"{engine}-{os.geteuid()}-{digest(mark)[:10]}"


def digest(mark: str) -> str:
    """Letters and figures that stand for a mark in names."""
    return hashlib.sha256(mark.encode()).hexdigest()


def free_ports(*uses: str) -> dict[str, int]:
    """A port for each use, all of them free now, and below those that Linux draws for connections meanwhile."""
    found: list[int] = []
    for port in range(10_000 + os.getpid() % 20_000, 32_768):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("", port))
            found.append(port)
        if len(found) == len(uses):
            break
    return dict(zip(uses, found, strict=True))


def listens(address: str, port: int) -> bool:
    """Whether anyone does there."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def reach_directly(address: str) -> None:
    """Proxies that the environment names are asked neither for it nor for this machine: here and in what is started."""
    known = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")).split(",")
    wanted = [one for one in (address, "localhost", "127.0.0.1") if one not in known]
    os.environ["no_proxy"] = ",".join(filter(None, [*known, *wanted]))
