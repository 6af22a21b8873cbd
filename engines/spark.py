"""Spark on this machine: a job server, which is the driver, and two executors for each job; see README.md beside it.

It is Spark's ``local-cluster``: the driver starts the executors, as processes of their own, and no script is needed.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from configuration import FAST_START, JAVA_OPTIONS
from fetch import EngineError, java, spark_home
from job_server import (
    FOLDER,
    PORTS,
    START_SECS,
    free_ports,
    listens,
    logs,
    process_options,
    reach_directly,
    scratch_folder,
    told,
    write_boot,
)
from members import end_all, start, wait_until

_ADDRESS = "127.0.0.1"
_MASTER = "local-cluster[2,2,1024]"
"""Two executors with two cores and 1024 MB each."""
_SETTINGS = {
    "ui.enabled": "false",
    "default.parallelism": "4",
    "executor.extraJavaOptions": " ".join(FAST_START),
}
"""Of Spark. It would cut what a pipeline creates in as many parts as cores have come by then, which is fewer."""


@dataclass(frozen=True)
class Spark:
    """One that runs."""

    mark: str
    """What its processes, and all that they start, carry in their environment."""
    home: Path
    scratch: Path
    """Temporary files of all its processes."""
    ports: dict[str, int]

    def pipeline_options(self, **environment: str) -> list[str]:
        """The arguments with which a pipeline runs on it, its worker processes with these variables."""
        have = next((self.home / "jars").glob("beam-runners-spark-*.jar"))  # they have all; unless told, all is sent
        options = process_options(f"{_ADDRESS}:{self.ports['job']}", self.scratch / "boot", environment)
        return [*options, f"--files_to_stage={have}"]


@contextlib.contextmanager
def running(name: str = "spark") -> Iterator[Spark]:
    """Starts it, when it takes pipelines goes on, and ends everything; what one of that name has left goes first.

    Raises:
        EngineError: something is missing, or the job server has failed; the message says what to do.
    """
    program, home, mark = java(), spark_home(FOLDER), str(FOLDER / name)
    engine = Spark(mark, home, scratch_folder("spark", mark), free_ports(*PORTS))
    log = logs(name) / "jobserver.log"
    _end(engine)
    shutil.rmtree(log.parent, ignore_errors=True)
    try:
        engine.scratch.mkdir(mode=stat.S_IRWXU)
        (engine.scratch / "tmp").mkdir()
        log.parent.mkdir(parents=True)
        write_boot(engine.scratch / "boot")
        reach_directly(_ADDRESS)
        job_server = start(_command(engine, program), mark, log, _variables(engine))

        def is_done() -> bool:
            if job_server.poll() is not None:
                raise EngineError(told(log, "has ended"))
            return listens(_ADDRESS, engine.ports["job"])

        if not wait_until(is_done, START_SECS):
            raise EngineError(told(log, f"is not ready after {START_SECS:g} s"))
        yield engine
    finally:
        _end(engine)


def _end(engine: Spark) -> None:
    end_all(engine.mark)
    shutil.rmtree(engine.scratch, ignore_errors=True)


def _command(engine: Spark, program: str) -> list[str]:
    return [
        *(program, "-Xmx512m", *JAVA_OPTIONS, f"-Djava.io.tmpdir={engine.scratch}/tmp"),
        *(f"-Dspark.{key}={value}" for key, value in _SETTINGS.items()),
        *("-cp", f"{engine.home}/jars/*", "org.apache.beam.runners.spark.SparkJobServerDriver"),
        *(f"--job-host={_ADDRESS}", *(f"--{use}-port={port}" for use, port in engine.ports.items())),
        *(f"--spark-master-url={_MASTER}", f"--artifacts-dir={engine.scratch}/artifacts"),
    ]


def _variables(engine: Spark) -> dict[str, str]:
    """Of all its processes' environments."""
    folders = {
        "TMPDIR": "tmp",
        "SPARK_LOCAL_DIRS": "tmp",
        "SPARK_WORKER_DIR": "work",
        "HEADRACE_RUNTIME_DIR": "machine",
    }
    return {
        **{variable: str(engine.scratch / folder) for variable, folder in folders.items()},
        "SPARK_HOME": str(engine.home),
        "SPARK_SCALA_VERSION": "2.12",  # else it looks for it in folders of a source tree
        "SPARK_LOCAL_IP": _ADDRESS,
    }
