"""Beam SQL for Python's pipelines: Java's SqlTransform, in an expansion service that also runs what it expands.

``apache_beam.transforms.sql.SqlTransform`` fetches a jar that not every mirror of Maven's central repository has, with
Java's SqlTransform in it. This makes a class path of the parts instead, and names that transform by its class.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
from apache_beam.transforms.external import JavaExternalTransform
from configuration import JAVA_OPTIONS
from fetch import EngineError, java, sql_home
from job_server import FOLDER, START_SECS, free_ports, listens, logs, reach_directly, scratch_folder, told
from members import end_all, start, wait_until

_ADDRESS = "127.0.0.1"
_TRANSFORM = "org.apache.beam.sdk.extensions.sql.SqlTransform"
_ALLOWED = f"""version: v1
allowedClasses:
  - className: {_TRANSFORM}
    allowedConstructorMethods: [query]
    allowedBuilderMethods: []
"""


class Sql:
    """An expansion service that runs.

    Args:
        mark: what its process carries in its environment.
        port: its own.
        scratch: temporary files.
    """

    def __init__(self, mark: str, port: int, scratch: Path) -> None:
        self.mark = mark
        self.port = port
        self.scratch = scratch

    def query(self, text: str) -> beam.PTransform:
        """Java's ``SqlTransform.query(text)``; the table of its input is ``PCOLLECTION``."""
        transform: beam.PTransform = JavaExternalTransform(_TRANSFORM, f"{_ADDRESS}:{self.port}").query(text)
        return transform


@contextlib.contextmanager
def running(name: str = "sql") -> Iterator[Sql]:
    """Starts it, goes on when it answers, and ends it; what one of that name has left goes first. It runs one pipeline.

    Raises:
        EngineError: something is missing, or the service has failed; the message says what to do.
    """
    program, home, mark = java(), sql_home(FOLDER), str(FOLDER / name)
    engine = Sql(mark, free_ports("expansion")["expansion"], scratch_folder("sql", mark))
    log = logs(name) / "expansion.log"
    _end(engine)
    shutil.rmtree(log.parent, ignore_errors=True)
    try:
        engine.scratch.mkdir(mode=stat.S_IRWXU)
        log.parent.mkdir(parents=True)
        (engine.scratch / "allowed.yaml").write_text(_ALLOWED)
        reach_directly(_ADDRESS)
        service = start(_command(engine, program, home), mark, log, {"TMPDIR": str(engine.scratch)})

        def is_done() -> bool:
            if service.poll() is not None:
                raise EngineError(told(log, "has ended"))
            return listens(_ADDRESS, engine.port)

        if not wait_until(is_done, START_SECS):
            raise EngineError(told(log, f"is not ready after {START_SECS:g} s"))
        yield engine
    finally:
        _end(engine)


def _end(engine: Sql) -> None:
    end_all(engine.mark)
    shutil.rmtree(engine.scratch, ignore_errors=True)


def _command(engine: Sql, program: str, home: Path) -> list[str]:
    return [
        *(program, "-Xmx512m", *JAVA_OPTIONS, f"-Djava.io.tmpdir={engine.scratch}"),
        *("-cp", f"{home}/jars/*", "org.apache.beam.sdk.expansion.service.ExpansionService", str(engine.port)),
        *("--alsoStartLoopbackWorker", f"--javaClassLookupAllowlistFile={engine.scratch}/allowed.yaml"),
    ]
